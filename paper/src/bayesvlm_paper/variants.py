"""Variants of a posterior side by side: each with a tau of its own, on every set, tested against the first of them.

A variant that is compared at another's tau loses by construction. Here each is tuned as the default is, on the same
validation set and over the same taus, so that what is left is a difference of kind.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bayesvlm.core.features import Features
from bayesvlm.core.tuning import TauGrid, TauPoint
from bayesvlm.evaluation import paired_t_test
from bayesvlm.experiments.scoring import Scores
from bayesvlm.experiments.zero_shot import LEVEL
from bayesvlm.vlm import BayesVLM
from bayesvlm_paper.finding import Numbers
from bayesvlm_paper.lab import Lab, shuffled
from bayesvlm_paper.scoreboard import BEST, figures, winners

WIDE_TAUS = tuple(10 ** (k / 4) for k in range(-8, 33))
"""The usual taus and on to 1e8: the exact posterior has its best beyond their 1e4 on some models."""
STEP = 10 ** (1 / 4)
"""From one tau to the next, where a variant is too slow for all of them."""
IMAGES, TEXTS = 100, 50
"""The validation images and classes on which variants are held against draws of the projections."""

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
        """Over the sets: percent, nats, percent."""
        return statistics.fmean(figures(found)[metric] for found in self.scores.values())


Made = tuple[dict[str, Variant], Mapping[str, Any]]  # the variants of a model, the default first; how true they are


def measured(lab: Lab, make: Callable[[Lab, str], Made]) -> Numbers:
    """The variants of every model of the plan, for json."""
    found = {}
    for model in lab.models:
        variants, truth = make(lab, model)
        classes = len(lab.classes(model, lab.validation_set))
        size = {"images": min(IMAGES, len(lab.validation(model).labels)), "classes": min(TEXTS, classes)}
        found[model] = {"variants": numbers_of(variants), "truth": truth, "truth size": size}
    return found


def numbers_of(variants: Mapping[str, Variant]) -> dict[str, Any]:
    """Everything measured of a model's variants, for json."""
    default = next(iter(variants.values()))
    best = {data: winners({name: of.scores[data] for name, of in variants.items()}) for data in default.scores}
    return {
        name: {
            "tau": variant.vlm.tau,
            "lam": variant.vlm.lam,
            "tried": None if variant.grid is None else [[point.tau, point.nlpd] for point in variant.grid],
            "sets": {data: {**_of_set(found), BEST: best[data][name]} for data, found in variant.scores.items()},
            "against the first": None if variant is default else versus(variant, default),
        }
        for name, variant in variants.items()
    }


def _of_set(found: Scores) -> dict[str, float]:
    top1, nlpd = found.top1, found.nlpd
    errors = {"top1_error": top1.standard_error, "nlpd_error": nlpd.standard_error}
    return {"top1": top1.value, "nlpd": nlpd.value, "ece": found.ece, **errors, "images": len(found.nll)}


def versus(variant: Variant, default: Variant) -> dict[str, Any]:
    """On which sets one is better than the other beyond the test, and by how much.

    Returns:
        better, worse: the sets on which its NLPD is, by a paired t-test over the images.
        median: over the sets, of the difference of the NLPD, variant minus default: one odd set does not decide it.
        nlpd, ece, top1: mean differences over the sets, variant minus default, in nats and percent.
        tests: set -> difference of the NLPD and its p-value.
    """
    tests = {data: paired_t_test(found.nll, default.scores[data].nll) for data, found in variant.scores.items()}
    return {
        "better": [data for data, test in tests.items() if test.p < LEVEL and test.difference < 0],
        "worse": [data for data, test in tests.items() if test.p < LEVEL and test.difference > 0],
        "median": statistics.median(test.difference for test in tests.values()),
        "nlpd": variant.mean("NLPD") - default.mean("NLPD"),
        "ece": variant.mean("ECE") - default.mean("ECE"),
        "top1": variant.mean("ACC") - default.mean("ACC"),
        "tests": {data: {"difference": test.difference, "p": test.p} for data, test in tests.items()},
    }


# Making them ---------------------------------------------------------------------------------------------------------


def default_of(lab: Lab, model: str) -> BayesVLM:
    """The model with the paper's choices, whatever its posterior was saved with."""
    return lab.vlm(model).replace(structure="damped", covariance="diagonal", link="probit", lam="evidence")


def scored(lab: Lab, vlm: BayesVLM, grid: TauGrid | None, measure: Measure) -> Variant:
    """A posterior on every set of the plan."""
    return Variant(vlm, grid, {data: measure(vlm, data) for data in lab.sets})


def tuned(lab: Lab, model: str, vlm: BayesVLM, measure: Measure) -> Variant:
    """A copy of the posterior with the tau that is best for it, on every set."""
    return scored(lab, *lab.tuned(model, vlm, WIDE_TAUS), measure)


def walked(lab: Lab, model: str, vlm: BayesVLM, measure: Measure, start: float, limit: int = 16) -> Variant:
    """The same where a tau takes long to try: from `start` downhill by `STEP`, at most `limit` times, no refinement."""
    points: dict[int, TauPoint] = {}

    def at(place: int) -> float:
        if place not in points:
            (points[place],) = lab.tuned(model, vlm, (start * STEP**place,), False)[1]
        return points[place].nlpd

    best = 0
    for way in (-1, 1):
        while abs(best) < limit and at(best + way) < at(best):
            best += way
    grid = TauGrid(tuple(points[place] for place in sorted(points)))
    return scored(lab, vlm.replace(tau=grid.best.tau), grid, measure)


def on_some(lab: Lab, model: str, limit: int) -> Measure:
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


def truth_data(lab: Lab, model: str, texts: int | None) -> tuple[Features, Features, Tensor]:  # [N], [C], [N]
    """Some validation images, some of the classes (None: all), and the images' labels among all classes."""
    found, classes = lab.validation(model), lab.classes(model, lab.validation_set)
    rows = sample(len(found.labels), IMAGES)
    chosen = classes if texts is None else classes[sample(len(classes), texts)]
    return found.features[rows], chosen, found.labels[rows]
