"""`bayesvlm index`: photos into an index that is searched with doubt, and kept up to date; what it holds."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from bayesvlm.cli.engine import Actors, Address, CpusPerActor, Engine, GpusPerActor, ray_options
from bayesvlm.cli.options import Device, Json, Model, OwnTemplates, QueryTemplate, Root, Strict
from bayesvlm.cli.output import emit, remark, table

if TYPE_CHECKING:
    from rich.table import Table

    from bayesvlm.retrieval import Calibration, Index
    from bayesvlm.retrieval.syncing import Encode, Synced

DEFAULT = "emoji-clip"
"""The posterior of an index that is made without one: there on every machine, and at home in emoji alone."""
_BUILD = "build"


class DefaultGroup(TyperGroup):
    """`bayesvlm index photos/` is `bayesvlm index build photos/`, and has its help."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Options of the default command are not looked for among the group's own."""
        return super().parse_args(ctx, self._whole(args))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """What begins with no command is meant for the default one."""
        return super().resolve_command(ctx, self._whole(args))

    def _whole(self, args: list[str]) -> list[str]:
        return [_BUILD, *args] if args and args[0] not in self.commands else args


index = typer.Typer(
    name="index",
    help="Put images into an index to search with doubt, and keep it up to date with their folder.",
    cls=DefaultGroup,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

Place = Annotated[str, typer.Argument(help="An index: a folder, or a URL such as s3://bucket/index.", metavar="INDEX")]


@index.command(_BUILD, short_help="Make an index, or bring one up to date; the word `build` may be left out.")
def build(
    context: typer.Context,
    images: Annotated[
        list[str],
        typer.Argument(
            help="Folders of images, image files, tables that list some, or sets that `eval --list` shows.",
            show_default=False,
        ),
    ],
    out: Annotated[
        str, typer.Option("--out", "-o", help="The index: a folder, or a URL such as s3://bucket/index.")
    ] = "index",
    posterior: Annotated[
        str | None,
        typer.Option(
            "--posterior",
            "-p",
            help="A saved posterior (folder or Hub id), or an embedded model. An index that is there has its own. "
            f"[default: {DEFAULT}]",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Make the index anew, without anything that is in it.")
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Images that go through the model at once.")] = 64,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Processes that read images; 0 uses threads. [default: by number and cores]"),
    ] = None,
    engine: Engine = "local",
    address: Address = None,
    actors: Actors = None,
    gpus_per_actor: GpusPerActor = None,
    cpus_per_actor: CpusPerActor = None,
    root: Root = None,
    model: Model = None,
    device: Device = None,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Make an index of images, or bring one up to date with their folder.

    The same command again encodes images that are new or hold something else than before, and removes the rows of
    those that are gone; the others are not read. What cannot be read is named and left out; where it could be read
    before, its row stays as it was. After an interruption it goes on: what was encoded up to the last twenty seconds
    is there.

    An image's id is its path. Its subfolder is kept as `album`, a table's other columns under their names, and the
    class of an image of a set as `label`: `bayesvlm search --where` asks for them.

    Others: `bayesvlm index info INDEX`, `bayesvlm index compact INDEX`, `bayesvlm index calibrate INDEX QUERIES`.

    Examples:

        bayesvlm index photos/ --posterior posterior/ --out index/

        bayesvlm index openmoji-black --out index/

        bayesvlm index photos.csv scans/ --out s3://bucket/index --engine ray --address auto
    """
    from bayesvlm.engine import cluster, ray_encoder
    from bayesvlm.images.files import SkippedImages
    from bayesvlm.retrieval.places import find_places
    from bayesvlm.retrieval.syncing import Synced, sync

    asked_of_ray = ray_options(engine, address, actors, gpus_per_actor, cpus_per_actor, device, workers)
    skipped = SkippedImages(strict)
    begun = time.monotonic()
    places = find_places(images, skipped, root)
    found, made = _opened(out, posterior, overwrite, model, device)
    encode: Encode | None = None
    if asked_of_ray is not None:
        resources = context.with_resource(cluster(asked_of_ray))
        encode = context.with_resource(ray_encoder(found.vlm.encoder("images"), resources))
    done = Synced(skipped=skipped)
    try:
        sync(found, places, batch_size=batch_size, workers=workers, encode=encode, skipped=skipped, found=done)
    except KeyboardInterrupt:
        remark(f"interrupted: {len(found):,} images are in {out}; give the same command again to go on from there")
        raise typer.Exit(130) from None
    finally:
        if skipped.reasons:
            remark(str(skipped))
    _check_filled(found, made, done)
    counts = {name: getattr(done, name) for name in ("added", "changed", "updated", "unchanged", "deleted")}
    result = {
        "index": out,
        "made": made,
        "rows": len(found),
        **counts,
        "model": found.info()["model"],
        "seconds": time.monotonic() - begun,
        "skipped": skipped.reasons,
    }
    how = f"`bayesvlm search {out} {_quoted(_to_ask(found))}` asks it"
    emit(result, [_sentence(result, done), how], as_json)


@index.command()
def info(place: Place, as_json: Json = False) -> None:
    """Show what an index holds: images, model, columns, size, where its images come from.

    Example:

        bayesvlm index info index/
    """
    from bayesvlm.retrieval import Index

    found = Index.look(place)
    sources = _sources(found)
    result = {**found.info(), "sources": sources}
    emit(result, _info_text(result, found), as_json)


@index.command()
def compact(place: Place, as_json: Json = False) -> None:
    """Put many small files together, and make an index of vectors where there are a hundred thousand rows or more.

    `bayesvlm index` does so at its end; it is of use after many small additions in Python.

    Example:

        bayesvlm index compact index/
    """
    from bayesvlm.retrieval import Index

    found = Index.look(place)
    before = found.info()
    found.compact()
    after = found.info()
    kept = ("fragments", "bytes", "vector_index")
    result = {"index": place, "rows": after["rows"], **{f"{name}_before": before[name] for name in kept}}
    result |= {name: after[name] for name in kept}
    text = f"{place}: {before['fragments']} files of {after['rows']:,} rows are now {after['fragments']}"
    emit(result, text, as_json)


@index.command()
def calibrate(
    place: Place,
    queries: Annotated[
        Path,
        typer.Argument(help="A csv or jsonl with the columns query and id (or another column of the index)."),
    ],
    error: Annotated[
        float, typer.Option(help="How often a query that has a match may be told that nothing matches.")
    ] = 0.05,
    template: QueryTemplate = None,
    templates: OwnTemplates = None,
    model: Model = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Learn from queries whose answers are known when to say that nothing here matches.

    The file has a row per query and image that answers it: the query's text, and the id of the image, which is its path
    (its file's name will do where only one is called so); an empty id says that nothing here answers it. In the place
    of id a column of the index serves, such as label: all images with that value answer it. Without a second column
    there are no answers to learn from, and what is kept promises nothing.

    With --template or --templates searches of this index ask in these prompts from then on, unless told otherwise.

    Examples:

        bayesvlm index calibrate index/ queries.csv --error 0.05

        bayesvlm search index/ "a red car" --abstain
    """
    from bayesvlm.cli.options import check_shares
    from bayesvlm.cli.prompts import templates_given
    from bayesvlm.cli.queries import read_relevant
    from bayesvlm.retrieval import Index

    check_shares({"--error": error})
    asked_in = templates_given(template, templates, ()) or None
    found = Index.open(place, model=model, device=device)
    texts, relevant = read_relevant(queries, found)
    made = found.calibrate(texts, relevant, error=error, templates=asked_in).calibration
    assert made is not None
    result = {"index": place, **made.summary()}
    known = next((text for text, of in zip(texts, relevant or [], strict=False) if of), texts[0])
    how = f"`bayesvlm search {place} {_quoted(known)} --abstain` asks by it"
    emit(result, [f"{place}: {_promise(made)}", how], as_json)


def _opened(
    out: str, posterior: str | None, overwrite: bool, model: str | None, device: str | None
) -> tuple[Index, bool]:
    """The index that is there, or a new one; whether it is new."""
    from bayesvlm.retrieval import Index
    from bayesvlm.retrieval.store import FILES, IndexExistsError, Store
    from bayesvlm.vlm import BayesVLM

    there = FILES in Store(out).tables() and not overwrite
    if there and posterior is None:
        return Index.open(out, model=model, device=device), False
    if posterior is None:
        remark(f"no --posterior is given: the index is of {DEFAULT}, which knows emoji and little else")
    vlm = BayesVLM.from_pretrained(posterior or DEFAULT, model=model, device=device)
    if there:
        return Index.open(out, vlm), False
    try:
        return Index.create(out, vlm, overwrite=overwrite), True
    except IndexExistsError:  # the same command beside this one was quicker
        remark(f"{out} was made by another process meanwhile; these images go into it")
        return Index.open(out, None if posterior is None else vlm, model=model, device=device), False


def _check_filled(found: Index, made: bool, done: Synced) -> None:
    """Say so where nothing could be read."""
    from bayesvlm.core.errors import BayesVLMError

    if made and done.skipped.reasons and not len(found):
        raise BayesVLMError(
            f"None of {len(done.skipped)} image(s) could be read; the reasons are above. {found.place} is empty."
        )


def _sentence(result: dict[str, Any], done: Synced) -> str:
    from bayesvlm.progress import duration

    parts = [f"{done.added:,} added"]
    for name, words in (("changed", "encoded again"), ("updated", "updated"), ("deleted", "removed")):
        if count := getattr(done, name):
            parts.append(f"{count:,} {words}")
    if done.unchanged:
        parts.append(f"{done.unchanged:,} as they were")
    pace = f"{duration(result['seconds'])}"
    return f"{result['index']} holds {result['rows']:,} images of {result['model']}: {', '.join(parts)} ({pace})"


def _sources(found: Index) -> dict[str, int]:
    """How many rows come from where."""
    from collections import Counter

    from bayesvlm.retrieval.places import SOURCE

    if SOURCE not in found.columns:
        return {}
    return dict(Counter(row[SOURCE] or "" for row in found.rows(columns=[SOURCE])).most_common())


def _info_text(result: dict[str, Any], found: Index) -> list[str | Table]:
    from bayesvlm.retrieval.places import KEPT_OF_FILES

    vectors = result["vector_index"]
    columns = [name for name in result["columns"] if name not in KEPT_OF_FILES]
    rows = [
        ["rows", f"{result['rows']:,} {result['tower']}s"],
        ["model", result["model"]],
        ["posterior", result["posterior"][:16]],
        ["width", f"{result['d']} of embeddings, {result['p']} of activations"],
        ["columns", ", ".join(f"{name} ({found.types[name]})" for name in columns) or "none beside id and path"],
        ["size", f"{result['bytes'] / 1e6:,.1f} MB in {result['fragments']} files"],
        ["index of vectors", _vectors(vectors)],
        [
            "calibration",
            _promise(found.calibration) if found.calibration else "none; `bayesvlm index calibrate` makes one",
        ],
    ]
    rows += [["from", f"{source or 'Python'}: {count:,}"] for source, count in list(result["sources"].items())[:10]]
    return [table(result["place"], ["", ""], rows, texts=2)]


def _to_ask(found: Index) -> str:
    """Words to search for: a label, where the index has some."""
    from bayesvlm.retrieval.places import LABEL

    labels = (row[LABEL] for row in found.rows(columns=[LABEL])) if LABEL in found.columns else ()
    return next((str(label) for label in labels if label), "a red car")


def _promise(calibration: Calibration) -> str:
    """What a calibration says of searches, in a sentence."""
    from bayesvlm.report.axes import percent

    error, count = f"{100 * calibration.error:g} %", f"{len(calibration.matched):,}"
    if not calibration.labelled:
        return (
            f"without answers nothing is promised: of queries like these {count}, the {error} least self-consistent or "
            "most uncertain are turned away"
        )
    answered = calibration.false_answers()
    which = "made by taking the matches of these away" if calibration.counted_made else "given"
    rest = f", and of {calibration.counted:,} without one, {which}, {percent(answered or 0)} are answered all the same"
    rest = "" if answered is None else rest
    return (
        f"of queries that have a match {error} at most are turned away{rest}; learnt from {count} queries on "
        f"{calibration.rows:,} images"
    )


def _quoted(text: str) -> str:
    """A text as a shell takes it."""
    return shlex.quote(text) if set(text) & set('"$`\\!') else f'"{text}"'


def _vectors(vectors: dict[str, Any] | None) -> str:
    if vectors is None:
        return "none: every row is looked at, which takes milliseconds below 100,000 rows"
    waiting = vectors["unindexed_rows"]
    return f"{vectors['kind']}" + (f", without {waiting:,} rows added since" if waiting else "")
