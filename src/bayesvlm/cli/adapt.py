"""`bayesvlm adapt`: choose, fine-tune, measure, for every strategy, seed and budget."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesvlm.cli.options import Cache, Device, Json, Model, Overwrite, Root, StrictPosterior, Template, Templates
from bayesvlm.cli.output import emit, remark, table

if TYPE_CHECKING:
    from bayesvlm.experiments.adaptation import Task
    from bayesvlm.experiments.feature_store import FeatureStore

WORLD = "world"


def adapt(
    posterior: Annotated[str, typer.Argument(help="A saved posterior (folder or Hub id), or an embedded model.")],
    target: Annotated[
        list[str] | None,
        typer.Option("--target", "-t", help="The domain to get better at; repeatable. [default: openmoji-black]"),
    ] = None,
    domains: Annotated[
        str,
        typer.Option(help="The collection of domains: world, officehome, imagenet-variants, or a folder of them."),
    ] = WORLD,
    classes: Annotated[
        str | None,
        typer.Option(
            help="Classes of the embedded world: kinds (its eight groups), a group such as food-drink (its concepts), "
            "or food-drink/kinds (its subgroups). [default: kinds]"
        ),
    ] = None,
    strategies: Annotated[str, typer.Option(help="Strategies to compare, separated by commas, or all.")] = "all",
    budgets: Annotated[
        str | None, typer.Option(help="Numbers of labels to measure at. [default: 10,25,50,75,100,150,200]")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How often each strategy is repeated.")] = 5,
    lr: Annotated[float, typer.Option("--lr", help="Learning rate of the fine-tuning.")] = 1e-4,
    epochs: Annotated[int, typer.Option(help="Epochs of fine-tuning; the best one is kept.")] = 100,
    gamma: Annotated[float | None, typer.Option(help="Learning rate of EPIG's online steps. [default: 0.001]")] = None,
    beta: Annotated[
        float | None, typer.Option(help="Weight of a chosen image in EPIG's online steps. [default: 100]")
    ] = None,
    search: Annotated[bool, typer.Option("--search", help="Find EPIG's gamma and beta on validation images.")] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the runs and the page.")] = Path("adaptation"),
    template: Template = None,
    templates: Templates = None,
    overwrite: Overwrite = False,
    model: Model = None,
    root: Root = None,
    cache: Cache = None,
    device: Device = None,
    strict: StrictPosterior = False,
    as_json: Json = False,
) -> None:
    """Find out which images are worth labelling: every strategy, several seeds, curves with error bands.

    The pool has images of all domains, the target is one of them. By default the domains are the drawing styles of the
    embedded world. A run that is in the folder already, from the same inputs, is not done again, so an interrupted
    experiment goes on, and may get more targets, strategies, budgets and seeds. The page of another experiment is
    replaced with --overwrite only; runs never are.

    Examples:

        bayesvlm adapt emoji-clip --target openmoji-black --target emojione-black

        bayesvlm adapt posterior/ --domains officehome --target Clipart --lr 1e-5 --search

        bayesvlm adapt posterior/ --domains ./seasons --target winter --strategies epig,targeted-random,random
    """
    from bayesvlm.active import STRATEGIES, Epig
    from bayesvlm.artifacts.files import check_writable
    from bayesvlm.cli.prompts import templates_given
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.data.cache import FeatureCache
    from bayesvlm.experiments.adaptation import Adaptation, Schedule
    from bayesvlm.experiments.feature_store import FeatureStore
    from bayesvlm.images.files import describe_skipped
    from bayesvlm.report.adaptation import verdicts, write_adaptation
    from bayesvlm.report.page import check_replaces
    from bayesvlm.vlm import BayesVLM

    named = STRATEGIES if strategies == "all" else tuple(name.strip() for name in strategies.split(","))
    unknown = [name for name in named if name not in STRATEGIES]
    if unknown:
        raise BayesVLMError(f"--strategies {strategies!r}: {unknown[0]!r} is not one of {', '.join(STRATEGIES)}.")
    options = Epig()
    if gamma is not None:
        options = replace(options, gamma=gamma)
    if beta is not None:
        options = replace(options, beta=beta)
    if search and (gamma is not None or beta is not None):
        raise BayesVLMError("--search finds gamma and beta; leave --gamma and --beta out.")
    if search and "epig" not in named:
        raise BayesVLMError("--search is for EPIG's gamma and beta; add epig to --strategies, or leave --search out.")
    prompts = templates_given(template, templates)
    tasks = _tasks(domains, target, classes, root, prompts, strict)
    schedule = Schedule(
        strategies=named,  # type: ignore[arg-type]
        budgets=tasks.budgets if budgets is None else _budgets(budgets),
        seeds=tuple(range(seeds)),
        epig=options,
        lr=lr,
        epochs=epochs,
    )
    asked = {
        "command": "adapt",
        "model": posterior,
        "domains": f"{domains}, {classes or 'all classes'}",
        "prompts": prompts[0] if isinstance(prompts, list) and len(prompts) == 1 else prompts,
        "fine-tuning": f"lr {lr:g}, {epochs} epochs",
        "EPIG": "searched" if search else f"gamma {options.gamma:g}, beta {options.beta:g}",
        "targets": list(tasks.targets),
        "strategies": list(schedule.strategies),
        "budgets": list(schedule.budgets),
        "seeds": list(schedule.seeds),
    }
    check_replaces(check_writable(out) / "report.html", asked, overwrite)
    vlm = BayesVLM.from_pretrained(posterior, model=model, device=device, strict=strict)
    _ = vlm.factors  # fine-tuning extends them: a model without is refused before anything is encoded
    encoder = FeatureStore(vlm, FeatureCache(cache))
    found: dict[str, Any] = {}
    answers: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for name in tasks.targets:
        task = tasks.make(encoder, name)
        if task.skipped and not found:  # all targets have the same pool
            remark(describe_skipped(task.skipped))
        run = Adaptation(vlm, task, schedule, out / name)
        if search:
            tried = run.search()
            best = min(tried, key=lambda pair: tried[pair])
            remark(f"{name}: validation NLPD {tried[best]:.3f} with gamma {best[0]:g}, beta {best[1]:g}")
            chosen = replace(schedule, epig=replace(options, gamma=best[0], beta=best[1]))
            run = Adaptation(vlm, task, chosen, out / name)
        found[name], counts[name] = run.run(), len(task.classes)
        answers[name] = run.before_and_after(found[name])
    command = shlex.join(["bayesvlm", *sys.argv[1:]])
    page = write_adaptation(found, answers, counts, out / "report.html", posterior, command, asked)
    result = {
        "model": posterior,
        "targets": {
            style: [{"strategy": r.strategy, "seed": r.seed, "points": dict(r.points)} for r in runs]
            for style, runs in found.items()
        },
        "report": str(page),
    }
    text: list[Any] = []
    for style, runs in found.items():
        text += [_curves(style, runs), *verdicts(runs)]
    emit(result, [*text, f"runs and pictures are in {out}; the page is {page}"], as_json)


@dataclass(frozen=True)
class _Tasks:
    targets: tuple[str, ...]
    budgets: tuple[int, ...]
    make: Callable[[FeatureStore, str], Task]


def _tasks(
    domains: str,
    target: list[str] | None,
    classes: str | None,
    root: Path | None,
    templates: list[str] | str | None,
    strict: bool,
) -> _Tasks:
    """What was asked for, checked before anything is loaded."""
    from bayesvlm.core.errors import BayesVLMError, check_choice
    from bayesvlm.experiments.adaptation import BUDGETS
    from bayesvlm.experiments.domains import domain_task, find_domains

    if domains != WORLD:
        if classes is not None:
            raise BayesVLMError(f"--classes is for the embedded world; {domains} has its own, so leave it out.")
        known = find_domains(domains, root)
        options: dict[str, Any] = {"root": root, "templates": templates, "strict": strict}
        asked = _asked(target, known.targets, tuple(known.sets))
        return _Tasks(asked, known.budgets, lambda encoder, name: domain_task(encoder, known, name, **options))
    if templates is not None:
        raise BayesVLMError("--template is not for the embedded world, whose prompts are its names; leave it out.")
    from bayesvlm.embedded import world

    world("What is adapted to by default")
    from bayesvlm_world.domains import CLASSES, KINDS, STYLES, world_task

    wanted = classes or KINDS
    check_choice("--classes", wanted, CLASSES)
    asked = _asked(target, ("openmoji-black",), STYLES)
    return _Tasks(asked, BUDGETS, lambda encoder, name: world_task(encoder, name, wanted))


def _asked(target: list[str] | None, usual: tuple[str, ...], all_targets: tuple[str, ...]) -> tuple[str, ...]:
    from bayesvlm.core.errors import check_choice

    for name in target or ():
        check_choice("--target", name, all_targets)
    return tuple(dict.fromkeys(target or usual))


def _budgets(listed: str) -> tuple[int, ...]:
    from bayesvlm.core.errors import BayesVLMError

    try:
        found = sorted({int(part) for part in listed.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise BayesVLMError(f"--budgets {listed!r}; expected whole numbers of at least 1, with commas, such as 50,100.")
    return tuple(found)


def _curves(style: str, runs: Any) -> Any:
    """NLPD and balanced accuracy of every strategy at every budget."""
    from bayesvlm.experiments.adaptation import curves

    nlpd, right = curves(runs, "nlpd"), curves(runs, "balanced_accuracy")
    columns = sorted(next(iter(nlpd.values())))
    rows = [
        [strategy, *(f"{points[n].value:.2f} / {100 * right[strategy][n].value:.1f}" for n in columns)]
        for strategy, points in nlpd.items()
    ]
    return table(f"{style}: NLPD / balanced accuracy %", ["labels", *map(str, columns)], rows)
