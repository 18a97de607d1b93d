"""How many negatives the curvature needs: tr(B) from one to five contrast batches of three sizes, and its level.

The paper shows the first relative to five batches of the same size, which cannot tell whether the size itself matters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import TOWERS, Tower
from bayesvlm_paper.findings import Claim, Finding, Grid, Lines, Panel, Series
from bayesvlm_paper.item import Item
from bayesvlm_paper.lab import Lab, shuffled
from bayesvlm_paper.plans import CLIP_BASE, LAION, Plan
from bayesvlm_paper.printed import published_curves
from bayesvlm_paper.traces import (
    PAPER_NEGATIVES,
    EmbeddedPairs,
    as_published,
    embedded_pairs,
    mean_and_std,
    power_of_two,
)

NAME = "ablation_batch_size"
BATCHES = 5
TRIALS = 5
LEAST = 6 * 32
"""Pairs below which the smallest of the three sizes would hold fewer than two."""
NEAR = 0.02
"""What "near one" is taken for, where the mean over trials can tell that much: the paper's largest batch is as near."""


def batch_sizes(pairs: int) -> tuple[int, int, int]:
    """The largest power of two in a sixth of the pairs, at most the paper's 32768; a quarter, a sixteenth of that."""
    largest = min(PAPER_NEGATIVES, power_of_two(pairs // 6))
    return largest // 16, largest // 4, largest


def batch_traces(pairs: EmbeddedPairs, tower: Tower, order: Tensor, size: int) -> list[float]:  # [N]
    """tr(B) per pair of the first 1, 2, ..., 5 batches of an order, each contrasted within itself."""
    batches = [order[batch * size : (batch + 1) * size] for batch in range(BATCHES)]
    sums = torch.tensor([pairs.trace_B(tower, batch, batch) for batch in batches], dtype=torch.float64).cumsum(0)
    return [float(total) / ((place + 1) * size) for place, total in enumerate(sums)]


@dataclass(frozen=True)
class Ratios:
    """tr(B) of i batches relative to five: mean and standard deviation over trials, [5]; `level` is that of five."""

    mean: tuple[float, ...]
    std: tuple[float, ...]
    level: float

    @classmethod
    def of(cls, trials: Sequence[Sequence[float]]) -> Ratios:  # [trials][batches]
        """Relative to the mean over trials with five batches, as the paper's seem to be."""
        found = [mean_and_std(values) for values in zip(*trials, strict=True)]
        level = found[-1][0]
        if level <= 0:
            raise BayesVLMError("The curvature of the smallest contrast batches is zero; more pairs are needed here.")
        return cls(tuple(mean / level for mean, _ in found), tuple(std / level for _, std in found), level)

    @property
    def off(self) -> float:
        """How far a mean is from one at most."""
        return max(abs(mean - 1) for mean in self.mean)

    @property
    def near(self) -> bool:
        """Whether no mean is further from one than `NEAR`, or than two of its standard errors."""
        errors = (std / math.sqrt(TRIALS) for std in self.std)
        return all(abs(mean - 1) <= max(NEAR, 2 * error) for mean, error in zip(self.mean, errors, strict=True))


By = Mapping[Tower, Mapping[int, Ratios]]  # tower -> K


def number_of_negatives(lab: Lab) -> Finding:
    """The relative trace against the number of batches, and what K does to the trace itself."""
    model = lab.models[0]
    pairs = embedded_pairs(lab, model, LEAST)
    sizes = batch_sizes(len(pairs))
    orders = [shuffled(len(pairs), seed) for seed in range(TRIALS)]
    ratios: By = {
        tower: {size: Ratios.of([batch_traces(pairs, tower, order, size) for order in orders]) for size in sizes}
        for tower in TOWERS
    }
    levels = {tower: {size: each.level for size, each in ratios[tower].items()} for tower in TOWERS}
    fitted = min(len(pairs), PAPER_NEGATIVES)
    if fitted > sizes[-1]:
        for tower in TOWERS:
            levels[tower][fitted] = pairs.trace_B(tower, orders[0][:fitted], orders[0][:fitted]) / fitted
    growth = {tower: levels[tower][max(levels[tower])] / levels[tower][sizes[0]] for tower in TOWERS}
    largest = sizes[-1]
    answer = (
        f"With K = {largest:,} the mean of tr(B) over one to five batches of {model} stays within "
        + " and ".join(f"{ratios[tower][largest].off:.1%} ({tower})" for tower in TOWERS)
        + " of that of five; but the ratio hides the level: from K = "
        + f"{sizes[0]:,} to {max(levels['image']):,} tr(B) per pair itself changes by a factor of about "
        + " and ".join(f"{growth[tower]:.2g} ({tower})" for tower in TOWERS)
        + "."
    )
    return Finding(
        answer,
        [_claim(ratios)],
        [_plot(lab, model, ratios), _level_table(model, levels, ratios)],
        {
            "batch_sizes": list(sizes),
            "level": {tower: {str(size): value for size, value in levels[tower].items()} for tower in TOWERS},
            "ratio": {
                tower: {str(size): {"mean": list(r.mean), "std": list(r.std)} for size, r in ratios[tower].items()}
                for tower in TOWERS
            },
        },
        _remarks(len(pairs), ratios),
    )


def _claim(ratios: By) -> Claim:
    holds, figures = True, []
    for tower, by_size in ratios.items():
        largest = max(by_size)
        own = by_size[largest]
        least = sum(
            own.std[i] < min(by_size[size].std[i] for size in by_size if size < largest) for i in range(BATCHES)
        )
        holds = holds and own.near and least == BATCHES
        figures.append(
            f"{tower}: K = {largest:,} at most {own.off:.1%} from one ({NEAR:.0%} or two standard errors allowed), the "
            f"least standard deviation ({max(own.std):.1%} at most) with {least} of {BATCHES} numbers of batches"
        )
    return Claim.judged(
        "The largest batch stays near one for any number of batches, with the least variance.",
        holds,
        "; ".join(figures),
    )


def _plot(lab: Lab, model: str, ratios: By) -> Lines:
    numbers = list(range(1, BATCHES + 1))
    panels = []
    for tower, by_size in ratios.items():
        series = [Series(f"K = {size:,}", numbers, each.mean, each.std) for size, each in by_size.items()]
        if as_published(lab, model):
            series += [
                Series(f"paper, K = {each['K']:,}", each["x"], each["y"], each["std"], dashed=True)
                for each in published_curves(NAME)["series"]
                if each["modality"] == tower
            ]
        panels.append(Panel(tower, "contrast batches", "tr(B) / tr(B) of five batches", series))
    caption = (
        f"{model}: tr(B) per pair from one to five random contrast batches of K, relative to the mean with five; band: "
        f"one standard deviation over {TRIALS} trials."
    )
    return Lines(panels, caption, "Relative trace of B against the number of contrast batches, one panel a tower.")


def _level_table(model: str, levels: Mapping[Tower, Mapping[int, float]], ratios: By) -> Grid:
    def cell(tower: Tower, size: int) -> str:
        level, own = levels[tower][size], ratios[tower].get(size)
        return f"{level:.2g}" if own is None else f"{level:.2g} ± {level * own.std[-1] / TRIALS**0.5:.1g}"

    sizes = sorted(levels["image"])
    return Grid(
        ["tr(B) per pair", *(f"K = {size:,}" for size in sizes)],
        [[tower, *(cell(tower, size) for size in sizes)] for tower in TOWERS],
        f"{model}: the level, which the ratio above hides, with the standard error over {TRIALS} trials of five "
        "batches; the last column is the contrast batch that fitting takes.",
    )


def _remarks(pairs: int, ratios: By) -> list[str]:
    sizes = sorted(ratios["image"])
    equal = " and ".join(
        f"{ratios[tower][sizes[-2]].std[3]:.1%} with four batches of {sizes[-2]:,} against "
        f"{ratios[tower][sizes[-1]].std[0]:.1%} with one of {sizes[-1]:,} ({tower})"
        for tower in TOWERS
    )
    printed = {(each["modality"], each["K"]): each["std"] for each in published_curves(NAME)["series"]}
    paper = " and ".join(
        f"{printed[tower, 8192][3]:.2%} against {printed[tower, 32768][0]:.2%} ({tower})" for tower in TOWERS
    )
    noise = " and ".join(f"{ratios[tower][sizes[-1]].std[0] / TRIALS**0.5:.1%} ({tower})" for tower in TOWERS)
    return [
        "Per pair, every number of batches has the same expectation: a mean off one is the noise of so many trials, "
        f"with one batch of {sizes[-1]:,} a standard error of {noise}.",
        f"A larger batch also holds more pairs. With equally many, the standard deviation is {equal}; in the paper, "
        f"four batches of 8,192 against one of 32,768: {paper}.",
        f"The batches of a trial are disjoint parts of one random order of {pairs:,} pairs; five of the largest take "
        f"{BATCHES * sizes[-1] / pairs:.0%} of them, so that trials with many batches vary less than independent ones "
        "would.",
    ]


ITEMS = (
    Item(
        NAME,
        "Number of negatives",
        "How many negatives does the curvature need?",
        "the posterior",
        Plan(("emoji-clip",), pairs=("train",)),
        Plan((CLIP_BASE,), pairs=(LAION,)),
        number_of_negatives,
        reads_pairs=True,
    ),
)
