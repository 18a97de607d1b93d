"""`bayesvlm adapt`: choose, fine-tune, measure, for every strategy, seed and budget."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from bayesvlm.cli.options import Cache, Device, Json
from bayesvlm.cli.output import emit, remark, table


def adapt(
    model: Annotated[str, typer.Argument(help="An embedded model, or a saved posterior of a model that knows emoji.")],
    target: Annotated[
        list[str] | None,
        typer.Option("--target", "-t", help="The style to get better at; repeatable. [default: openmoji-black]"),
    ] = None,
    group: Annotated[str, typer.Option(help="The classes: a Unicode group.")] = "animals-nature",
    strategies: Annotated[str, typer.Option(help="Separated by commas, or all.")] = "all",
    budgets: Annotated[str, typer.Option(help="Labels, separated by commas.")] = "10,25,50,75,100,150,200",
    seeds: Annotated[int, typer.Option(min=1, help="Repeats.")] = 5,
    lr: Annotated[float, typer.Option("--lr", help="Of the fine-tuning.")] = 1e-4,
    epochs: Annotated[int, typer.Option(help="Of the fine-tuning; the best on validation images is kept.")] = 100,
    gamma: Annotated[float | None, typer.Option(help="EPIG: rate of its online gradient steps.")] = None,
    beta: Annotated[float | None, typer.Option(help="EPIG: weight of a chosen image in its online factors.")] = None,
    search: Annotated[
        bool, typer.Option("--search", help="Find gamma and beta by validation NLPD, on the paper's grid.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for runs and the page.")] = Path("adaptation"),
    cache: Cache = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Find out which images are worth labelling: every strategy, several seeds, curves with error bands.

    The drawing styles of the embedded world are the domains: the pool has all of them, the target is one. A run that is
    in the folder already, from the same inputs, is not done again, so an interrupted experiment goes on.

    Examples:

        bayesvlm adapt emoji-clip-colour --target openmoji-black --target emojione-black

        bayesvlm adapt emoji-clip --strategies epig,targeted-random,random --budgets 25,50 --seeds 2
    """
    from bayesvlm.active import STRATEGIES, Epig
    from bayesvlm.core.errors import BayesVLMError, check_choice
    from bayesvlm.data.cache import FeatureCache
    from bayesvlm.experiments.adaptation import Adaptation, Protocol
    from bayesvlm.experiments.domains import STYLES, world_task
    from bayesvlm.experiments.encoding import Encoder
    from bayesvlm.report.adaptation import verdicts, write_adaptation
    from bayesvlm.vlm import BayesVLM
    from bayesvlm.world import GROUPS

    named = STRATEGIES if strategies == "all" else tuple(name.strip() for name in strategies.split(","))
    unknown = [name for name in named if name not in STRATEGIES]
    if unknown:
        raise BayesVLMError(f"--strategies {strategies!r}: {unknown[0]!r} is not one of {', '.join(STRATEGIES)}.")
    options = Epig()
    if gamma is not None:
        options = replace(options, gamma=gamma)
    if beta is not None:
        options = replace(options, beta=beta)
    protocol = Protocol(
        strategies=named,  # type: ignore[arg-type]
        budgets=_budgets(budgets),
        seeds=tuple(range(seeds)),
        epig=options,
        lr=lr,
        epochs=epochs,
    )
    styles = target or ["openmoji-black"]
    for style in styles:
        check_choice("--target", style, STYLES)
    check_choice("--group", group, GROUPS)
    if search and (gamma is not None or beta is not None):
        raise BayesVLMError("--search finds gamma and beta; leave --gamma and --beta out.")
    vlm = BayesVLM.from_pretrained(model, device=device)
    encoder = Encoder(vlm, FeatureCache(cache))
    found: dict[str, Any] = {}
    answers: dict[str, Any] = {}
    for style in styles:
        task = world_task(encoder, style, group)
        if search and "epig" in named:
            tried = Adaptation(vlm, task, protocol).search()
            best = min(tried, key=lambda pair: tried[pair])
            remark(f"{style}: validation NLPD {tried[best]:.3f} with gamma {best[0]:g}, beta {best[1]:g}")
            protocol = replace(protocol, epig=replace(options, gamma=best[0], beta=best[1]))
        run = Adaptation(vlm, task, protocol, out / style)
        found[style] = run.run()
        answers[style] = run.before_and_after(found[style])
    command = shlex.join(["bayesvlm", *sys.argv[1:]])
    page = write_adaptation(found, answers, len(task.classes), out / "report.html", model, command)
    result = {
        "model": model,
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


def _budgets(listed: str) -> tuple[int, ...]:
    from bayesvlm.core.errors import BayesVLMError

    try:
        found = sorted({int(part) for part in listed.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise BayesVLMError(f"--budgets {listed!r}: whole numbers of at least 1, separated by commas, such as 50,100.")
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
