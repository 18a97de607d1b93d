"""What is worth labelling: scores on a target domain against the number of labels, for the paper's six strategies.

The other items on active learning take their experiment from here, so that a run is done once for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from bayesvlm.active import Epig, Strategy
from bayesvlm.active.targeting import Metric
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.evaluation import Estimate
from bayesvlm.experiments.adaptation import Adaptation, Protocol, Run, Task, advantage, curves
from bayesvlm.experiments.zero_shot import place
from bayesvlm_paper.findings import Claim, Exhibit, Finding, Grid, LearningCurves
from bayesvlm_paper.item import Item
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import (
    CLIP_BASE,
    CLIP_HUGE,
    CLIP_LARGE,
    LAION,
    SIGLIP_BASE,
    Plan,
    same_model,
)
from bayesvlm_paper.wording import counted, not_on, signed, with_error

STRATEGIES: tuple[Strategy, ...] = (
    "epig",
    "targeted-bald",
    "targeted-entropy",
    "entropy",
    "targeted-random",
    "random",
)
"""The paper's six; its BALD is the targeted one."""
NAMES = {
    "epig": "EPIG",
    "targeted-bald": "targeted BALD",
    "targeted-entropy": "targeted entropy",
    "entropy": "entropy",
    "targeted-random": "targeted random",
    "random": "random",
}
BUDGETS = (10, 25, 50, 100, 200)
JUDGED = (50, 100, 200)
METRICS = ("balanced_accuracy", "nlpd", "ece")
PAPER_LR = 1e-5
PAPER_EPIG = Epig(text="drawn")


# The experiment -------------------------------------------------------------------------------------------------------


def targets(lab: Lab) -> tuple[str, ...]:
    """The domains to get better at."""
    if not lab.plan.targets:
        raise BayesVLMError("There is no domain to get better at; name a collection of domains with --data.")
    return lab.plan.targets


def experiment(
    lab: Lab,
    model: str,
    target: str,
    strategies: Sequence[Strategy],
    metric: Metric = "cosine",
    epig: Epig | None = None,
) -> Adaptation:
    """Strategies, for a target; runs are kept below the results, by model and target.

    The learning rate is the paper's for its models, and ten times as large for others, such as the small embedded ones.
    """
    own = any(same_model(model, each) for each in (CLIP_BASE, CLIP_LARGE, CLIP_HUGE, SIGLIP_BASE))
    task = lab.task(model, target)
    protocol = Protocol(
        strategies=tuple(strategies),
        budgets=budgets(task),
        seeds=tuple(range(lab.seeds)),
        metric=metric,
        epig=epig or PAPER_EPIG,
    )
    protocol = replace(protocol, lr=PAPER_LR) if own else protocol
    lab.say(f"adapt     {model} to {target}: {', '.join(strategies)} ({metric})")
    folder = place(lab.kept / "runs", model, target).with_suffix("")
    return Adaptation(lab.vlm(model), task, protocol, folder, lab.earlier)


def budgets(task: Task) -> tuple[int, ...]:
    """Those of `BUDGETS` that the pool can serve; the whole of a pool smaller than all of them."""
    return tuple(count for count in BUDGETS if count <= len(task.pool)) or (len(task.pool),)


def judged(runs: Sequence[Run]) -> list[int]:
    """Numbers of labels that claims are judged at: the paper's, or all but none where there are none of these."""
    own = sorted(runs[0].points)
    return [count for count in own if count in JUDGED] or own[1:]


def plain_numbers(estimate: Estimate) -> tuple[float, float | None]:
    """Mean and standard error for json: one seed has none."""
    return estimate.value, None if math.isnan(estimate.standard_error) else estimate.standard_error


def protocol_numbers(run: Adaptation) -> dict[str, Any]:
    """How it was done, for json."""
    kept = ("budgets", "seeds", "draws", "metric", "lr", "epochs", "batch", "weight_decay")
    sizes = {"pool": len(run.task.pool), "target": len(run.task.target), "validation": len(run.task.validation)}
    return {**{name: getattr(run.protocol, name) for name in kept}, "epig": asdict(run.protocol.epig), "images": sizes}


def curve_numbers(runs: Sequence[Run]) -> dict[str, Any]:
    """Metric -> strategy -> labels -> mean and standard error, for every metric that was measured."""
    return {
        metric: {
            strategy: {str(count): plain_numbers(found) for count, found in points.items()}
            for strategy, points in curves(runs, metric).items()
        }
        for metric in (*METRICS, "accuracy", "plain_nlpd", "validation_nlpd")
    }


# What the runs say ----------------------------------------------------------------------------------------------------


def below_claim(found: Mapping[str, Sequence[Run]], text: str) -> Claim:
    """EPIG and BALD against random and entropy: the mean NLPD of both below both, at every size and target."""
    places, failing, more = 0, [], 0
    least = {(own, over): math.inf for own in ("epig", "targeted-bald") for over in ("random", "entropy")}
    for target, runs in found.items():
        for count in judged(runs):
            gaps = {pair: advantage(runs, *pair, count).value for pair in least}
            least = {pair: min(least[pair], gap) for pair, gap in gaps.items()}
            places += 1
            more += all(advantage(runs, *pair, count, "balanced_accuracy").value < 0 for pair in least)
            if min(gaps.values()) <= 0:
                failing.append(f"{target} with {counted(count, 'label')}")
    leads = ", ".join(f"{NAMES[own]} over {over} {signed(gap)}" for (own, over), gap in least.items())
    figure = (
        f"NLPD of both below both at {places - len(failing)} of {places} sizes on {', '.join(found)}{not_on(failing)}; "
        f"least gains in nats: {leads}; balanced accuracy of both above both at {more} of {places}"
    )
    return Claim.judged(text, not failing, figure)


def entropy_claim(found: Mapping[str, Sequence[Run]], text: str) -> Claim:
    """EPIG against targeted entropy: "consistently" is a lower mean NLPD at every size, on every target."""
    told, holds = [], True
    for target, runs in found.items():
        gaps = {count: advantage(runs, "epig", "targeted-entropy", count) for count in judged(runs)}
        holds = holds and min(gap.value for gap in gaps.values()) > 0
        sizes = [f"{with_error(gap, signs=True)} with {counted(count, 'label')}" for count, gap in gaps.items()]
        told.append(f"{target}: {', '.join(sizes)}")
    return Claim.judged(text, holds, f"nats gained, {'; '.join(told)}")


def answer(model: str, found: Mapping[str, Sequence[Run]]) -> str:
    """Where every strategy ends, and what EPIG gains over chance that looks at the target."""
    said = []
    for target, runs in found.items():
        most = judged(runs)[-1]
        ends = {strategy: points[most].value for strategy, points in curves(runs).items()}
        start = curves(runs)["random"][0].value
        gap = advantage(runs, "epig", "targeted-random", most)
        others = ", ".join(f"{NAMES[each]} {end:.2f}" for each, end in ends.items() if each != "epig")
        right = {each: points[most].value for each, points in curves(runs, "balanced_accuracy").items()}
        said.append(
            f"on {target} {counted(most, 'label')} chosen by EPIG take the NLPD from {start:.2f} to {ends['epig']:.2f} "
            f"({others}); over targeted random, which labels neighbours of random target images, EPIG gains "
            f"{with_error(gap, signs=True)} nats, and its balanced accuracy is {100 * right['epig']:.1f} % against "
            f"{100 * right['targeted-random']:.1f} % ({100 * right['random']:.1f} % with random)"
        )
    return f"With {model}, {'; '.join(said)}."


def table(target: str, runs: Sequence[Run]) -> Grid:
    """Every strategy with the most labels, and what it gains over the two that choose by chance."""
    most = judged(runs)[-1]
    scores = {metric: curves(runs, metric) for metric in METRICS}
    lowest = min(points[most].value for points in scores["nlpd"].values())
    rows: list[list[str]] = []
    best: list[tuple[int, int]] = []
    for strategy, name in NAMES.items():
        if scores["nlpd"][strategy][most].value == lowest:
            best.append((len(rows), 2))
        rows.append(
            [
                name,
                with_error(scores["balanced_accuracy"][strategy][most], 1, 100),
                with_error(scores["nlpd"][strategy][most]),
                with_error(scores["ece"][strategy][most], 1, 100),
                *(
                    "" if strategy == over else with_error(advantage(runs, strategy, over, most), signs=True)
                    for over in ("random", "targeted-random")
                ),
            ]
        )
    columns = ["", "balanced accuracy (%)", "NLPD", "ECE (%)", "over random", "over targeted random"]
    caption = (
        f"{target} with {counted(most, 'label')}. The last columns: nats of NLPD gained, paired by seed. "
        f"{about_seeds(len({run.seed for run in runs}))} "
        "Bold: the lowest NLPD."
    )
    return Grid(columns, rows, caption, best)


def about_seeds(count: int) -> str:
    """How far the standard errors are to be trusted."""
    if count == 1:
        return "One seed, which has no standard error."
    crude = ": a crude measure from so few" if count < 5 else ""
    return f"Mean and standard error over {counted(count, 'seed')}{crude}."


def exhibits(target: str, runs: Sequence[Run]) -> list[Exhibit]:
    """Curves and table of a target."""
    numbers = curve_numbers(runs)
    drawn = LearningCurves(
        {metric: numbers[metric] for metric in METRICS},
        f"{target}: scores of the Bayesian prediction against the number of labels. "
        f"{about_seeds(len({run.seed for run in runs}))}",
        f"Balanced accuracy, NLPD and ECE on {target} against the number of labels for six strategies.",
    )
    return [drawn, table(target, runs)]


def learning_curves(lab: Lab, family: str, published: str, note: str = "") -> Finding:
    """Choose, fine-tune and measure, for every strategy, seed and number of labels.

    Args:
        family: what the paper calls the model.
        published: the model it is.
        note: a remark of its own.
    """
    texts = (
        f"EPIG and BALD outperform Random and Entropy across subset sizes and target domains ({family}).",
        f"EPIG consistently has lower NLPD than targeted entropy ({family}).",
    )
    if not lab.models:
        reason = f"no larger model was trained on the embedded world, to stand for {family}; name one with --model"
        return Finding(f"Not run: {reason}.", [Claim(text, "cannot be tested here", reason) for text in texts])
    model = lab.models[0]
    found, numbers = {}, {}
    for target in targets(lab):
        adaptation = experiment(lab, model, target, STRATEGIES)
        runs = found[target] = adaptation.run()
        numbers[target] = {
            "protocol": protocol_numbers(adaptation),
            "curves": curve_numbers(runs),
            "nats gained": {
                over: {
                    strategy: {
                        str(count): plain_numbers(advantage(runs, strategy, over, count))
                        for count in adaptation.protocol.budgets
                    }
                    for strategy in STRATEGIES
                    if strategy != over
                }
                for over in ("random", "targeted-random")
            },
        }
    claims = [below_claim(found, texts[0]), entropy_claim(found, texts[1])]
    shown = [each for target, runs in found.items() for each in exhibits(target, runs)]
    stands = "" if same_model(model, published) else f"{model} stands for {family}."
    said = filter(None, (stands, note, *domain_remarks(lab), *_PROTOCOL))
    return Finding(answer(model, found), claims, shown, numbers, tuple(said))


def domain_remarks(lab: Lab) -> tuple[str, ...]:
    """What stands for the paper's domains, or which of them are left out."""
    return {"world": (_WORLD,), "officehome": (_VARIANTS,)}.get(lab.plan.domains or "", ())


_PROTOCOL = (
    "Gamma and beta of EPIG are this software's defaults (1e-3 and 100); the paper finds them by validation, which "
    "`bayesvlm adapt --search` does. The learning rate is the paper's 1e-5 for its models and 1e-4 for others.",
    "The paper's weighted accuracy is, by what it prints, plain accuracy; shown here is the mean over the classes, and "
    "the plain one is among the numbers.",
)
_WORLD = (
    "The world's drawing styles stand for the domains of Office-Home and ImageNet, its eight Unicode groups for their "
    "classes; the target is half of a style that was never trained on. docs/active.md has five styles and five seeds."
)
_VARIANTS = "The paper's runs on ImageNet-R and ImageNet-Sketch are a second plan, with the domains imagenet-variants."


def world_targets(*models: str) -> Plan:
    """Embedded models that are to learn a drawing style."""
    return Plan(models, validation="validation", pairs=("train",), domains="world", targets=("openmoji-black",))


def paper_targets(*models: str, at: tuple[str, ...] = ("Art", "Clipart", "Product")) -> Plan:
    """The paper's models on Office-Home."""
    return Plan(models, validation="imagenet-100", pairs=(LAION,), domains="officehome", targets=at)


def _item(name: str, family: str, world: Plan, published: str, note: str = "") -> Item:
    return Item(
        name,
        f"Learning curves, {family}",
        f"Can the posterior of {family} tell which images are worth a label?",
        "active learning",
        world,
        paper_targets(published),
        partial(learning_curves, family=family, published=published, note=note),
    )


ITEMS = (
    _item(
        "results_activelearning",
        "CLIP-Base",
        world_targets("emoji-clip"),
        CLIP_BASE,
        "The paper does not name the model of this figure; CLIP-Base is taken, as the others are in its appendix.",
    ),
    _item("results_activelearning_clip_huge", "CLIP-Huge", world_targets(), CLIP_HUGE),
    _item("results_activelearning_siglip_base", "SigLIP-Base", world_targets("emoji-siglip"), SIGLIP_BASE),
)
