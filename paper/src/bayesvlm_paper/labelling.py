"""The experiment behind the items on active learning: done once for all of them, and its numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from bayesvlm.active import Epig, Strategy
from bayesvlm.active.targeting import Metric
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.evaluation import Estimate
from bayesvlm.experiments.adaptation import Adaptation, Run, Schedule, Task, curves
from bayesvlm.experiments.zero_shot import place
from bayesvlm_paper import catalogue
from bayesvlm_paper.architectures import ARCHITECTURES
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import Plan, same_model
from bayesvlm_paper.wording import counted

STRATEGIES: tuple[Strategy, ...] = ("epig", "targeted-bald", "targeted-entropy", "entropy", "targeted-random", "random")
"""The paper's six; its BALD is the targeted one."""
NAMES = {name: name.replace("-", " ").replace("epig", "EPIG").replace("bald", "BALD") for name in map(str, STRATEGIES)}
"""As tables call them."""
BUDGETS = (10, 25, 50, 100, 200)
METRICS = ("balanced_accuracy", "nlpd", "ece")
PAPER_LR = 1e-5
PAPER_EPIG = Epig(text="drawn")

Pair = Sequence[float | None]  # a mean and its standard error over the seeds, which one seed has none of


def targets(lab: Lab) -> tuple[str, ...]:
    """The domains to get better at."""
    if not lab.plan.targets:
        raise BayesVLMError("There is no domain to get better at; name a collection of domains with --data.")
    return lab.plan.targets


def experiment(
    lab: Lab, target: str, strategies: Sequence[Strategy], metric: Metric = "cosine", epig: Epig = PAPER_EPIG
) -> Adaptation:
    """Strategies, for a target; runs are kept below the results, by model and target.

    The learning rate is the paper's for its models, and ten times as large for others, such as the small embedded ones.
    """
    model = lab.models[0]
    task = lab.task(model, target)
    own = any(same_model(model, shape.model) for shape in ARCHITECTURES.values())
    rate: dict[str, Any] = {"lr": PAPER_LR} if own else {}
    seeds = tuple(range(lab.seeds))
    schedule = Schedule(
        strategies=tuple(strategies), budgets=budgets(task), seeds=seeds, metric=metric, epig=epig, **rate
    )
    lab.say(f"adapt     {model} to {target}: {', '.join(strategies)} ({metric})")
    folder = place(lab.kept / "runs", model, target).with_suffix("")
    return Adaptation(lab.vlm(model), task, schedule, folder, lab.earlier)


def budgets(task: Task) -> tuple[int, ...]:
    """Those of `BUDGETS` that the pool can serve; the whole of a pool smaller than all of them."""
    return tuple(count for count in BUDGETS if count <= len(task.pool)) or (len(task.pool),)


# Numbers --------------------------------------------------------------------------------------------------------------


def pair_of(estimate: Estimate) -> Pair:
    """Mean and standard error for json."""
    return estimate.value, None if math.isnan(estimate.standard_error) else estimate.standard_error


def estimate_of(pair: Pair) -> Estimate:
    """What `pair_of` was made from."""
    return Estimate(*(math.nan if each is None else each for each in pair))


def protocol_numbers(run: Adaptation) -> dict[str, Any]:
    """How it was done, for json."""
    kept = ("budgets", "seeds", "draws", "metric", "lr", "epochs", "batch", "weight_decay")
    sizes = {"pool": len(run.task.pool), "target": len(run.task.target), "validation": len(run.task.validation)}
    return {**{name: getattr(run.schedule, name) for name in kept}, "epig": asdict(run.schedule.epig), "images": sizes}


def curve_numbers(runs: Sequence[Run]) -> dict[str, Any]:
    """Metric -> strategy -> labels -> mean and standard error, for every metric that was measured."""
    return {
        metric: {
            strategy: {str(count): pair_of(found) for count, found in points.items()}
            for strategy, points in curves(runs, metric).items()
        }
        for metric in (*METRICS, "accuracy", "plain_nlpd", "validation_nlpd")
    }


# Words ----------------------------------------------------------------------------------------------------------------


def about_seeds(schedule: Mapping[str, Any]) -> str:
    """How far the standard errors are to be trusted."""
    count = len(schedule["seeds"])
    if count == 1:
        return "One seed, which has no standard error."
    crude = ": a crude measure from so few" if count < 5 else ""
    return f"Mean and standard error over {counted(count, 'seed')}{crude}."


def remarks(name: str, plan: Plan) -> list[str]:
    """What stands for the paper's model and domains where these are others, and what an item says in any case."""
    published = catalogue.CATALOGUE[name]["paper"]["models"][0]
    family = next(family for family, shape in ARCHITECTURES.items() if shape.model == published)
    model = [] if same_model(plan.model, published) else [f"{plan.model} stands for {family}."]
    return [*model, *([_WORLD] if plan.domains == "world" else []), *catalogue.remarks(name)]


_WORLD = (
    "The world's drawing styles stand for the domains of Office-Home and ImageNet, its eight Unicode groups for their "
    "classes; the target is half of a style that was never trained on. docs/active.md has five styles and five seeds."
)
