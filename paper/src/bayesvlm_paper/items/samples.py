"""How many pairs the Hessian needs: its trace on random subsets of them, every pair seeing equally many negatives.

The trace is given per pair, `tr(A_sum) tr(B_sum) / n^2`: that of `A (x) B` itself, with the factors' 1/sqrt(n), grows
with n, and what the paper prints stays level. Where pairs are few it is taken twice: contrasted with all of them, so
that only the choice of pairs varies, and in ten batches, as the paper's, where the negatives are drawn, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesvlm.core.estimation import TOWERS, Tower
from bayesvlm_paper import traces
from bayesvlm_paper.catalogue import Judgement, judged, remarks
from bayesvlm_paper.exhibits import Lines, Panel, Series
from bayesvlm_paper.finding import Finding, Numbers
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import PAIRS, Plan
from bayesvlm_paper.printed import published_curves
from bayesvlm_paper.wording import all_of, each_of

NAME = "hessian-nbr-samples"
SUBSETS = 10
LEAST = 128
"""Pairs below which there is no list of sizes."""
CLOSE = 0.03
"""A trace counts as that of all pairs when it is off by at most this share of it."""


def subset_sizes(pairs: int) -> tuple[int, ...]:
    """The paper's from ten of its contrast batches on, as far as the pairs go; else n/64, n/32, ..., n."""
    if pairs >= PAIRS:
        return tuple(size for size in published_curves(NAME)["series"][0]["x"] if size <= pairs)
    return tuple(pairs // 2**halvings for halvings in range(6, -1, -1))


def contrast_sizes(pairs: int) -> tuple[int, ...]:
    """K: the largest power of two of which the pairs hold ten, and all pairs, as in fitting; the paper's at most."""
    return tuple(
        sorted({min(traces.PAPER_NEGATIVES, traces.power_of_two(pairs // 10)), min(traces.PAPER_NEGATIVES, pairs)})
    )


def subset_traces(
    pairs: traces.EmbeddedPairs,
    tower: Tower,
    order: Tensor,  # [N]
    sizes: Sequence[int],
    negatives: int,
) -> list[float]:
    """The trace per pair of the first n pairs of an order, for each size n (ascending).

    The order is cut into contrast batches of K; the last one, and a subset that fills none, is completed by the pairs
    that follow (those of the beginning follow the last), so that every pair sees K candidates whatever n is.
    """
    found, done, A, B = [], 0, 0.0, 0.0
    for stop in sorted({*sizes, *range(negatives, max(sizes), negatives)}):
        first = done // negatives * negatives
        batch = order[(first + torch.arange(negatives)) % len(order)]
        A += pairs.trace_A(tower, order[done:stop])
        B += pairs.trace_B(tower, order[done:stop], batch)
        done = stop
        if stop in sizes:
            found.append(A * B / stop**2)
    return found


def measure(lab: Lab) -> Numbers:
    """The trace per pair against the number of pairs, both towers: mean and standard deviation over the subsets."""
    pairs = traces.embedded_pairs(lab, LEAST)
    sizes, drawn = subset_sizes(len(pairs)), traces.orders(pairs, SUBSETS)

    def over_subsets(tower: Tower, negatives: int) -> dict[str, list[float]]:
        mean, std = traces.over_trials([subset_traces(pairs, tower, order, sizes, negatives) for order in drawn])
        return {"trace_per_pair": mean, "std": std}

    return {
        "pairs": len(pairs),
        "sizes": list(sizes),
        "negatives": {
            str(negatives): {tower: over_subsets(tower, negatives) for tower in TOWERS}
            for negatives in contrast_sizes(len(pairs))
        },
    }


@dataclass(frozen=True)
class Curve:
    """Mean and standard deviation over the subsets, as shares of the mean with all pairs."""

    sizes: Sequence[int]
    mean: Sequence[float]
    std: Sequence[float]
    full: float  # the trace per pair with all of them

    @classmethod
    def of(cls, sizes: Sequence[int], traces: Mapping[str, Sequence[float]]) -> Curve:
        """From the numbers of a tower."""
        means, stds = traces["trace_per_pair"], traces["std"]
        return cls(sizes, [mean / means[-1] for mean in means], [std / means[-1] for std in stds], means[-1])

    @property
    def quarter(self) -> int:
        """Where the first size lies that is a quarter of the pairs or more, rounding of the sizes left aside."""
        return next(place for place, size in enumerate(self.sizes) if 4 * size > self.sizes[-1] - 4)

    @property
    def off(self) -> float:
        """How far the mean is from that of all pairs at most, from a quarter on."""
        return max(abs(mean - 1) for mean in self.mean[self.quarter :])

    @property
    def spread(self) -> float:
        """The standard deviation with a quarter of the pairs."""
        return self.std[self.quarter]

    @property
    def stable(self) -> bool:
        """Mean and standard deviation are close from a quarter on, and the latter is smaller than at first."""
        return max(self.off, *self.std[self.quarter :]) <= CLOSE and self.spread < self.std[0]


Curves = Mapping[int, Mapping[Tower, Curve]]  # K -> tower


def tell(numbers: Mapping[str, Any]) -> Finding:
    """How many pairs are enough."""
    plan, total = Plan.of(numbers), numbers["pairs"]
    curves: Curves = {
        int(negatives): {tower: Curve.of(numbers["sizes"], by_tower[tower]) for tower in TOWERS}
        for negatives, by_tower in numbers["negatives"].items()
    }
    claims, said = judged(NAME, _judged(total, curves)), [*remarks(NAME), *_remarks(total, curves)]
    return Finding(_answer(plan.model, total, curves), claims, [_plot(plan, curves)], said)


def _answer(model: str, total: int, curves: Curves) -> str:
    clauses = []
    for negatives, of in curves.items():
        whole = all_of([f"{curve.std[-1]:.1%}" for curve in of.values()])
        drawn = f" (all pairs: {whole}, from the draw of the negatives)" if negatives < total else ""
        quarter = each_of({tower: f"{curve.spread:.1%}" for tower, curve in of.items()})
        clauses.append(f"{quarter} when each is contrasted with K = {negatives:,}{drawn}")
    found = ", and of ".join(clauses)
    return f"A quarter of {total:,} pairs gives the trace of {model} with a standard deviation of {found}."


def _judged(total: int, curves: Curves) -> Judgement:
    figures = "; ".join(
        f"{tower}, K = {negatives:,}: {curve.off:.1%} and {max(curve.std[curve.quarter :]):.1%} "
        f"({curve.std[0]:.1%} with {curve.sizes[0]:,} pairs)"
        for negatives, of in curves.items()
        for tower, curve in of.items()
    )
    return (
        all(curve.stable for of in curves.values() for curve in of.values()),
        f"from a quarter of {total:,} pairs on, the mean over subsets and one standard deviation are off by at most "
        f"({CLOSE:.0%} allowed for either) {figures}",
    )


def _plot(plan: Plan, curves: Curves) -> Lines:
    panels = []
    for tower in TOWERS:
        ours = {f"K = {negatives:,}": of[tower] for negatives, of in curves.items()}
        series = [Series(name, curve.sizes, curve.mean, curve.std) for name, curve in ours.items()]
        series += [_printed(tower)] if traces.as_published(plan) else []
        panels.append(Panel(tower, "pairs", "trace / trace of all pairs", series, log_x=True))
    full = {f"{tower}, K = {count:,}": of[tower].full for count, of in curves.items() for tower in TOWERS}
    levels = ", ".join(f"{trace:.3g} ({name})" for name, trace in full.items())
    caption = (
        f"{plan.model}: trace of the Hessian per pair, relative to that of all pairs: {levels}. Band: one standard "
        f"deviation over {SUBSETS} random subsets. Every pair is contrasted with K."
    )
    return Lines(panels, caption, "Relative trace of the Hessian against the number of pairs, one panel per tower.")


def _printed(tower: Tower) -> Series:
    """The paper's curve relative to its own end."""
    (found,) = traces.printed_curves(NAME, tower)
    last = found["y"][-1]
    spread = [(upper - lower) / 2 / last for upper, lower in zip(found["upper"], found["lower"], strict=True)]
    return Series("paper (model not named)", found["x"], [y / last for y in found["y"]], spread, dashed=True)


def _remarks(total: int, curves: Curves) -> list[str]:
    printed = {tower: _printed(tower) for tower in TOWERS}
    spreads = {
        tower: f"from {std[0]:.1%} with {each.x[0]:,} pairs to {std[-1]:.2%} with {each.x[-1]:,}"
        for tower, each in printed.items()
        if (std := each.error)
    }
    one = next(iter(curves.values()))["image"]
    factor = (1 - one.sizes[one.quarter] / total) ** -0.5
    return [
        f"The subsets are drawn from {total:,} pairs without replacement, so they become alike as they grow: "
        f"independent ones of a quarter would vary up to {factor:.2f} times as much, and with all pairs only the "
        "contrast batches still differ.",
        f"The paper's standard deviations fall {each_of(spreads)}, K = {traces.PAPER_NEGATIVES:,}; it names no model.",
    ]


ITEMS = {NAME: (measure, tell)}
