"""Variants of a posterior side by side: each with a tau of its own, on every set, tested against the first of them.

A variant that is compared at another's tau loses by construction. Here each is tuned as the default is, on the same
validation set and over the same taus, so that what is left is a difference of kind.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import TOWERS, Tower
from bayesvlm.core.evidence import Evidence, Objective
from bayesvlm.core.tuning import TauGrid, TauPoint, search_tau
from bayesvlm.evaluation import not_worse_than_best, paired_t_test
from bayesvlm.experiments.methods import losses
from bayesvlm.experiments.scoring import Scores
from bayesvlm.experiments.zero_shot import LEVEL
from bayesvlm.vlm import BayesVLM
from bayesvlm_paper.findings import Grid, Panel, Series
from bayesvlm_paper.lab import Lab, shuffled
from bayesvlm_paper.wording import counted, signed

WIDE_TAUS = tuple(10 ** (k / 4) for k in range(-8, 33))
"""The usual taus and on to 1e8: the exact posterior has its best beyond their 1e4 on some models."""
STEP = 10 ** (1 / 4)
"""From one tau to the next, where a variant is too slow for all of them."""
SHOWN = 1.0
"""Nats above a variant's best up to which a plot follows it."""
CLEAR = 0.005
"""Nats of NLPD, median over the sets, up to which a difference is called none, whatever the tests say."""

Measure = Callable[[BayesVLM, str], Scores]


@dataclass(frozen=True, eq=False)
class Variant:
    """A posterior with its tau, and its scores by set.

    Args:
        grid: every tau tried; None where tau is not its own.
    """

    vlm: BayesVLM
    grid: TauGrid | None
    scores: Mapping[str, Scores]

    def mean(self, metric: str) -> float:
        """Over the sets: "top1" and "ece" in percent, "nlpd" in nats."""
        return sum(figure(found, metric) for found in self.scores.values()) / len(self.scores)


@dataclass(frozen=True)
class Versus:
    """A variant against the default.

    Args:
        better, worse: the sets on which its NLPD is, by a paired t-test over the images.
        median: over the sets, of the difference of the NLPD, variant minus default: one odd set does not decide it.
        nlpd, ece, top1: mean differences over the sets, variant minus default, in nats and percent.
        tests: set -> difference of the NLPD and its p-value.
    """

    better: tuple[str, ...]
    worse: tuple[str, ...]
    median: float
    nlpd: float
    ece: float
    top1: float
    tests: Mapping[str, tuple[float, float]]

    @property
    def helps(self) -> bool:
        """Better on more sets than worse, and by more than `CLEAR` in the median."""
        return len(self.better) > len(self.worse) and self.median < -CLEAR

    @property
    def hurts(self) -> bool:
        """The reverse."""
        return len(self.worse) > len(self.better) and self.median > CLEAR

    def __str__(self) -> str:
        return (
            f"better on {len(self.better)}, worse on {len(self.worse)} of {counted(len(self.tests), 'set')}, NLPD "
            f"{signed(self.median)} nats in the median and {signed(self.nlpd)} in the mean, ECE {signed(self.ece, 1)} "
            "points"
        )

    def numbers(self) -> dict[str, Any]:
        """For json."""
        tests = {name: {"difference": difference, "p": p} for name, (difference, p) in self.tests.items()}
        named = {"better": list(self.better), "worse": list(self.worse)}
        return {**named, "median": self.median, "nlpd": self.nlpd, "ece": self.ece, "top1": self.top1, "tests": tests}


# Making them ---------------------------------------------------------------------------------------------------------


def default_of(lab: Lab, model: str) -> BayesVLM:
    """The model with the paper's choices, whatever its posterior was saved with."""
    return lab.vlm(model).replace(structure="damped", covariance="diagonal", link="probit", lam="evidence")


def measured(lab: Lab, vlm: BayesVLM, grid: TauGrid | None, measure: Measure) -> Variant:
    """A posterior on every set of the plan."""
    return Variant(vlm, grid, {data: measure(vlm, data) for data in lab.sets})


def tuned(
    lab: Lab, model: str, vlm: BayesVLM, measure: Measure, taus: tuple[float, ...] = WIDE_TAUS, refine: bool = True
) -> Variant:
    """A copy of the posterior with the tau that is best for it, on every set."""
    own = vlm.copy()
    grid = lab.tuned(model, own, taus, refine)
    return measured(lab, own, grid, measure)


def walked(lab: Lab, model: str, vlm: BayesVLM, measure: Measure, start: float, limit: int = 16) -> Variant:
    """The same where a tau takes long to try: from `start` downhill by `STEP`, at most `limit` times, no refinement."""
    own = vlm.copy()
    points: dict[int, TauPoint] = {}

    def at(place: int) -> float:
        if place not in points:
            (points[place],) = lab.tuned(model, own, (start * STEP**place,), False)
        return points[place].nlpd

    best = 0
    for way in (-1, 1):
        while abs(best) < limit and at(best + way) < at(best):
            best += way
    grid = TauGrid(tuple(points[place] for place in sorted(points)))
    return measured(lab, own.replace(tau=grid.best.tau), grid, measure)


def lams(vlm: BayesVLM, objective: Objective) -> dict[str, float]:
    """The prior precision of both towers by either objective, at the tau and with the structure of the posterior."""
    return {tower: evidence_of(vlm, tower, objective).best_lam() for tower in TOWERS}


def evidence_of(vlm: BayesVLM, tower: Tower, objective: Objective = "evidence") -> Evidence:
    """The objective of one tower as a function of log lam."""
    factors, norm = vlm.factors[tower], getattr(vlm, tower).norm_squared
    spectra = (factors.A_spectrum.values, factors.B_spectrum.values)
    return Evidence(*spectra, norm, vlm.tau, vlm.settings.structure, objective)


def official(vlm: BayesVLM, tau: float) -> BayesVLM:
    """The posterior with a tau, and the lam that the authors' first release would give it there."""
    moved = vlm.replace(tau=tau)
    return moved.replace(lam=lams(moved, "official"))


def official_tuned(
    lab: Lab, model: str, vlm: BayesVLM, taus: tuple[float, ...] = WIDE_TAUS, refine: bool = True
) -> tuple[BayesVLM, TauGrid]:
    """tau by the validation NLPD, lam by the first release's objective at each tau."""
    found, name = lab.validation(model), lab.plan.validation
    if name is None:
        raise BayesVLMError("This needs a labelled set to tune on; name one with --validation.")
    classes, labels = lab.classes(model, name), found.labels.to(vlm.device)

    def evaluate(tau: float) -> tuple[float, dict[str, float]]:
        candidate = official(vlm, tau)
        return Scores.of(candidate.classify(found.features, classes).probs, labels).nlpd.value, candidate.lam

    grid = search_tau(evaluate, taus, refine=refine, advance=lambda steps: None)
    return official(vlm, grid.best.tau), grid


def some(lab: Lab, model: str, limit: int) -> Measure:
    """A measure on at most `limit` images of a set, chosen at random but the same for every variant."""

    def measure(vlm: BayesVLM, data: str) -> Scores:
        found = lab.images(model, data)
        rows = sample(len(found.labels), limit)
        probs = vlm.classify(found.features[rows], lab.classes(model, data)).probs
        return Scores.of(probs, found.labels[rows].to(vlm.device))

    return measure


def sample(count: int, limit: int) -> Tensor:  # [min(count, limit)]
    """Rows chosen at random, the same ones every time."""
    return shuffled(count, 0)[:limit]


# Comparing them ------------------------------------------------------------------------------------------------------


def figure(found: Scores, metric: str) -> float:
    """A metric as tables print it."""
    if metric == "nlpd":
        return found.nlpd.value
    return 100 * (found.ece if metric == "ece" else found.top1.value)


def versus(variant: Variant, default: Variant) -> Versus:
    """On which sets one is better than the other beyond the test, and by how much in the mean."""
    tests = {}
    for data, found in variant.scores.items():
        test = paired_t_test(found.nll, default.scores[data].nll)
        tests[data] = (test.difference, test.p)
    clear = {data: difference for data, (difference, p) in tests.items() if p < LEVEL}
    return Versus(
        tuple(data for data, difference in clear.items() if difference < 0),
        tuple(data for data, difference in clear.items() if difference > 0),
        statistics.median(difference for difference, _ in tests.values()),
        variant.mean("nlpd") - default.mean("nlpd"),
        variant.mean("ece") - default.mean("ece"),
        variant.mean("top1") - default.mean("top1"),
        tests,
    )


def table(model: str, variants: Mapping[str, Variant], note: str = "") -> Grid:
    """Sets as columns and their mean, variants as rows by metric; bold what is not worse than the best."""
    sets = list(next(iter(variants.values())).scores)
    rows: list[list[str]] = []
    best: list[tuple[int, int]] = []
    for metric, title, decimals in (("top1", "ACC", 1), ("nlpd", "NLPD", 3), ("ece", "ECE", 1)):
        winners = [_winners({name: of.scores[data] for name, of in variants.items()}, metric) for data in sets]
        for name, variant in variants.items():
            best += [(len(rows), place + 1) for place, won in enumerate(winners) if name in won]
            values = [*(figure(variant.scores[data], metric) for data in sets), variant.mean(metric)]
            rows.append([f"{title} {name}", *(f"{value:.{decimals}f}" for value in values)])
    caption = f"{model}.{note} Bold: not worse than the best by a paired t-test (p = {LEVEL}); of ECE, the smallest."
    return Grid(["", *sets, "mean"], rows, caption, best)


def _winners(scores: Mapping[str, Scores], metric: str) -> frozenset[str]:
    if metric == "ece":
        least = min(found.ece for found in scores.values())
        return frozenset(name for name, found in scores.items() if found.ece == least)
    return not_worse_than_best(losses(scores, "nlpd" if metric == "nlpd" else "top1"), LEVEL)


def summary(compared: Mapping[str, Mapping[str, Variant]]) -> Grid:
    """Of every model and variant: tau, lam, and what became of NLPD and ECE; the first variant is the default."""
    rows = []
    for model, variants in compared.items():
        default = next(iter(variants.values()))
        for name, variant in variants.items():
            lam = variant.vlm.lam
            found = "" if variant.grid is None else f"{variant.grid.best.nlpd:.3f}"
            row = [f"{model}, {name}", f"{variant.vlm.tau:.3g}", *(f"{lam[tower]:.3g}" for tower in TOWERS), found]
            if variant is not default:
                by = versus(variant, default)
                row += [f"{len(by.better)}", f"{len(by.worse)}", signed(by.median), signed(by.nlpd)]
                row += [signed(by.ece, 1), signed(by.top1, 1)]
            rows.append(row + [""] * (11 - len(row)))
    columns = ["", "tau", "lam image", "lam text", "validation NLPD", "sets better", "sets worse"]
    caption = (
        "tau is the best on the validation set, where an NLPD is given for that; lam follows it. Differences are over "
        "the sets, variant minus default: NLPD in nats, ECE and ACC (means) in points."
    )
    columns += ["median NLPD", "mean NLPD", "ECE", "ACC"]
    return Grid(columns, rows, caption, groups=[("", 5), (f"against {default_name(compared)}", 6)])


def default_name(compared: Mapping[str, Mapping[str, Variant]]) -> str:
    """What the first variant is called."""
    return next(iter(next(iter(compared.values()))))


def tuning_panel(model: str, variants: Mapping[str, Variant]) -> Panel:
    """Validation NLPD against tau, of every variant that has a tau of its own; the default's is marked."""
    series = []
    for name, variant in variants.items():
        if variant.grid is not None:
            near = [point for point in variant.grid if point.nlpd <= variant.grid.best.nlpd + SHOWN]
            series.append(Series(name, [point.tau for point in near], [point.nlpd for point in near]))
    return Panel(model, "tau", "validation NLPD", series, log_x=True, mark=next(iter(variants.values())).vlm.tau)


def numbers(variants: Mapping[str, Variant]) -> dict[str, Any]:
    """Everything measured, for json."""
    default = next(iter(variants.values()))
    return {
        name: {
            "tau": variant.vlm.tau,
            "lam": variant.vlm.lam,
            "tried": None if variant.grid is None else [[point.tau, point.nlpd] for point in variant.grid],
            "sets": {data: _of_set(found) for data, found in variant.scores.items()},
            "against the first": None if variant is default else versus(variant, default).numbers(),
        }
        for name, variant in variants.items()
    }


def _of_set(found: Scores) -> dict[str, float]:
    top1, nlpd = found.top1, found.nlpd
    errors = {"top1_error": top1.standard_error, "nlpd_error": nlpd.standard_error}
    return {"top1": top1.value, "nlpd": nlpd.value, "ece": found.ece, **errors, "images": len(found.nll)}


def edges(compared: Mapping[str, Mapping[str, Variant]]) -> list[str]:
    """A remark for every variant whose best tau is an end of what was tried."""
    return [
        f"{model}, {name}: the best tau, {variant.vlm.tau:.3g}, is an end of those tried; a better one may lie beyond."
        for model, variants in compared.items()
        for name, variant in variants.items()
        if variant.grid is not None and variant.grid.at_edge
    ]


def beyond_usual(compared: Mapping[str, Mapping[str, Variant]], usual: Sequence[float]) -> list[str]:
    """A remark for every variant whose best tau the usual grid does not reach."""
    return [
        f"{model}, {name}: the best tau, {variant.vlm.tau:.3g}, lies outside {min(usual):g} to {max(usual):g}, where "
        "tune() looks unless told otherwise; give it taus= for this variant."
        for model, variants in compared.items()
        for name, variant in variants.items()
        if variant.grid is not None and not min(usual) <= variant.vlm.tau <= max(usual)
    ]
