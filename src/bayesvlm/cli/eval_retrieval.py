"""`bayesvlm eval --retrieval`: searches of caption sets, measured and shown on a page."""

from __future__ import annotations

import csv
import io
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesvlm.cli.earlier import earlier_result
from bayesvlm.cli.output import emit, remark, table

if TYPE_CHECKING:
    from bayesvlm.data import CaptionSet
    from bayesvlm.experiments.caption_results import CaptionResult
    from bayesvlm.experiments.feature_store import FeatureStore
    from bayesvlm.vlm import BayesVLM

PAGE = "retrieval.html"
VIEWS, KEEP = 64, 0.3  # what `eval` has where they are not given

Loaded = Callable[[str], "tuple[BayesVLM, FeatureStore]"]


def refuse_beside(
    ood: Sequence[str] | None,
    selective: bool,
    validation: str | None,
    methods: str | None,
    classes_file: Path | None,
    template: Sequence[str] | None,
    templates: str | None,
    form: str | None,
    views: int,
    keep: float,
) -> None:
    """Refuse options of `eval` that --retrieval has no use for, so that none is passed over."""
    from bayesvlm.core.errors import BayesVLMError

    given = {
        "--ood": bool(ood),
        "--selective": selective,
        "--validation": validation is not None,
        "--methods": methods is not None,
        "--classes-file": classes_file is not None,
        "--template": bool(template),
        "--templates": templates is not None,
        "--table": form is not None,
        "--views": views != VIEWS,
        "--keep": keep != KEEP,
    }
    if wrong := next((name for name, there in given.items() if there), None):
        raise BayesVLMError(f"{wrong} is about labelled sets, and --retrieval about captions; leave one of them out.")


def caption_sets(data: Sequence[str], root: Path | None, strict: bool) -> list[CaptionSet]:
    """The sets that were named, opened."""
    from bayesvlm.data import resolve

    return [resolve(name, kind="captions", root=root).open(strict=strict) for name in data]


def evaluate_retrieval(
    loaded: Loaded,
    models: Sequence[str],
    sets: Sequence[CaptionSet],
    out: Path,
    overwrite: bool,
    skip_existing: bool,
    as_json: bool,
) -> None:
    """Measure every model on every set, write the results and the page, print the tables.

    Args:
        loaded: a model by its name, and its features.
        models: what they are called.
        sets: to search in.
        out: the folder for results.
        overwrite: replace results that were made from other inputs.
        skip_existing: keep results that were measured from the same inputs.
        as_json: print json.
    """
    from bayesvlm.experiments.caption_results import CaptionResult, CaptionStudy, captions_place
    from bayesvlm.report.caption_search import write_caption_search
    from bayesvlm.report.page import check_replaces
    from bayesvlm.report.writing import write_whole

    made = {"command": "eval --retrieval", "models": list(models), "sets": [data.name for data in sets]}
    check_replaces(out / PAGE, made, overwrite)
    results: list[CaptionResult] = []
    skipped: list[str] = []
    for name in models:
        study = CaptionStudy(*_named(loaded, name))
        paths = [captions_place(out, name, data.name) for data in sets]
        inputs = [study.inputs(data) for data in sets]
        before = [
            earlier_result(path, of, overwrite, CaptionResult.load) for path, of in zip(paths, inputs, strict=True)
        ]
        for data, path, result in zip(sets, paths, before, strict=True):
            if result is not None and skip_existing:
                remark(f"{name} on {data.name}: measured already, kept in {path}")
                skipped.append(str(path))
            else:
                result = study.run(data)
                result.save(out)
            _remarks(result, path)
            results.append(result)
    write_whole(out / "retrieval.csv", _csv(results).encode())
    page = write_caption_search(results, out / PAGE, shlex.join(["bayesvlm", *sys.argv[1:]]), made)
    emit(
        {"retrieval": [result.numbers for result in results], "skipped": skipped, "report": str(page)},
        [*_tables(results), *_verdicts(results), f"results and tables are in {out}; the page is {page}"],
        as_json,
    )


def _named(loaded: Loaded, name: str) -> tuple[BayesVLM, str, FeatureStore]:
    vlm, encoder = loaded(name)
    return vlm, name, encoder


def _remarks(result: CaptionResult, path: Path) -> None:
    """What a reader of the figures should know of the data."""
    from bayesvlm.images.files import describe_skipped

    for sentence in result.left_out:
        remark(f"{result.model} on {result.data}: {sentence}")
    if result.facts["skipped"]:
        remark(f"{result.data}: {describe_skipped(result.facts['skipped'])}\n{path} names them")
    for direction, of in result.table.items():
        if count := of["queries_without_an_answer"]:
            remark(f"{result.data}, {direction}: nothing answers {count} queries, which count for no figure")


# For the terminal -----------------------------------------------------------------------------------------------------


def _verdicts(results: Sequence[CaptionResult]) -> list[str]:
    from bayesvlm.report.caption_search import directions, doubt_verdict, nothing_matches, nothing_verdict

    said = []
    for found in [found for result in results for found in directions(result)]:
        said.append(doubt_verdict(found))
        if nothing_matches(found[1]):
            said.append(nothing_verdict(found))
    return said


def _tables(results: Sequence[CaptionResult]) -> list[Any]:
    """What is found, and what doubts know, a table per model and direction."""
    from bayesvlm.report.caption_search import directions, doubt_table, nothing_matches, nothing_table, ranking_table

    tables: list[Any] = []
    for result in results:
        for what, of in directions(result):
            made = [ranking_table(what, of), doubt_table(what, of)]
            made += [nothing_table(what, of)] if nothing_matches(of) else []
            tables += [table(f"{result.model}, {what}", each.columns, each.rows) for each in made]
    return tables


# As csv ---------------------------------------------------------------------------------------------------------------


def _csv(results: Sequence[CaptionResult]) -> str:
    """Long form, one figure per line, at full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "data", "direction", "kind", "name", "figure", "value", "standard_error", "low", "high"])
    for result in results:
        for direction, of in result.table.items():
            start = [result.model, result.data, direction]
            for name, figures in of["rankings"].items():
                for figure, found in figures.items():
                    writer.writerow([*start, "ranking", name, figure, *_estimate(found)])
            for name, row in of["doubts"].items():
                for figure, values in _doubt(row):
                    writer.writerow([*start, "doubt", name, figure, *values])
    return text.getvalue()


def _estimate(of: Mapping[str, float]) -> list[str]:
    return [repr(of["value"]), repr(of["standard_error"]), "", ""]


def _doubt(row: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    yield "aurc", _estimate(row["aurc"])
    over = row["aurc_over_cosine"]
    yield "aurc against cosine", [repr(over[name]) for name in ("difference", "standard_error", "low", "high")]
    if (found := row["nothing_matches"]) is not None:
        for name in ("auroc", "false_answers"):
            yield name, [repr(found[name]), "", *map(repr, found[f"{name}_interval"])]
        yield "kept at the other half's cut-off", _estimate(found["kept"])
        yield "false answers at the other half's cut-off", _estimate(found["falsely_answered"])
