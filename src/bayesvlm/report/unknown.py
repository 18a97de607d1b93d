"""The page of `bayesvlm eval --ood` and `--selective`: what is unknown, which answers are wrong, what sets hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from bayesvlm.experiments.answer_sets import AnswerSets
from bayesvlm.experiments.failures import RISKS, Failures
from bayesvlm.experiments.outside import BASELINE, Outside
from bayesvlm.experiments.thumbnails import Thumbnail
from bayesvlm.report.blocks import Card, Commands, Gallery, Page, Plot, Section, Table, Text
from bayesvlm.report.familiar import class_coverage_plot, familiarity_plot, roc, roc_plot, sizes_plot
from bayesvlm.report.page import write_page
from bayesvlm.report.plots import risk_coverage_plot
from bayesvlm.report.theme import NARROW, WIDE

LEVEL = 0.05
JUDGED = "entropy, Bayes"
"""The Bayesian score that is held against MCM: one that is chosen before anything is seen."""
DRAWN = ("MSP", "MCM", "energy", "entropy, Bayes", "epistemic", "image variance")
"""The scores that are drawn: more would cover each other."""
RANKED = ("plain", "temperature", "raised temperature", "Bayes", "epistemic", "ICPE")
_KINDS = {"familiar": "seen", "shifted": "unseen style", "unknown": "out of domain"}
_SHOWN_KIND = "aps"

Block = Text | Table | Plot | Gallery


@dataclass(frozen=True)
class Findings:
    """What was measured of one model on one familiar set.

    Args:
        outside: scores of familiar, shifted and unknown images.
        sets: prediction sets of the familiar ones.
        classes: names of the known classes.
        mistaken: the most familiar images of the unknown sets.
        odd: the least familiar ones of the familiar set.
    """

    outside: Outside
    sets: AnswerSets | None = None
    classes: Sequence[str] = ()
    mistaken: Sequence[Thumbnail] = ()
    odd: Sequence[Thumbnail] = ()


def write_unknown(
    findings: Sequence[Findings],
    failures: Sequence[Failures],
    path: str | Path,
    command: str = "",
    made_from: Mapping[str, Any] | None = None,
) -> Path:
    """Write the page; `made_from` says what it shows, for `page.check_replaces`."""
    return write_page(unknown_page(findings, failures, command, made_from), Path(path))


def unknown_page(
    findings: Sequence[Findings],
    failures: Sequence[Failures],
    command: str = "",
    made_from: Mapping[str, Any] | None = None,
) -> Page:
    """The page: for each model what it finds of unknown things, which of its answers are wrong, what its sets hold."""
    sections = [section for found in findings for section in _outside_sections(found)]
    models = list(dict.fromkeys([each.outside.model for each in findings] + [each.model for each in failures]))
    for model in models:
        own = [each for each in failures if each.model == model]
        if own:
            sections.append(Section(f"{model}: which answers are wrong?", _failure_blocks(own)))
    facts = {"models": ", ".join(models)}
    if findings:
        first = findings[0].outside
        facts["known"] = f"{first.familiar} ({first.facts['classes']} classes)"
        facts["unknown"] = ", ".join(first.of_kind("unknown")) or "none"
    if failures:
        facts["answers judged on"] = ", ".join(dict.fromkeys(each.data for each in failures))
    if command:
        sections.append(Section("Make it again", [Commands([(command, "this page, from the cached features")])]))
    lead = _lead(findings, failures)
    return Page("What the model does not know", lead, facts, sections, made_from=made_from or {})


def _lead(findings: Sequence[Findings], failures: Sequence[Failures]) -> str:
    parts = []
    if findings:
        parts.append(
            "Each score says how familiar an image is. A good one is high for images of known things and low for "
            "unknown ones. Known things in another style are none to flag. Scores with `Bayes`, and the variances, are "
            "of the posterior; the others need none."
        )
    if failures:
        parts.append(
            "Each answer has a score that says how doubtful it is. A good one is high where the answer is wrong, so "
            "that the others can be given and these held back."
        )
    return "\n\n".join(parts)


# Unknown things -------------------------------------------------------------------------------------------------------


def _outside_sections(found: Findings) -> list[Section]:
    outside = found.outside
    sections = []
    if outside.of_kind("unknown"):
        blocks: list[Block] = [Text(" ".join(outside_verdicts(outside))), _explained(outside)]
        blocks += [outside_table(outside, name) for name in outside.of_kind("unknown")]
        blocks += [_spread(outside), _curves(outside)]
        sections.append(Section(f"{outside.model}: known or unknown?", blocks))
    blocks = _flagged(outside) + _galleries(found)
    if blocks:
        sections.append(Section(f"{outside.model}: what would be flagged?", blocks))
    if found.sets is not None:
        sections.append(Section(f"{outside.model}: which classes may it be?", _set_blocks(found)))
    return sections


def outside_verdicts(outside: Outside) -> list[str]:
    """A sentence for each set of unknown things: the best score, and the Bayesian entropy against MCM."""
    said = []
    for name in outside.of_kind("unknown"):
        rows = outside.table[name]
        area = {title: rows[title]["auroc"]["value"] for title in rows}
        best = max(area, key=area.__getitem__)
        text = f"On {name} the best score is {best} (AUROC {100 * area[best]:.1f} %, MCM {100 * area[BASELINE]:.1f} %)"
        if JUDGED in area:
            over = rows[JUDGED]["over_mcm"]
            points = f"{100 * over['difference']:+.1f} ± {100 * over['standard_error']:.1f} points"
            if over["p"] >= LEVEL:
                how = "is level with MCM"
            else:
                how = f"is {'better' if over['difference'] > 0 else 'worse'} than MCM"
            text += f"; {JUDGED}, the score a detector has unless told otherwise, {how} ({points}, p = {over['p']:.2g})"
        said.append(text + ".")
    for name, same in outside.facts.get("known_all_the_same", {}).items():
        said.append(
            f"{len(same)} classes of {name} are known ones, such as {same[0]}, and count as unknown as it shows them."
        )
    if flat := outside.facts.get("all_equal"):
        said.append(f"All familiar images have the same score by {', '.join(flat)}, which then tells nothing.")
    return said


def outside_table(outside: Outside, name: str) -> Table:
    """Scores on one set of unknown things: AUROC, FPR95 and AUPR with intervals, and the difference to MCM."""
    figures = {"auroc": max, "fpr95": min, "aupr": max}
    table = outside.table[name]
    finest = {figure: best(row[figure]["value"] for row in table.values()) for figure, best in figures.items()}
    rows, bold = [], set()
    for number, (title, row) in enumerate(table.items()):
        over = row["over_mcm"]
        star = "*" if over["p"] < LEVEL else ""
        points = f"{100 * over['difference']:+.1f} ± {100 * over['standard_error']:.1f}{star}"
        rows.append([title, *(_interval(row[figure]) for figure in figures), "" if title == BASELINE else points])
        bold |= {
            (number, place) for place, figure in enumerate(figures, start=1) if row[figure]["value"] == finest[figure]
        }
    return Table(["score", "AUROC %", "FPR95 %", "AUPR %", "AUROC over MCM"], rows, bold, f"**{name}**")


def _explained(outside: Outside) -> Text:
    return Text(
        f"Images of {outside.familiar} against each unknown set, with 95 % bootstrap intervals. Known images are the "
        "positives: FPR95 is the share of unknown images that pass for known where 95 % of the known ones do. Over "
        f"MCM: points with the standard error of DeLong's test, and a star where its p < {LEVEL:g}. Bold: the best."
    )


def _interval(figure: Mapping[str, float]) -> str:
    return f"{100 * figure['value']:.1f} [{100 * figure['low']:.1f}, {100 * figure['high']:.1f}]"


def _drawn(outside: Outside) -> list[str]:
    found = [title for title in DRAWN if title in outside.titles]
    return found or outside.titles[:6]


def _spread(outside: Outside) -> Plot:
    titles = _drawn(outside)
    panels = {title: {name: of[title] for name, of in outside.scores.items()} for title in titles}
    kinds = {name: _KINDS[kind] for name, kind in outside.kinds.items()}
    limits = {title: limit for title in titles if (limit := outside.threshold(title)) is not None}

    def drawn(width: float) -> Figure:
        return familiarity_plot(panels, kinds, limits, width=width)

    return Plot(
        drawn(WIDE),
        f"**Scores of every set.** Filled: the familiar images. Left of the dotted line, at most "
        f"{100 * outside.false_alarms:g} % of familiar images lie.",
        "Histograms of every score for familiar, shifted and unknown images.",
        drawn(NARROW),
    )


def _curves(outside: Outside) -> Plot:
    known = outside.scores[outside.familiar]
    panels = {
        name: {title: roc(known[title], outside.scores[name][title]) for title in _drawn(outside)}
        for name in outside.of_kind("unknown")
    }
    return Plot(
        roc_plot(panels),
        "**Unknown images found, against known ones flagged with them,** at every threshold.",
        "Receiver operating characteristic of every score on every set of unknown images.",
        roc_plot(panels, width=NARROW),
    )


def _flagged(outside: Outside) -> list[Block]:
    if not outside.flagged:
        return []
    names = list(outside.scores)
    rows = [[title, *(f"{100 * outside.flagged[name][title]:.1f}" for name in names)] for title in outside.titles]
    kinds = {"familiar": "fresh images", "shifted": "known, shifted", "unknown": "unknown"}
    columns = ["score", *(f"{name} ({kinds[outside.kinds[name]]})" for name in names)]
    level = f"{100 * outside.false_alarms:g} %"
    caption = (
        f"Share of images flagged (%) by a detector calibrated on half of {outside.familiar} for {level} of false "
        f"alarms. Of the other half at most {level} are flagged on average; of shifted images, which are known, every "
        "flag is a false alarm that nothing is promised of; of unknown ones, every flag is right."
    )
    return [Table(columns, rows, caption=caption)]


def _galleries(found: Findings) -> list[Block]:
    blocks: list[Block] = []
    score = JUDGED if JUDGED in found.outside.titles else BASELINE
    for text, shown in (
        (f"**Most familiar of the unknown images** by {score}: the mistakes to expect.", found.mistaken),
        (f"**Least familiar of the known images** by {score}: the false alarms to expect.", found.odd),
    ):
        if shown:
            blocks += [Text(text), gallery(shown, score)]
    return blocks


def gallery(shown: Sequence[Thumbnail], score: str) -> Gallery:
    """Thumbnails with what they show and their score."""
    cards = [Card(each.image, each.label or each.name, f"{score} {each.score:.4g}", (), "") for each in shown]
    return Gallery(cards)


# Prediction sets ------------------------------------------------------------------------------------------------------


def _set_blocks(found: Findings) -> list[Block]:
    sets, outside = found.sets, found.outside
    assert sets is not None
    nominal = 1 - sets.miss
    shown = {method: kinds[_SHOWN_KIND] for method, kinds in sets.sets.items() if _SHOWN_KIND in kinds}
    tests = list(next(iter(shown.values())))
    best = "Bayes" if "Bayes" in shown else next(iter(shown))
    distance = {name: shown[best][name].coverage.value for name in tests}
    order = sorted(tests, key=lambda name: (name != outside.familiar, -distance[name]))
    size = {name: {method: _score(of[name].mean_size) for method, of in shown.items()} for name in order}
    held = {name: {method: _score(of[name].coverage) for method, of in shown.items()} for name in order}
    blocks: list[Block] = [Text(_set_verdict(found, shown[best], order, best))]
    blocks.append(
        Plot(
            sizes_plot(size, held, nominal),
            "**Size of sets against shift** (APS): how many classes a set holds, and how often the right one is among "
            "them. Only for the familiar set is anything promised.",
            "Dot plot of size and coverage of prediction sets for every method on every set.",
            sizes_plot(size, held, nominal, width=NARROW),
        )
    )
    hits, images = shown[best][outside.familiar].by_class(len(found.classes))
    if int((images > 1).sum()):
        shares = (hits / images).nan_to_num(2)
        least = [f"{found.classes[k]} ({int(hits[k])} of {int(images[k])})" for k in shares.argsort(stable=True)[:3]]
        blocks.append(
            Plot(
                class_coverage_plot(found.classes, hits, images, nominal),
                f"**Coverage by class** ({best}, APS, fresh images of {outside.familiar}). The promise is for all "
                "classes together: some have less than the dotted line, and where each has few images, chance does "
                f"that too. Larger dots are classes with more images. Least covered: {', '.join(least)}.",
                "Share of each class's images whose prediction set holds the class.",
                class_coverage_plot(found.classes, hits, images, nominal, width=NARROW),
            )
        )
    rows = [
        [f"{method}, {kind.upper()}"]
        + [
            text
            for name in order
            for text in (f"{100 * of[name].coverage.value:.1f}", f"{of[name].mean_size.value:.2f}")
        ]
        for method, kinds in sets.sets.items()
        for kind, of in kinds.items()
    ]
    columns = ["sets", *(column for _ in order for column in ("covered %", "size"))]
    groups = [("", 1), *((name, 2) for name in order)]
    caption = f"Coverage and mean size of prediction sets made to hold the right class {100 * nominal:g} % of the time."
    return [*blocks, Table(columns, rows, caption=caption, groups=groups)]


def _set_verdict(found: Findings, of: Mapping[str, object], order: Sequence[str], best: str) -> str:
    outside, sets = found.outside, found.sets
    assert sets is not None
    rows = sets.sets[best][_SHOWN_KIND]
    familiar = rows[outside.familiar]
    text = (
        f"Prediction sets of {best}, calibrated on half of {outside.familiar}, hold the right class of "
        f"{100 * familiar.coverage.value:.1f} % of its other images ({100 * (1 - sets.miss):g} % were asked for) with "
        f"{familiar.mean_size.value:.1f} classes on average."
    )
    shifted = [name for name in order if name != outside.familiar]
    if shifted:
        text += " Under a shift nothing is promised: " + "; ".join(
            f"on {name} {100 * rows[name].coverage.value:.1f} % with {rows[name].mean_size.value:.1f} classes"
            for name in shifted
        )
        text += "."
    return text


def _score(estimate: object) -> tuple[float, float | None]:
    value, error = estimate.value, estimate.standard_error  # type: ignore[attr-defined]
    return value, None if error != error else error


# Wrong answers --------------------------------------------------------------------------------------------------------


def _failure_blocks(failures: Sequence[Failures]) -> list[Block]:
    said = [text for each in failures for text in failure_verdicts(each)]
    said += list(dict.fromkeys(text for each in failures for text in each.left_out))
    blocks: list[Block] = [Text(" ".join(said))]
    panels = {
        each.data: {name: each.curves[name] for name in RANKED if name in each.curves} or dict(each.curves)
        for each in failures
    }
    blocks.append(
        Plot(
            risk_coverage_plot(panels),
            "**Risk and coverage.** Error rate when only the surest share of the answers is given.",
            "Error rate against coverage of every score on every set.",
            risk_coverage_plot(panels, width=NARROW),
        )
    )
    blocks.append(
        Text(
            "Wrong answers are the positives; intervals are of a bootstrap, 95 %. Coverage at risk: the share of "
            f"answers that can be given with at most {100 * RISKS[1]:g} % of them wrong, on these images; it promises "
            "nothing of others. AUROC judges the order of a method's own answers: where methods answer differently, "
            "AUGRC is the fairer figure. Bold: the best."
        )
    )
    return [*blocks, *(failure_table(each) for each in failures)]


def failure_verdicts(found: Failures) -> list[str]:
    """Which score finds the wrong answers best."""
    area = {name: of["auroc"]["value"] for name, of in found.table.items() if of["auroc"] is not None}
    if not area:
        return [f"On {found.data} all answers are right, or all are wrong, and there is nothing to find."]
    best = max(area, key=area.__getitem__)
    text = f"On {found.data} wrong answers are found best by {best} (AUROC {100 * area[best]:.1f} %)"
    others = [f"{name} {100 * area[name]:.1f} %" for name in RANKED if name in area and name != best]
    return [text + (f"; {', '.join(others)}." if others else ".")]


def failure_table(found: Failures) -> Table:
    """Scores by figures on one set."""
    lowest = ("fpr95", "aurc", "e_aurc", "augrc")
    shown = f"{RISKS[1]:g}"
    rows, best = [], set()
    values = {
        name: {
            **{key: of[key] for key in ("aurc", "e_aurc", "augrc")},
            "auroc": of["auroc"] and of["auroc"]["value"],
            "fpr95": of["fpr95"] and of["fpr95"]["value"],
            "coverage": of["coverage_at_risk"][shown],
        }
        for name, of in found.table.items()
    }
    keys = ("auroc", "fpr95", "aurc", "e_aurc", "augrc", "coverage")
    for number, (name, of) in enumerate(found.table.items()):
        cells = [name, *("" if of[key] is None else _interval(of[key]) for key in ("auroc", "fpr95"))]
        cells += [f"{1000 * of[key]:.1f}" for key in ("aurc", "e_aurc", "augrc")]
        cells.append(f"{100 * of['coverage_at_risk'][shown]:.1f}")
        rows.append(cells)
        for place, key in enumerate(keys, start=1):
            column = [each[key] for each in values.values() if each[key] is not None]
            if column and values[name][key] == (min if key in lowest else max)(column):
                best.add((number, place))
    columns = ["score", "AUROC %", "FPR95 %", "1000 AURC", "1000 E-AURC", "1000 AUGRC", f"coverage at {shown} risk, %"]
    return Table(columns, rows, best, f"**{found.data}**")
