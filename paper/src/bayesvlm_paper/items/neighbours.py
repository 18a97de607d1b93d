"""Which distance finds the pool images nearest to the target: expected cosine against Wasserstein."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bayesvlm.active import Epig, Strategy
from bayesvlm.active.targeting import Metric
from bayesvlm.evaluation import Estimate
from bayesvlm.experiments.adaptation import Run, advantage
from bayesvlm.report.blocks import Table
from bayesvlm_paper import catalogue, labelling
from bayesvlm_paper.exhibits import Lines, Panel, Series
from bayesvlm_paper.finding import Finding, Numbers
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import CLIP_BASE, Plan, same_model
from bayesvlm_paper.printed import published_curves
from bayesvlm_paper.wording import counted, from_to, signed, with_error

NAME = "results_knn_method_ablation"
STRATEGIES: tuple[Strategy, ...] = ("targeted-bald", "epig")
DISTANCES: tuple[Metric, ...] = ("cosine", "wasserstein")
EPIG = Epig(gamma=1e-4, beta=10.0, text="drawn")
"""As in the paper's ablation."""
CLEAR = 0.75
"""One of the two ahead beyond a standard error at more than this share of all points would be a clear trend."""
GAINED = "nats gained by wasserstein"
PANELS = {
    ("officehome", "Art"): "OH-Art",
    ("officehome", "Clipart"): "OH-ClipArt",
    ("officehome", "Product"): "OH-Product",
    ("imagenet-variants", "R"): "IN-R",
}
"""Domains and target -> the paper's panel. The one it calls IN-Sketch cannot be of ImageNet-Sketch: see `oddities`."""
METRICS = {"nlpd": ("NLPD", "NLPD (nats)", 1.0), "balanced_accuracy": ("ACC", "balanced accuracy (%)", 100.0)}
"""Ours -> the paper's, the axis, what to multiply by."""

Differences = Mapping[tuple[str, str, int], Estimate]  # target, strategy, labels -> nats gained by Wasserstein


def measure(lab: Lab) -> Numbers:
    """Targeted BALD and EPIG with both distances, all else equal."""
    numbers: Numbers = {}
    gained = []
    for target in labelling.targets(lab):
        made = {distance: labelling.experiment(lab, target, STRATEGIES, distance, EPIG) for distance in DISTANCES}
        runs = {distance: adaptation.run() for distance, adaptation in made.items()}
        numbers[target] = {
            distance: {
                "protocol": labelling.protocol_numbers(made[distance]),
                "curves": labelling.curve_numbers(runs[distance]),
            }
            for distance in DISTANCES
        }
        gained += [
            [target, strategy, budget, *labelling.pair_of(gap(runs, strategy, budget))]
            for strategy in STRATEGIES
            for budget in sorted(runs["cosine"][0].points)[1:]
        ]
    return {**numbers, GAINED: gained}


def gap(found: Mapping[Metric, Sequence[Run]], strategy: str, budget: int) -> Estimate:
    """How much lower the NLPD is with Wasserstein than with cosine, paired by seed."""
    renamed = [
        replace(run, strategy=metric) for metric, runs in found.items() for run in runs if run.strategy == strategy
    ]
    return advantage(renamed, "wasserstein", "cosine", budget)


def judgement(differences: Differences) -> catalogue.Judgement:
    """A clear trend would have one of the two ahead nearly everywhere, and by more than chance explains.

    A point without a standard error counts for neither; where there is none with one, nothing can be said.
    """
    values = [each.value for each in differences.values()]
    ahead = sum(each.value > each.standard_error for each in differences.values())  # nothing is above NaN
    behind = sum(-each.value > each.standard_error for each in differences.values())
    (target, strategy, budget), largest = max(differences.items(), key=lambda found: abs(found[1].value))
    extremes = (
        f"Wasserstein gains {from_to(values)} nats over cosine, the largest difference being "
        f"{with_error(largest, signs=True)} with {counted(budget, 'label')} by {labelling.NAMES[strategy]} on {target}"
    )
    if not _has_errors(differences):
        return None, f"one seed has no standard error; {extremes}"
    return max(ahead, behind) <= CLEAR * len(values), (
        f"by more than a standard error Wasserstein is lower in NLPD at {ahead} and cosine at {behind} of "
        f"{counted(len(values), 'point')} (a clear trend: more than {100 * CLEAR:.0f} % of all for one of them); "
        f"{extremes}"
    )


def _has_errors(differences: Differences) -> bool:
    return not all(math.isnan(each.standard_error) for each in differences.values())


def panels(target: str, found: Mapping[str, Any]) -> list[Panel]:
    """NLPD and accuracy: Wasserstein solid, cosine dashed, as in the paper."""

    def series(distance: str, strategy: str, points: Mapping[str, labelling.Pair], scale: float) -> Series:
        shown = {int(count): labelling.estimate_of(pair) for count, pair in points.items() if count != "0"}
        errors = [scale * each.standard_error for each in shown.values()]
        band = None if any(map(math.isnan, errors)) else errors
        values = [scale * each.value for each in shown.values()]
        return Series(_name(strategy, distance), list(shown), values, band, distance == "cosine")

    drawn = []
    for metric, (_, axis, scale) in METRICS.items():
        curves = {distance: found[distance]["curves"][metric] for distance in DISTANCES}
        lines = [series(each, name, points, scale) for each in DISTANCES for name, points in curves[each].items()]
        drawn.append(Panel(target, "labels", axis, lines))
    return drawn


def published_panels(domains: str | None, target: str) -> list[Panel]:
    """The paper's, beside ours, in the same colours and dashes."""
    panel = PANELS.get((domains or "", target))
    curves = published_curves(NAME)["series"] if panel else []
    drawn = []
    for printed, _, scale in METRICS.values():
        series = [
            Series(
                _name({"BALD": "targeted-bald", "EPIG": "epig"}[each["method"]], each["distance"].lower()),
                each["x"],
                [scale * value for value in each["y"]],
                dashed=each["distance"] == "cosine",
            )
            for each in curves
            if (each["panel"], each["metric"]) == (panel, printed)
        ]
        axis = "accuracy (%)" if printed == "ACC" else "NLPD (nats)"
        drawn += [Panel(f"{panel}, printed", "labels", axis, series)] if series else []
    return drawn


def _name(strategy: str, distance: str) -> str:
    return f"{labelling.NAMES[strategy]}, {distance.capitalize() if distance == 'wasserstein' else distance}"


def table(differences: Differences) -> Table:
    """Nats gained by Wasserstein over cosine; empty where a target has no such number of labels."""
    counts = sorted({budget for _, _, budget in differences})
    cells = {place: with_error(found, signs=True) for place, found in differences.items()}
    rows = [
        [f"{target}, {labelling.NAMES[strategy]}", *(cells.get((target, strategy, count), "") for count in counts)]
        for target, strategy in dict.fromkeys((target, strategy) for target, strategy, _ in differences)
    ]
    errors = ", with standard errors" if _has_errors(differences) else ""
    caption = f"Nats of NLPD that Wasserstein gains over cosine, paired by seed{errors}."
    return Table(["labels", *map(str, counts)], rows, caption=caption)


def tell(numbers: Mapping[str, Any]) -> Finding:
    """Whether the distance matters."""
    plan = Plan.of(numbers)
    differences = {
        (target, strategy, budget): labelling.estimate_of(pair) for target, strategy, budget, *pair in numbers[GAINED]
    }
    drawn: list[Panel] = []
    for target in plan.targets:
        drawn += panels(target, numbers[target])
        drawn += published_panels(plan.domains, target) if same_model(plan.model, CLIP_BASE) else []
    seeds = labelling.about_seeds(numbers[plan.targets[0]]["cosine"]["protocol"])
    lines = Lines(
        drawn,
        f"{plan.model}, gamma 1e-4 and beta 10. Solid: Wasserstein; dashed: cosine. {seeds}",
        "NLPD and balanced accuracy against labels for targeted BALD and EPIG with two distances.",
    )
    said = []
    for strategy in STRATEGIES:
        own = [-each.value for (_, of, _), each in differences.items() if of == strategy]
        said.append(f"that of {labelling.NAMES[strategy]} by {signed(sum(own) / len(own))} ({from_to(own)})")
    answer = (
        f"With {plan.model}, Wasserstein in the place of cosine changes the NLPD, on average over the numbers of "
        f"labels, {' and '.join(said)} nats."
    )
    claims = catalogue.judged(NAME, judgement(differences))
    return Finding(answer, claims, [lines, table(differences)], labelling.remarks(NAME, plan))


ITEMS = {NAME: (measure, tell)}
