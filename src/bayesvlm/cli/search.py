"""`bayesvlm search`: what an index holds for a query, with how sure each cosine is."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesvlm.cli.options import Device, Json, Model, OwnTemplates, QueryTemplate, Root
from bayesvlm.cli.output import emit, remark

if TYPE_CHECKING:
    from bayesvlm.retrieval import Hits, Index

RANKS = ("mean", "lower", "upper")


def search(
    index: Annotated[str, typer.Argument(help="An index that `bayesvlm index` made: a folder or a URL.")],
    queries: Annotated[
        list[str] | None, typer.Argument(help="What to look for, in words; several are asked apart.")
    ] = None,
    image: Annotated[
        list[Path] | None, typer.Option("--image", "-i", help="Look for what is like this image; repeatable.")
    ] = None,
    queries_file: Annotated[
        Path | None,
        typer.Option(
            "--queries",
            help="A file of queries: one per line, or a .csv, .tsv or .jsonl with the column query, as for "
            "`bayesvlm index calibrate`; - is the standard input.",
        ),
    ] = None,
    like: Annotated[
        list[str] | None,
        typer.Option(
            "--like",
            "-l",
            help="Look for what is like an item of the index, by its id, its path or its file's name; repeatable.",
        ),
    ] = None,
    template: QueryTemplate = None,
    templates: OwnTemplates = None,
    k: Annotated[int, typer.Option("-k", min=1, help="How many to show.")] = 10,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            help="A condition on a column, with = != < <= > >= or like (% is anything); repeatable: all must hold, and "
            "of several = on one column one.",
        ),
    ] = None,
    rank: Annotated[
        str, typer.Option(help="Order by the mean, by the lower end of the interval (be safe) or the upper (explore).")
    ] = "mean",
    level: Annotated[float, typer.Option(help="Probability that the interval of a cosine covers.")] = 0.95,
    abstain: Annotated[
        bool, typer.Option("--abstain", help="Show nothing where nothing here matches, by the index's calibration.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write what was found here, a row per hit: .csv or .jsonl.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a page with the images found to this file.")
    ] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Replace whatever --out and --html name; without it only a page of an earlier search of this index is "
            "replaced.",
        ),
    ] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Look at every row, whatever index of vectors there is.")
    ] = False,
    root: Root = None,
    model: Model = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Search an index by words or by an image.

    Each image found has the expected cosine, its credible interval, and `best`: the probability that it is the best of
    those shown, by draws of the model that they share. Where the index was calibrated, `match` is the probability that
    it is what was asked for, and a sentence says whether the query is turned away because nothing here matches;
    --abstain shows nothing then.

    Examples:

        bayesvlm search index/ "a red car"

        bayesvlm search index/ --image photo.jpg -k 20 --html found.html

        bayesvlm search index/ "a dog" --where album=holiday --where "modified>=2024-01-01" --rank lower

        bayesvlm search index/ "red car" --template "a photo of a {c}." --out found.csv

        bayesvlm search index/ --like photos/cat.jpg -k 5

        bayesvlm search index/ --queries queries.txt --abstain --json
    """
    from bayesvlm.cli.found import as_json_of, as_tables
    from bayesvlm.cli.found_file import FoundFile
    from bayesvlm.cli.prompts import templates_given
    from bayesvlm.cli.queries import as_condition, named_in, texts_of
    from bayesvlm.core.errors import BayesVLMError, check_choice
    from bayesvlm.images.files import names_a_file
    from bayesvlm.report.page import check_replaces
    from bayesvlm.retrieval import Index
    from bayesvlm.retrieval.hits import half_width

    check_choice("--rank", rank, RANKS)
    half_width(level)
    texts = texts_of(queries, queries_file)
    if not texts and not image and not like:
        raise BayesVLMError(
            f'There is nothing to look for; say it in words, `bayesvlm search {index} "a red car"`, or give --image '
            "or --like."
        )
    asked_in = templates_given(template, templates, ()) or None
    if asked_in is not None and not texts:
        raise BayesVLMError("--template and --templates are for queries in words, and there are none; leave them out.")
    for text in texts:
        if names_a_file(text):
            remark(f"{text} is a file, and is looked for as words; --image {text} looks for what is like it")
    made_from = {"command": "search", "index": index}
    if html is not None:
        check_replaces(html, made_from, overwrite, "another file with --html")
    written = None if out is None else FoundFile(out, overwrite)
    found = Index.open(index, model=model, device=device)
    calibration = found.calibration
    if abstain and calibration is None:
        raise BayesVLMError(
            f"--abstain needs a calibration, and {index} has none; make one with `bayesvlm index calibrate {index} "
            "queries.csv`."
        )
    if not len(found):
        raise BayesVLMError(f"{index} is empty; put images into it with `bayesvlm index photos/ --out {index}`.")
    condition = as_condition(where or [], found.types)
    options: dict[str, Any] = {"where": condition, "rank": rank, "level": level, "exact": exact}
    hits: list[Hits] = []
    if texts:
        hits += _listed(found.search(texts, k, tower="text", templates=asked_in, **options))
    in_words = len(hits)
    if image:
        hits += _listed(found.search(image, k, **options))
    if like:
        hits += _listed(found.like(named_in(found, like, "--like"), k, **options))
    result = {
        "index": index,
        "rows": len(found),
        "model": found.info()["model"],
        "rank": rank,
        "level": level,
        "calibration": None if calibration is None else calibration.summary(),
        "queries": [as_json_of(each, level, abstain) for each in hits],
    }
    shown = as_tables(hits, level, abstain, unicode=_takes_unicode(), tower=found.tower)
    if written is not None:
        written.write(result["queries"])
        result["out"] = str(out)
        shown.append(f"what was found is in {out}")
    if html is not None:
        _write(html, found, hits, in_words, level, abstain, root, made_from)
        result["report"] = str(html)
        shown.append(f"the page is {html}")
    emit(result, shown, as_json)
    if not any(len(each) for each in hits):
        remark(f"no row of {index} fulfils {' and '.join(where or ())}")
    if abstain and any(each.matches is None for each in hits):
        remark(
            "--abstain: the calibration says nothing of images, of --like, under --where or in another --template; all "
            "that was found is shown"
        )


def _listed(answer: Hits | list[Hits]) -> list[Hits]:
    return answer if isinstance(answer, list) else [answer]


def _takes_unicode() -> bool:
    return (getattr(sys.stdout, "encoding", "") or "utf-8").lower().replace("-", "").startswith("utf")


def _write(
    page: Path,
    index: Index,
    hits: list[Hits],
    in_words: int,
    level: float,
    abstain: bool,
    root: Path | None,
    made_from: dict[str, Any],
) -> None:
    from bayesvlm.experiments.thumbnails import of_hits, of_queries
    from bayesvlm.report.search import SearchReport, write_search

    shown = [each for each in hits if not (abstain and each.matches is False)]
    report = SearchReport(
        place=index.place,
        rows=len(index),
        model=index.info()["model"],
        hits=hits,
        pictures=of_hits(shown, root),
        queries=of_queries(hits[in_words:]),  # a file that is called as the words are is not what they ask for
        level=level,
        abstain=abstain,
    )
    write_search(report, page, shlex.join(["bayesvlm", *sys.argv[1:]]), made_from)
