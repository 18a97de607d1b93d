"""`bayesvlm dedupe`: near-duplicates among photos, reported and never deleted."""

from __future__ import annotations

import csv
import io
import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesvlm.cli.options import Cache, Device, Json, Model, Root, StrictPosterior
from bayesvlm.cli.output import emit, remark, table

if TYPE_CHECKING:
    from bayesvlm.experiments.near_copies import NearCopies, Picture
    from bayesvlm.images.files import SkippedImages

DEFAULT = "emoji-clip"
BY = ("upper", "mean", "lower")
SHOWN = 10  # groups on the terminal,
_COPIES = 3  # and near-copies of each


def dedupe(
    images: Annotated[
        list[str] | None,
        typer.Argument(
            help="Folders of images, image files, tables that list some, or sets that `eval --list` shows.",
            show_default=False,
        ),
    ] = None,
    index: Annotated[
        str | None,
        typer.Option(
            "--index",
            help="Compare what an index holds, of these images or of all; nothing is encoded, and the model "
            "is the index's.",
        ),
    ] = None,
    posterior: Annotated[
        str | None,
        typer.Option(
            "--posterior",
            "-p",
            help=f"A saved posterior (folder or Hub id), or an embedded model. [default: {DEFAULT}]",
        ),
    ] = None,
    similarity: Annotated[float, typer.Option("--similarity", "-s", help="The cosine that near-copies reach.")] = 0.95,
    level: Annotated[float, typer.Option(help="Probability that the interval of a cosine covers.")] = 0.95,
    by: Annotated[
        str,
        typer.Option(
            help="Which point of the interval is to reach it: upper, so that none is left out that may well be as "
            "similar; lower, so that none is taken that may well not be; or the mean."
        ),
    ] = "upper",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the groups to this file: .csv or .json.")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with the groups side by side.")] = None,
    overwrite: Annotated[
        bool,
        typer.Option(
            "--overwrite",
            help="Replace whatever --out and --html name; without it only an earlier page of these images is.",
        ),
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Images that go through the model at once.")] = 64,
    root: Root = None,
    cache: Cache = None,
    model: Model = None,
    device: Device = None,
    strict: StrictPosterior = False,
    as_json: Json = False,
) -> None:
    """Find near-duplicates: groups of images, each a near-copy of the largest of its group. Nothing is deleted.

    Two images are near-copies where the credible interval of their cosine reaches the similarity. Of each group the
    image with the most pixels, then bytes, is the one to keep, and every other one is a near-copy of that one, not only
    of some third. Features of files are kept, so that another similarity is asked for in seconds.

    Examples:

        bayesvlm dedupe photos/ --posterior posterior/ --html copies.html

        bayesvlm dedupe photos/ --similarity 0.9 --out groups.csv

        bayesvlm dedupe --index index/ --by lower --json
    """
    from bayesvlm.core.errors import BayesVLMError, check_choice
    from bayesvlm.images.files import SkippedImages
    from bayesvlm.report.near_copies import told_bytes
    from bayesvlm.retrieval.duplicates import check_asked

    check_choice("--by", by, BY)
    check_asked(similarity, level, by)  # type: ignore[arg-type]
    if not images and index is None:
        raise BayesVLMError("There is nothing to compare; give a folder, `bayesvlm dedupe photos/`, or --index.")
    if index is not None and posterior is not None:
        raise BayesVLMError("--posterior has no use with --index, which has a posterior of its own; leave one out.")
    made_from = {"command": "dedupe", "of": [*(images or ()), *([] if index is None else [index])]}
    _check_written(out, html, overwrite, made_from)
    skipped = SkippedImages(strict)
    asked: dict[str, Any] = {"similarity": similarity, "level": level, "by": by}
    if index is not None:
        copies = _of_index(index, images, root, device, model, skipped, asked)
    else:
        given = {"model": model, "device": device, "strict": strict}
        copies = _of_images(images or [], posterior, root, cache, skipped, batch_size, given, asked)
    if skipped.reasons:
        remark(str(skipped))
    result = {**_as_json(copies), "skipped": skipped.reasons}
    found = copies.found
    count = f"{found.copies:,} near-copies in {len(found):,} groups, of {found.items:,} images"
    text: list[Any] = [_as_table(copies)] if len(found) else []
    text.append(f"{count}; they take {told_bytes(copies.bytes)}" if found.copies else count)
    if out is not None:
        _write_groups(out, copies, result)
        result["out"] = str(out)
        text.append(f"the groups are in {out}; nothing was deleted")
    if html is not None:
        _write_page(html, copies, root, images or [], index, asked, made_from)
        result["report"] = str(html)
        text.append(f"the page is {html}")
    emit(result, text, as_json)


def _check_written(out: Path | None, html: Path | None, overwrite: bool, made_from: dict[str, Any]) -> None:
    """Refuse files that cannot be written, before anything is encoded."""
    from bayesvlm.artifacts.files import check_new_file
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.report.page import check_replaces

    if out is not None:
        if out.suffix not in (".csv", ".json"):
            raise BayesVLMError(f"--out {out}: the groups can be a .csv or .json file; choose one of these endings.")
        check_new_file(out, overwrite)
    if html is not None:
        check_replaces(html, made_from, overwrite, "another file with --html")


def _of_images(
    images: list[str],
    posterior: str | None,
    root: Path | None,
    cache: Path | None,
    skipped: SkippedImages,
    batch_size: int,
    given: dict[str, Any],
    asked: dict[str, Any],
) -> NearCopies:
    from bayesvlm.data.cache import FeatureCache
    from bayesvlm.experiments.feature_store import FeatureStore
    from bayesvlm.experiments.near_copies import of_places
    from bayesvlm.retrieval.places import find_places
    from bayesvlm.vlm import BayesVLM

    places = find_places(images, skipped, root)
    if posterior is None:
        remark(f"no --posterior is given: images are compared by {DEFAULT}, which knows emoji and little else")
    vlm = BayesVLM.from_pretrained(posterior or DEFAULT, **given)
    store = FeatureStore(vlm, FeatureCache(cache))
    return of_places(vlm, places, store, skipped, model=posterior or DEFAULT, batch_size=batch_size, **asked)


def _of_index(
    place: str,
    images: list[str] | None,
    root: Path | None,
    device: str | None,
    model: str | None,
    skipped: SkippedImages,
    asked: dict[str, Any],
) -> NearCopies:
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.experiments.near_copies import of_index
    from bayesvlm.retrieval import Index
    from bayesvlm.retrieval.places import find_places

    if model is not None:
        raise BayesVLMError("--model has no use with --index: nothing is encoded; leave it out.")
    found = Index.open(place, device=device)
    copies = of_index(found, find_places(images, skipped, root) if images else None, **asked)
    again = f"`bayesvlm index {' '.join(map(shlex.quote, images or ['photos/']))} --out {shlex.quote(place)}`"
    if copies.missing:
        count = len(copies.missing)
        remark(
            f"{count:,} images are not in {place} as they are now and were not compared; {again} brings it up to date"
        )
    if copies.gone:
        remark(f"{copies.gone:,} rows of {place} have no file any more and were not compared; {again} removes them")
    return copies


# What was found -------------------------------------------------------------------------------------------------------


def _as_json(copies: NearCopies) -> dict[str, Any]:
    found = copies.found
    groups = []
    for group in found:
        members = [
            {
                **_told(copies.pictures[copy.id]),
                "cosine": copy.mean,
                "std": copy.std,
                "interval": list(copy.interval(found.level)),
                "p_similar": copy.p_similar,
            }
            for copy in group.copies
        ]
        groups.append({"keep": _told(copies.pictures[group.id]), "copies": members})
    return {
        "model": copies.model,
        "images": found.items,
        "near_copies": found.copies,
        "bytes": copies.bytes,
        "similarity": found.similarity,
        "level": found.level,
        "by": found.by,
        "missing": list(copies.missing),
        "gone": copies.gone,
        "groups": groups,
    }


def _told(picture: Picture) -> dict[str, Any]:
    return {"image": picture.name, "width": picture.width, "height": picture.height, "bytes": picture.bytes}


def _as_table(copies: NearCopies) -> Any:
    from bayesvlm.report.near_copies import told_size

    found, rows = copies.found, []
    for number, group in enumerate(found[:SHOWN], start=1):
        rows.append([str(number), _called(group.id), "keep", "", "", told_size(copies.pictures[group.id])])
        for copy in group.copies[:_COPIES]:
            low, high = copy.interval(found.level)
            interval = f"{low:.3f}..{high:.3f}"
            size = told_size(copies.pictures[copy.id])
            rows.append(["", _called(copy.id), f"{copy.mean:.3f}", interval, f"{100 * copy.p_similar:.0f} %", size])
        if len(group.copies) > _COPIES:
            rows.append(["", f"and {len(group.copies) - _COPIES:,} more", "", "", "", ""])
    title = "" if len(found) <= SHOWN else f"The {SHOWN} largest of {len(found):,} groups"
    columns = ["", "image", "cosine", f"{100 * found.level:.6g} %", f"at least {found.similarity:g}", "size"]
    return table(title, columns, rows, texts=2)


def _called(name: str) -> str:
    """A picture as it is seen from here."""
    return name.removeprefix(os.getcwd().rstrip(os.sep) + os.sep)


def _write_groups(out: Path, copies: NearCopies, result: dict[str, Any]) -> None:
    from bayesvlm.report.writing import write_whole

    if out.suffix == ".json":
        write_whole(out, (json.dumps(result, indent=1) + "\n").encode())
        return
    text = io.StringIO()
    columns = ["group", "image", "role", "cosine", "std", "low", "high", "p_similar", "width", "height", "bytes"]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    for number, group in enumerate(result["groups"], start=1):
        writer.writerow({"group": number, "role": "keep", **group["keep"]})
        for copy in group["copies"]:
            low, high = copy["interval"]
            numbers = {name: value for name, value in copy.items() if name != "interval"}
            writer.writerow({"group": number, "role": "copy", **numbers, "low": low, "high": high})
    write_whole(out, text.getvalue().encode())


def _write_page(
    page: Path,
    copies: NearCopies,
    root: Path | None,
    images: list[str],
    index: str | None,
    asked: dict[str, Any],
    made_from: dict[str, Any],
) -> None:
    from bayesvlm.experiments.thumbnails import of_pictures
    from bayesvlm.report.near_copies import shown_names, write_near_copies

    words = [*images, *([] if index is None else ["--index", index])]
    options = [word for name, value in asked.items() for word in (f"--{name}", str(value))]
    command = shlex.join(["bayesvlm", "dedupe", *words, *options, "--html", str(page)])
    wanted = [copies.pictures[name] for name in shown_names(copies)]
    small = of_pictures([(each.name, each.path, each.source) for each in wanted], root)
    write_near_copies(copies, small, page, command, made_from)
