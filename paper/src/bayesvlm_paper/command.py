"""`bayesvlm reproduce`: the paper's tables and figures, and what holds of its claims."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesvlm.cli.options import Cache, Device, Json, Overwrite, Root
from bayesvlm.cli.output import emit, remark
from bayesvlm.core.errors import BayesVLMError

if TYPE_CHECKING:
    from bayesvlm_paper.item import Item, Reproduced
    from bayesvlm_paper.lab import Lab

ALL = "all"
OUT, VIEWS, SEEDS = Path("reproduction"), 64, 2


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
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for results, pictures and the page.")] = OUT,
    views: Annotated[int, typer.Option(min=0, help="How many crops of an image vote; 0 for no voting.")] = VIEWS,
    seeds: Annotated[int, typer.Option(min=1, help="How often active learning is repeated.")] = SEEDS,
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

    By default on the embedded world, where small models of emoji stand for the paper's. The numbers of each item are
    kept as NAME.json and not measured again from the same inputs, so an interrupted run goes on; those from other
    models or data are replaced with --overwrite only. `all` ends in one page to read.

    Examples:

        bayesvlm reproduce --list

        bayesvlm reproduce uq_results_clip

        bayesvlm reproduce all

        bayesvlm reproduce uq_results_clip --published --dry-run

        bayesvlm reproduce pseudo_count_results --model posterior/ --data data/my-images --validation data/my-val
    """
    from bayesvlm.data.cache import FeatureCache
    from bayesvlm.experiments.earlier import Earlier
    from bayesvlm_paper import items, preview, terminal
    from bayesvlm_paper.lab import Lab
    from bayesvlm_paper.plans import Plan

    if listed:
        every = items.ITEMS.values()
        facts = {each.name: {"title": each.title, "question": each.question, "part": each.part} for each in every}
        emit(facts, terminal.items_table(list(every)), as_json)
        return
    if name is None:
        raise BayesVLMError("Name a table or figure, or all; `bayesvlm reproduce --list` shows what there is.")
    chosen = list(items.ITEMS.values()) if name == ALL else [items.find_item(name)]
    _check_used(chosen, data, pairs)
    given = _words(
        {"--model": models, "--data": data, "--pairs": pairs, "--validation": validation, "--published": published}
        | {"--views": None if views == VIEWS else str(views), "--seeds": None if seeds == SEEDS else seeds}
        | {"--out": None if out == OUT else out, "--root": root, "--device": device},
    )
    if not dry_run:
        _check_earlier(name, chosen, given, out, overwrite)
    earlier = Earlier.below(out / "kept") if again else Earlier()
    base = Lab(Plan(), out, FeatureCache(cache), root, device, views, seeds, remark, earlier)

    def lab(item: Item) -> Lab:
        plan = item.paper if published else item.world
        return base.on(plan.with_given(models or (), data or (), validation, pairs or ()))

    if dry_run:
        previews = [preview.preview(item, lab(item)) for item in chosen]
        emit({"items": [each.to_json() for each in previews]}, terminal.preview_text(previews), as_json)
        return
    try:
        found = _run(chosen, lab, given, again)
    except KeyboardInterrupt:
        remark(f"interrupted: what is finished is kept in {out}; give the same command again to go on")
        raise typer.Exit(130) from None
    where = "the paper's own models and data" if published else "the embedded world"
    if models or data or pairs or validation:
        where = "models and data of your choice"
    _report(name, found, out, where, _command(name, given), as_json)
    if any(each.finding is None for each in found):
        raise typer.Exit(1)


def _check_earlier(name: str, items: Sequence[Item], given: Sequence[str], out: Path, overwrite: bool) -> None:
    """Refuse a folder that cannot be written, or that holds what the same items came to on something else."""
    from bayesvlm.artifacts.files import check_writable
    from bayesvlm.report.page import check_replaces
    from bayesvlm_paper.item import kept_record
    from bayesvlm_paper.page import MADE_FROM

    check_writable(out)
    for item in items:
        earlier = kept_record(item, out)
        if earlier is None or overwrite:
            continue
        if _question(earlier["command"]) != _question(_command(item.name, given)):
            raise BayesVLMError(
                f"{out / item.name}.json is what came out of `{earlier['command']}` and would be replaced; name "
                "another folder with --out, or replace it with --overwrite."
            )
    check_replaces(out / _page_name(name), MADE_FROM, overwrite)


def _question(command: str) -> list[str]:
    """The words of a command, without where things are and what it runs on."""
    words = shlex.split(command)
    apart = [place for place, word in enumerate(words) if word in ("--out", "--root", "--device")]
    return [word for place, word in enumerate(words) if place not in apart and place - 1 not in apart]


def _check_used(items: Sequence[Item], data: list[str] | None, pairs: list[str] | None) -> None:
    """Refuse an option that the one item asked for has no use for."""
    if len(items) > 1:
        return
    plan = items[0].world
    if data and not (plan.sets or plan.domains):
        raise BayesVLMError(f"{items[0].name} tests on no set; leave --data out.")
    if pairs and not plan.pairs:
        raise BayesVLMError(f"{items[0].name} reads no image-text pairs; leave --pairs out.")


def _words(options: Mapping[str, Any]) -> list[str]:
    """The options as they were given, so that the command of one item can be shown beside it.

    Args:
        options: option -> its value, its values, or whether it is set; None where it is as usual.
    """
    words: list[str] = []
    for option, given in options.items():
        values = given if isinstance(given, list) else [given] if given else []
        words += [option] if given is True else [word for value in values for word in (option, str(value))]
    return words


def _command(name: str, given: Sequence[str]) -> str:
    return shlex.join(["bayesvlm", "reproduce", name, *given])


def _run(items: Sequence[Item], lab: Callable[[Item], Lab], given: Sequence[str], again: bool) -> list[Reproduced]:
    """One after the other; of several, one that fails does not take the others with it."""
    from bayesvlm_paper import item as running

    found: list[Reproduced] = []
    for number, item in enumerate(items, start=1):
        if len(items) > 1:
            remark(f"{number:2d}/{len(items)}  {item.name}: {item.question}")
        command = _command(item.name, given)
        try:
            found.append(running.reproduce(item, lab(item), command, again))
        except Exception as error:  # a mistake in one item must not cost the others
            if len(items) == 1:
                raise
            reason = str(error) if isinstance(error, BayesVLMError) else f"a mistake of the program, {error!r}"
            remark(f"       could not be run: {reason}")
            found.append(running.Reproduced(item, command, {}, None, 0.0, reason))
    return found


def _page_name(name: str) -> str:
    return "report.html" if name == ALL else f"{name}.html"


def _report(name: str, found: Sequence[Reproduced], out: Path, where: str, command: str, as_json: bool) -> None:
    from bayesvlm.report.writing import write_whole
    from bayesvlm_paper.page import claims_markdown, save_figures, write_reproduction
    from bayesvlm_paper.terminal import claims_table, finding_text

    if name == ALL:
        write_whole(out / "claims.md", claims_markdown(found).encode())
    pictures = [path for each in found for path in save_figures(each, out)]
    page = write_reproduction(found, out / _page_name(name), where, command)
    told = {each.item.name: each.finding and {**each.finding.to_json(), "numbers": each.numbers} for each in found}
    result = {
        "items": told,
        "errors": {each.item.name: each.error for each in found if each.error},
        "pictures": [str(path) for path in pictures],
        "report": str(page),
    }
    text = [] if name == ALL else finding_text(found[0])
    emit(result, [*text, claims_table(found), f"results and pictures are in {out}; the page is {page}"], as_json)
