"""`bayesvlm reproduce`: the paper's tables and figures, and what holds of its claims."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesvlm.cli.options import Cache, Device, Json, Overwrite, Root
from bayesvlm.cli.output import emit, remark, table

if TYPE_CHECKING:
    from bayesvlm_paper.catalogue import Done, Item, Lab
    from bayesvlm_paper.preview import Preview

ALL = "all"


def reproduce(
    name: Annotated[str | None, typer.Argument(help="A table or figure, by its name in --list; or all.")] = None,
    models: Annotated[
        list[str] | None,
        typer.Option("--model", "-m", help="A posterior or model to use instead of the item's own; repeatable."),
    ] = None,
    data: Annotated[
        list[str] | None, typer.Option("--data", "-d", help="A set to test on, as for `bayesvlm eval`; repeatable.")
    ] = None,
    pairs: Annotated[
        list[str] | None,
        typer.Option(
            "--pairs",
            help="Image-text pairs, a folder or OWNER/NAME:SPLIT; repeatable: the training data, then a proxy for it.",
        ),
    ] = None,
    validation: Annotated[str | None, typer.Option(help="A labelled set to find tau and the temperature on.")] = None,
    published: Annotated[
        bool, typer.Option("--published", help="Use the paper's own models and data, not the embedded world.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be loaded, from where, how large, how long it takes.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for results, pictures and the page.")] = Path(
        "reproduction"
    ),
    views: Annotated[int, typer.Option(min=0, help="How many crops of an image vote; 0 for no voting.")] = 64,
    seeds: Annotated[int, typer.Option(min=1, help="How often active learning is repeated.")] = 2,
    again: Annotated[
        bool, typer.Option("--again", help="Run again what is asked for, even where its result is kept.")
    ] = False,
    overwrite: Overwrite = False,
    listed: Annotated[bool, typer.Option("--list", help="Show the tables and figures there are.")] = False,
    root: Root = None,
    cache: Cache = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Run a table or figure of the paper, or all of them: ours beside the printed values, and what holds.

    By default on the embedded world, where small models of emoji stand for the paper's. Each item is kept as NAME.json
    and not run again from the same inputs, so an interrupted run goes on; a result from other models or data is
    replaced with --overwrite only. `all` ends in one page to read.

    Examples:

        bayesvlm reproduce --list

        bayesvlm reproduce uq_results_clip

        bayesvlm reproduce all

        bayesvlm reproduce uq_results_clip --published --dry-run

        bayesvlm reproduce pseudo_count_results --model posterior/ --data data/my-images --validation data/my-val
    """
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.data.cache import FeatureCache
    from bayesvlm.experiments.earlier import Earlier
    from bayesvlm_paper.catalogue import ITEMS, Lab, Plan, find_item

    if listed:
        _list(as_json)
        return
    if name is None:
        raise BayesVLMError("Name a table or figure, or all; `bayesvlm reproduce --list` shows what there is.")
    chosen = list(ITEMS.values()) if name == ALL else [find_item(name)]
    _check_used(chosen, data, pairs)
    given = _given(models, data, pairs, validation, published, views, seeds, out, root, device)
    if not dry_run:
        _check_earlier(name, chosen, given, out, overwrite)

    earlier = Earlier.below(out / "kept") if again else Earlier()
    base = Lab(Plan(), out, FeatureCache(cache), root, device, views, seeds, remark, earlier)

    def lab(item: Item) -> Lab:
        plan = item.paper if published else item.world
        return base.on(plan.with_given(models or (), data or (), validation, pairs or ()))

    if dry_run:
        _preview(chosen, lab, as_json)
        return
    try:
        done = _run(chosen, lab, given, again)
    except KeyboardInterrupt:
        remark(f"interrupted: what is finished is kept in {out}; give the same command again to go on")
        raise typer.Exit(130) from None
    where = "the paper's own models and data" if published else "the embedded world"
    if models or data or pairs or validation:
        where = "models and data of your choice"
    _report(name, done, out, where, shlex.join(["bayesvlm", "reproduce", name, *given]), as_json)
    if any(each.finding is None for each in done):
        raise typer.Exit(1)


def _check_earlier(name: str, items: list[Item], given: list[str], out: Path, overwrite: bool) -> None:
    """Refuse a folder that cannot be written, or that holds what the same items came to on something else."""
    from bayesvlm.artifacts.files import check_writable
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.report.page import check_replaces
    from bayesvlm_paper.item import earlier_command
    from bayesvlm_paper.page import MADE_FROM

    check_writable(out)
    for item in items:
        earlier, asked = earlier_command(item, out), ["bayesvlm", "reproduce", item.name, *given]
        if earlier is not None and _question(shlex.split(earlier)) != _question(asked) and not overwrite:
            raise BayesVLMError(
                f"{out / item.name}.json is what came out of `{earlier}` and would be replaced; name another folder "
                "with --out, or replace it with --overwrite."
            )
    check_replaces(out / ("report.html" if name == ALL else f"{name}.html"), MADE_FROM, overwrite)


def _question(words: list[str]) -> list[str]:
    """The words of a command, without where things are and what it runs on."""
    apart = [place for place, word in enumerate(words) if word in ("--out", "--root", "--device")]
    return [word for place, word in enumerate(words) if place not in apart and place - 1 not in apart]


def _check_used(items: list[Item], data: list[str] | None, pairs: list[str] | None) -> None:
    """Refuse an option that the one item asked for has no use for."""
    from bayesvlm.core.errors import BayesVLMError

    if len(items) > 1:
        return
    plan = items[0].world
    if data and not (plan.sets or plan.domains):
        raise BayesVLMError(f"{items[0].name} tests on no set; leave --data out.")
    if pairs and not plan.pairs:
        raise BayesVLMError(f"{items[0].name} reads no image-text pairs; leave --pairs out.")


def _given(
    models: list[str] | None,
    data: list[str] | None,
    pairs: list[str] | None,
    validation: str | None,
    published: bool,
    views: int,
    seeds: int,
    out: Path,
    root: Path | None,
    device: str | None,
) -> list[str]:
    """The options as they were given, so that the command of one item can be shown beside it."""
    options = [("--model", models), ("--data", data), ("--pairs", pairs)]
    words = [word for option, values in options for value in values or () for word in (option, value)]
    words += ["--validation", validation] if validation else []
    words += ["--published"] if published else []
    words += ["--views", str(views)] if views != 64 else []
    words += ["--seeds", str(seeds)] if seeds != 2 else []
    words += ["--out", str(out)] if out != Path("reproduction") else []
    words += ["--root", str(root)] if root else []
    return words + (["--device", device] if device else [])


def _run(items: list[Item], lab: Callable[[Item], Lab], given: list[str], again: bool) -> list[Done]:
    """One after the other; of several, one that fails does not take the others with it."""
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm_paper.catalogue import Done
    from bayesvlm_paper.catalogue import reproduce as run

    done: list[Done] = []
    for number, item in enumerate(items, start=1):
        if len(items) > 1:
            remark(f"{number:2d}/{len(items)}  {item.name}: {item.question}")
        command = shlex.join(["bayesvlm", "reproduce", item.name, *given])
        try:
            done.append(run(item, lab(item), command, again))
        except Exception as error:  # a mistake in one item must not cost the others
            if len(items) == 1:
                raise
            reason = str(error) if isinstance(error, BayesVLMError) else f"a mistake of the program, {error!r}"
            remark(f"       could not be run: {reason}")
            done.append(Done(item, command, None, 0.0, reason))
    return done


def _report(name: str, done: list[Done], out: Path, where: str, command: str, as_json: bool) -> None:
    from bayesvlm.report.writing import write_whole
    from bayesvlm_paper.page import claims_markdown, save_figures, write_reproduction

    if name == ALL:
        write_whole(out / "claims.md", claims_markdown(done).encode())
    pictures = [path for each in done for path in save_figures(each, out)]
    page = write_reproduction(done, out / ("report.html" if name == ALL else f"{name}.html"), where, command)
    result = {
        "items": {each.item.name: None if each.finding is None else each.finding.to_json() for each in done},
        "errors": {each.item.name: each.error for each in done if each.error},
        "pictures": [str(path) for path in pictures],
        "report": str(page),
    }
    text: list[Any] = _single(done[0]) if name != ALL else []
    text.append(_claims(done))
    text.append(f"results and pictures are in {out}; the page is {page}")
    emit(result, text, as_json)


def _single(done: Done) -> list[Any]:
    from bayesvlm_paper.findings import Grid

    assert done.finding is not None
    text: list[Any] = [done.item.question, "", done.finding.answer, ""]
    for exhibit in done.finding.exhibits:
        if isinstance(exhibit, Grid):
            best = {(int(row), int(column)) for row, column in exhibit.best}
            rows = [
                [f"{cell}*" if (row, column) in best else cell for column, cell in enumerate(cells)]
                for row, cells in enumerate(exhibit.rows)
            ]
            text.append(table(exhibit.caption.replace("Bold:", "*"), list(exhibit.columns), rows))
    return text + list(done.finding.remarks)


def _claims(done: list[Done]) -> Any:
    rows = [
        [claim.text, claim.verdict, claim.figure]
        for each in done
        if each.finding is not None
        for claim in each.finding.claims
    ]
    return table("claims, checked", ["claim", "verdict here", "figures"], rows, texts=3)


def _preview(items: list[Item], lab: Callable[[Item], Lab], as_json: bool) -> None:
    from bayesvlm_paper.item import last_seconds
    from bayesvlm_paper.preview import preview

    found = [preview(item, lab(item), last_seconds(item, lab(item).out)) for item in items]
    known = {(load.what, load.name): load for each in found for load in each.loads}
    rows = [
        [load.what, load.name, load.where, "" if load.count is None else f"{load.count:,}", _size(load.size)]
        for load in known.values()
    ]
    text: list[Any] = [table("would be loaded", ["what", "name", "from where", "count", "size"], rows, texts=3)]
    times = ["item", "images to encode", "time to encode", "last whole run"]
    text.append(table("would take", times, [_time(each) for each in found]))
    text += list(dict.fromkeys(each.how for each in found if each.how != "nothing to encode"))
    absent = [load.name for load in known.values() if not load.here]
    text.append(f"not on this machine: {', '.join(absent)}" if absent else "everything is on this machine")
    emit({"items": [each.to_json() for each in found]}, text, as_json)


def _time(found: Preview) -> list[str]:
    from bayesvlm.progress import duration

    passes = sum(load.encode for load in found.loads)
    encoding = "" if not passes else "unknown" if found.seconds is None else duration(found.seconds)
    return [found.item, found.to_encode, encoding, duration(found.last) if found.last else ""]


def _size(size: int | None) -> str:
    if size is None:
        return "unknown"
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _list(as_json: bool) -> None:
    from bayesvlm_paper.catalogue import ITEMS

    result = {item.name: {"title": item.title, "question": item.question, "part": item.part} for item in ITEMS.values()}
    rows = [[item.name, item.title, item.question] for item in ITEMS.values()]
    emit(result, table("tables and figures", ["name", "title", "question"], rows, texts=3), as_json)
