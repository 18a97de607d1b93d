"""How many negatives the curvature needs: tr(B) from one to five contrast batches of three sizes, and its level.

The paper shows the first relative to five batches of the same size, which cannot tell whether the size itself matters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import TOWERS, Tower
from bayesvlm.report.blocks import Table
from bayesvlm_paper import traces
from bayesvlm_paper.catalogue import Judgement, judged
from bayesvlm_paper.exhibits import Lines, Panel, Series
from bayesvlm_paper.finding import Finding, Numbers
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import Plan
from bayesvlm_paper.wording import each_of

NAME = "ablation_batch_size"
BATCHES = 5
TRIALS = 5
LEAST = 6 * 32
"""Pairs below which the smallest of the three sizes would hold fewer than two."""
NEAR = 0.02
"""What "near one" is taken for, where the mean over trials can tell that much: the paper's largest batch is as near."""


def batch_sizes(pairs: int) -> tuple[int, int, int]:
    """The largest power of two in a sixth of the pairs, at most the paper's 32768; a quarter, a sixteenth of that."""
    largest = min(traces.PAPER_NEGATIVES, traces.power_of_two(pairs // 6))
    return largest // 16, largest // 4, largest


def batch_traces(pairs: traces.EmbeddedPairs, tower: Tower, order: Tensor, size: int) -> list[float]:  # [N]
    """tr(B) per pair of the first 1, 2, ..., 5 batches of an order, each contrasted within itself."""
    batches = [order[batch * size : (batch + 1) * size] for batch in range(BATCHES)]
    sums = torch.tensor([pairs.trace_B(tower, batch, batch) for batch in batches], dtype=torch.float64).cumsum(0)
    return [float(total) / ((place + 1) * size) for place, total in enumerate(sums)]


def measure(lab: Lab) -> Numbers:
    """tr(B) per pair with every size and number of batches, relative to five: mean and standard deviation."""
    pairs = traces.embedded_pairs(lab, LEAST)
    count, sizes = len(pairs), batch_sizes(len(pairs))
    orders = traces.orders(pairs, TRIALS)
    ratio: Numbers = {tower: {} for tower in TOWERS}
    level: Numbers = {tower: {} for tower in TOWERS}
    fitted = min(count, traces.PAPER_NEGATIVES)
    for tower in TOWERS:
        for size in sizes:
            trials = [batch_traces(pairs, tower, order, size) for order in orders]
            level[tower][str(size)], ratio[tower][str(size)] = relative(trials)
        if fitted > sizes[-1]:
            level[tower][str(fitted)] = pairs.trace_B(tower, orders[0][:fitted], orders[0][:fitted]) / fitted
    return {"pairs": count, "batch_sizes": list(sizes), "level": level, "ratio": ratio}


def relative(trials: Sequence[Sequence[float]]) -> tuple[float, dict[str, list[float]]]:  # [trials][batches]
    """The level of five batches, and mean and standard deviation over trials relative to it, as the paper's seem."""
    means, stds = traces.over_trials(trials)
    level = means[-1]
    if level <= 0:
        raise BayesVLMError("The curvature of the smallest contrast batches is zero; more pairs are needed here.")
    return level, {"mean": [mean / level for mean in means], "std": [std / level for std in stds]}


Ratios = Mapping[str, Sequence[float]]
"""tr(B) of i batches relative to five: "mean" and "std" over trials, [5] each."""
By = Mapping[Tower, Mapping[int, Ratios]]  # tower -> K


def off(ratios: Ratios) -> float:
    """How far a mean is from one at most."""
    return max(abs(mean - 1) for mean in ratios["mean"])


def near(ratios: Ratios) -> bool:
    """Whether no mean is further from one than `NEAR`, or than two of its standard errors."""
    allowed = [max(NEAR, 2 * std / math.sqrt(TRIALS)) for std in ratios["std"]]
    return all(abs(mean - 1) <= most for mean, most in zip(ratios["mean"], allowed, strict=True))


def tell(numbers: Mapping[str, Any]) -> Finding:
    """The relative trace against the number of batches, and what K does to the trace itself."""
    plan, sizes = Plan.of(numbers), numbers["batch_sizes"]
    ratios, levels = (
        {tower: {int(size): each for size, each in numbers[what][tower].items()} for tower in TOWERS}
        for what in ("ratio", "level")
    )
    largest, most = sizes[-1], max(levels["image"])
    growth = {tower: f"{levels[tower][most] / levels[tower][sizes[0]]:.2g}" for tower in TOWERS}
    most_off = each_of({tower: f"{off(ratios[tower][largest]):.1%}" for tower in TOWERS})
    answer = (
        f"With K = {largest:,} the mean of tr(B) over one to five batches of {plan.model} stays within {most_off} of "
        f"that of five; but the ratio hides the level: from K = {sizes[0]:,} to {most:,} tr(B) per pair itself changes "
        f"by a factor of about {each_of(growth)}."
    )
    table, said = _level_table(plan.model, levels, ratios), _remarks(numbers["pairs"], ratios)
    return Finding(answer, judged(NAME, _judged(ratios)), [_plot(plan, ratios), table], said)


def _judged(ratios: By) -> Judgement:
    holds, figures = True, []
    for tower, by_size in ratios.items():
        largest = max(by_size)
        own = by_size[largest]
        smaller = [each["std"] for size, each in by_size.items() if size < largest]
        least = sum(std < min(others) for std, *others in zip(own["std"], *smaller, strict=True))
        holds = holds and near(own) and least == BATCHES
        figures.append(
            f"{tower}: K = {largest:,} at most {off(own):.1%} from one ({NEAR:.0%} or two standard errors allowed), "
            f"the least standard deviation ({max(own['std']):.1%} at most) with {least} of {BATCHES} numbers of batches"
        )
    return holds, "; ".join(figures)


def _plot(plan: Plan, ratios: By) -> Lines:
    numbers = list(range(1, BATCHES + 1))
    panels = []
    for tower, by_size in ratios.items():
        series = [Series(f"K = {size:,}", numbers, each["mean"], each["std"]) for size, each in by_size.items()]
        if traces.as_published(plan):
            series += [
                Series(f"paper, K = {each['K']:,}", each["x"], each["y"], each["std"], dashed=True)
                for each in traces.printed_curves(NAME, tower)
            ]
        panels.append(Panel(tower, "contrast batches", "tr(B) / tr(B) of five batches", series))
    caption = (
        f"{plan.model}: tr(B) per pair from one to five random contrast batches of K, relative to the mean with five; "
        f"band: one standard deviation over {TRIALS} trials."
    )
    return Lines(panels, caption, "Relative trace of B against the number of contrast batches, one panel per tower.")


def _level_table(model: str, levels: Mapping[Tower, Mapping[int, float]], ratios: By) -> Table:
    def cell(tower: Tower, size: int) -> str:
        level, own = levels[tower][size], ratios[tower].get(size)
        return f"{level:.2g}" if own is None else f"{level:.2g} ± {level * own['std'][-1] / TRIALS**0.5:.1g}"

    sizes = sorted(levels["image"])
    return Table(
        ["tr(B) per pair", *(f"K = {size:,}" for size in sizes)],
        [[tower, *(cell(tower, size) for size in sizes)] for tower in TOWERS],
        caption=f"{model}: the level, which the ratio above hides, with the standard error over {TRIALS} trials of "
        "five batches; the last column is the contrast batch that fitting takes.",
    )


def _remarks(pairs: int, ratios: By) -> list[str]:
    sizes = sorted(ratios["image"])
    equal, paper, noise = {}, {}, {}
    for tower, by_size in ratios.items():
        four, one = by_size[sizes[-2]]["std"][3], by_size[sizes[-1]]["std"][0]
        equal[tower] = f"{four:.1%} with four batches of {sizes[-2]:,} against {one:.1%} with one of {sizes[-1]:,}"
        printed = {each["K"]: each["std"] for each in traces.printed_curves(NAME, tower)}
        paper[tower] = f"{printed[8192][3]:.2%} against {printed[32768][0]:.2%}"
        noise[tower] = f"{one / TRIALS**0.5:.1%}"
    return [
        "Per pair, every number of batches has the same expectation: a mean off one is the noise of so many trials, "
        f"with one batch of {sizes[-1]:,} a standard error of {each_of(noise)}.",
        f"A larger batch also holds more pairs. With equally many, the standard deviation is {each_of(equal)}; in the "
        f"paper, four batches of 8,192 against one of 32,768: {each_of(paper)}.",
        f"The batches of a trial are disjoint parts of one random order of {pairs:,} pairs; five of the largest take "
        f"{BATCHES * sizes[-1] / pairs:.0%} of them, so that trials with many batches vary less than independent ones "
        "would.",
    ]


ITEMS = {NAME: (measure, tell)}
