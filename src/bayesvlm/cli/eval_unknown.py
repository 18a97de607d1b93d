"""`bayesvlm eval --ood` and `--selective`: what models do not know, measured and shown on a page."""

from __future__ import annotations

import csv
import io
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesvlm.cli.options import check_shares
from bayesvlm.cli.output import emit, remark, table

if TYPE_CHECKING:
    from bayesvlm.data import LabelledSet
    from bayesvlm.experiments.failures import Failures
    from bayesvlm.experiments.outside import Outside
    from bayesvlm.experiments.zero_shot import ZeroShot
    from bayesvlm.report.unknown import Findings

PAGE = "unknown.html"
THUMBNAILS = 8  # at each end
FALSE_ALARMS, MISS = 0.05, 0.1


@dataclass(frozen=True)
class UnknownOptions:
    """What `eval` was asked of unknown things and of wrong answers.

    Args:
        ood: names of sets of unknown things.
        selective: whether wrong answers are to be found.
        negatives: a file of words for what the images are not.
        keep_known: take known classes of an out-set as unknown all the same.
        false_alarms: share of familiar images that may be flagged.
        miss: how often a prediction set may be without the right class.
    """

    ood: Sequence[str]
    selective: bool
    negatives: Path | None
    keep_known: bool
    false_alarms: float
    miss: float


def unknown_options(
    ood: list[str] | None,
    selective: bool,
    negatives: Path | None,
    keep_known: bool,
    false_alarms: float | None,
    miss: float | None,
    usual: Mapping[str, bool],
) -> UnknownOptions | None:
    """The options, if they go together; None where nothing of the kind was asked.

    Args:
        usual: options of the usual tables, by their names, and whether they were given.
    """
    from bayesvlm.core.errors import BayesVLMError

    asked = {
        "--negatives": negatives is not None,
        "--keep-known": keep_known,
        "--false-alarms": false_alarms is not None,
        "--miss": miss is not None,
    }
    if not ood and (wrong := next((name for name, given in asked.items() if given), None)):
        raise BayesVLMError(f"{wrong} is about unknown things; name a set of them with --ood.")
    if not ood and not selective:
        return None
    if wrong := next((name for name, given in usual.items() if given), None):
        raise BayesVLMError(f"{wrong} is for the usual tables; leave it out with --ood and --selective.")
    shares = (FALSE_ALARMS if false_alarms is None else false_alarms, MISS if miss is None else miss)
    check_shares(dict(zip(("--false-alarms", "--miss"), shares, strict=True)))
    return UnknownOptions(ood or (), selective, negatives, keep_known, *shares)


def made_from(models: Sequence[str], data: Sequence[LabelledSet], asked: UnknownOptions) -> dict[str, Any]:
    """What the page will show; one that shows a part of it may be replaced."""
    known = data[0].name if asked.ood else None
    return {
        "command": "eval --ood --selective",
        "models": list(models),
        "known": known,
        "sets": [each.name for each in data],
        "unknown": list(asked.ood),
    }


def evaluate_unknown(
    runs: Iterable[ZeroShot],
    models: Sequence[str],
    data: Sequence[LabelledSet],
    asked: UnknownOptions,
    root: Path | None,
    out: Path,
    strict: bool,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Measure every model, write the results and the page, print the tables.

    Args:
        runs: the models, made ready one after the other.
        models: what they are called.
        data: sets whose classes are known; with --ood the first is what is familiar, the others are its classes under
            a shift.
        asked: what to measure.
        root: of the known sets.
        out: the folder for results.
        strict: stop at the first image that cannot be read.
        overwrite: replace results that were made from other inputs.
        as_json: print json.
    """
    from bayesvlm.cli.detecting import read_words
    from bayesvlm.data import resolve
    from bayesvlm.experiments.failures import failures_place
    from bayesvlm.experiments.outside import outside_place
    from bayesvlm.experiments.unknown import Unknown
    from bayesvlm.report.page import check_replaces
    from bayesvlm.report.unknown import write_unknown
    from bayesvlm.report.writing import write_whole

    made = made_from(models, data, asked)
    check_replaces(out / PAGE, made, overwrite)
    words = None if asked.negatives is None else read_words(asked.negatives)
    outside = [resolve(name, kind="images", root=root).open(strict=strict) for name in asked.ood]
    known, shifted = data[0], data[1:]
    if asked.ood:
        _check_sets(known, shifted, outside)
    findings: list[Findings] = []
    failures: list[Failures] = []
    for run in runs:
        study = Unknown(
            run,
            negatives=words,
            false_alarms=asked.false_alarms,
            miss=asked.miss,
            keep_known=asked.keep_known,
        )
        if asked.ood:
            path = outside_place(out, run.name, known.name)
            _check_result(path, study.outside_inputs(known, shifted, outside), overwrite)
            findings.append(_found(study, known, shifted, outside))
            _remarks(findings[-1].outside)
            findings[-1].outside.save(out)
        if asked.selective:
            for each in data:
                _check_result(failures_place(out, run.name, each.name), study.failures_inputs(each), overwrite)
            for each in data:
                failures.append(study.failures(each))
                failures[-1].save(out)
                for sentence in failures[-1].left_out:
                    remark(f"{run.name} on {each.name}: {sentence}")
    if findings:
        write_whole(out / "ood.csv", _outside_csv([each.outside for each in findings]).encode())
    if failures:
        write_whole(out / "selective.csv", _failures_csv(failures).encode())
    command = shlex.join(["bayesvlm", *sys.argv[1:]])
    page = write_unknown(findings, failures, out / PAGE, command, made)
    result = {
        "ood": [
            {**found.outside.numbers, "sets": None if found.sets is None else found.sets.numbers()}
            for found in findings
        ],
        "selective": [each.numbers for each in failures],
        "report": str(page),
    }
    text: list[Any] = []
    for found in findings:
        text += [*_outside_tables(found), *_verdicts(found.outside)]
    text += [_failure_table(each) for each in failures]
    emit(result, [*text, f"results and tables are in {out}; the page is {page}"], as_json)


def _found(study: Any, known: LabelledSet, shifted: Sequence[LabelledSet], outside: Sequence[LabelledSet]) -> Findings:
    """Scores, prediction sets, and the images at the ends of the first score that will do."""
    import torch

    from bayesvlm.experiments.outside import BASELINE
    from bayesvlm.experiments.thumbnails import extremes, of_set
    from bayesvlm.report.unknown import Findings
    from bayesvlm.safety import conformal

    scores, encoded = study.outside(known, shifted, outside)
    least = conformal.fewest(study.miss)
    sets = None if len(scores.rows) < least else study.sets(known, encoded, shifted)
    if sets is None:
        remark(
            f"{known.name}: half of it has {len(scores.rows)} images, and prediction sets with a miss rate of "
            f"{study.miss:g} need {least} to calibrate on, so there are none"
        )
    title = "entropy, Bayes" if "entropy, Bayes" in scores.titles else BASELINE

    def ends(sources: Sequence[LabelledSet], most: bool) -> list[Any]:
        values = torch.cat([scores.scores[data.name][title] for data in sources])
        keys = [(data, key) for data in sources for key in encoded[data.name].keys]
        shown = []
        for row in extremes(values, THUMBNAILS, most):
            data, key = keys[row]
            shown += of_set(data, [key], {key: float(values[row])})
        return shown

    return Findings(scores, sets, known.classes, ends(outside, True), ends([known], False))


def _check_sets(known: LabelledSet, shifted: Sequence[LabelledSet], outside: Sequence[LabelledSet]) -> None:
    """Refuse sets under a shift with other classes, and two sets of one name."""
    from bayesvlm.core.errors import BayesVLMError

    for data in shifted:
        if tuple(data.classes) != tuple(known.classes):
            raise BayesVLMError(
                f"With --ood the first set, {known.name}, is what is known, and further ones are the same classes "
                f"under a shift; {data.name} has {len(data.classes)} other classes: measure it in a call of its own, "
                "or name it with --ood."
            )
    names = [data.name for data in (known, *shifted, *outside)]
    twice = next((name for number, name in enumerate(names) if name in names[:number]), None)
    if twice is not None:
        raise BayesVLMError(f"{twice!r} is named twice; a set is either known or unknown, name each once.")


def _check_result(path: Path, inputs: Mapping[str, Any], overwrite: bool) -> None:
    """Refuse to replace a result that was made from other inputs."""
    import json

    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.experiments.zero_shot import differing

    if overwrite or not path.is_file():
        return
    try:
        others = differing(json.loads(path.read_text(encoding="utf-8"))["inputs"], inputs)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise BayesVLMError(
            f"{path} is there, and is no result that this version can read; name another folder with --out, or "
            "replace it with --overwrite."
        ) from None
    if others:
        raise BayesVLMError(
            f"{path} was made from other inputs ({', '.join(others)}) and would be replaced; name another folder with "
            "--out, or replace it with --overwrite."
        )


def _remarks(outside: Outside) -> None:
    """What a reader of the figures should know of the data."""
    from bayesvlm.images.files import describe_skipped
    from bayesvlm.safety import conformal

    for name, skipped in outside.facts["skipped"].items():
        remark(f"{name}: {describe_skipped(skipped)}")
    if not outside.flagged:
        remark(
            f"{outside.familiar}: half of it has {len(outside.rows)} images, and a false-alarm rate of "
            f"{outside.false_alarms:g} needs {conformal.fewest(outside.false_alarms)} to calibrate on, so nothing is "
            "said of what would be flagged"
        )


def _verdicts(outside: Outside) -> list[str]:
    from bayesvlm.report.unknown import outside_verdicts

    return outside_verdicts(outside)


def _outside_tables(found: Findings) -> list[Any]:
    """For the terminal: a table of the scores on every set of unknown things, and of what would be flagged."""
    outside = found.outside
    rows = []
    for title in outside.titles:
        for name in outside.of_kind("unknown"):
            of = outside.table[name][title]
            low, high = of["auroc"]["low"], of["auroc"]["high"]
            over = of["over_mcm"]
            star = "*" if over["p"] < 0.05 else " "
            rows.append(
                [
                    title,
                    name,
                    f"{100 * of['auroc']['value']:.1f} [{100 * low:.1f}, {100 * high:.1f}]",
                    f"{100 * of['fpr95']['value']:.1f}",
                    f"{100 * of['aupr']['value']:.1f}",
                    f"{100 * over['difference']:+.1f}{star}",
                ]
            )
    columns = ["score", "unknown", "AUROC % [95 %]", "FPR95 %", "AUPR %", "over MCM"]
    title = f"{outside.model}, known: {outside.familiar} (* DeLong's p < 0.05)"
    tables = [table(title, columns, rows, texts=2)]
    if outside.flagged:
        names = list(outside.scores)
        shares = [[score, *(f"{100 * outside.flagged[name][score]:.1f}" for name in names)] for score in outside.titles]
        tables.append(table(f"% flagged, {100 * outside.false_alarms:g} % of false alarms", ["score", *names], shares))
    if found.sets is not None:
        tables.append(_sets_table(found))
    return tables


def _sets_table(found: Findings) -> Any:
    sets = found.sets
    assert sets is not None
    rows = []
    for method, kinds in sets.sets.items():
        for kind, tests in kinds.items():
            for name, of in tests.items():
                covered = f"{100 * of.coverage.value:.1f} ± {100 * of.coverage.standard_error:.1f}"
                rows.append([method, kind.upper(), name, covered, f"{of.mean_size.value:.2f}"])
    columns = ["method", "sets", "images", "covered %", "mean size"]
    return table(f"prediction sets, {100 * (1 - sets.miss):g} % asked for", columns, rows, texts=3)


def _failure_table(found: Failures) -> Any:
    rows = []
    for name, of in found.table.items():
        auroc = "" if of["auroc"] is None else f"{100 * of['auroc']['value']:.1f}"
        areas = [f"{1000 * of[key]:.1f}" for key in ("aurc", "e_aurc", "augrc")]
        rows.append([name, auroc, *areas, *(f"{100 * share:.1f}" for share in of["coverage_at_risk"].values())])
    risks = [f"at {float(risk):.0%}" for risk in next(iter(found.table.values()))["coverage_at_risk"]]
    columns = ["score", "AUROC %", "1000 AURC", "1000 E-AURC", "1000 AUGRC", *(f"% {risk}" for risk in risks)]
    return table(f"{found.model} on {found.data}: finding wrong answers", columns, rows)


def _outside_csv(findings: Sequence[Outside]) -> str:
    """Long form, one figure per line, at full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "known", "data", "kind", "score", "figure", "value", "low", "high"])
    for outside in findings:
        for name, of in outside.table.items():
            for title, figures in of.items():
                start = [outside.model, outside.familiar, name, outside.kinds[name], title]
                for figure in ("auroc", "fpr95", "aupr"):
                    found = figures[figure]
                    writer.writerow([*start, figure, *(repr(found[key]) for key in ("value", "low", "high"))])
                over = figures["over_mcm"]
                writer.writerow([*start, "auroc over mcm", repr(over["difference"]), "", ""])
                writer.writerow([*start, "p of auroc over mcm", repr(over["p"]), "", ""])
        for name, shares in outside.flagged.items():
            for title, share in shares.items():
                start = [outside.model, outside.familiar, name, outside.kinds[name], title]
                writer.writerow([*start, "flagged", repr(share), "", ""])
    return text.getvalue()


def _failures_csv(failures: Sequence[Failures]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "data", "score", "figure", "value", "low", "high"])
    for found in failures:
        for name, of in found.table.items():
            start = [found.model, found.data, name]
            for figure in ("auroc", "fpr95"):
                if of[figure] is not None:
                    writer.writerow([*start, figure, *(repr(of[figure][key]) for key in ("value", "low", "high"))])
            for figure in ("aurc", "e_aurc", "augrc"):
                writer.writerow([*start, figure, repr(of[figure]), "", ""])
            for risk, share in of["coverage_at_risk"].items():
                writer.writerow([*start, f"coverage at risk {risk}", repr(share), "", ""])
    return text.getvalue()
