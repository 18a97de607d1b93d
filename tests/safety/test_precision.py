"""Thresholds for a precision: against brute force, against Clopper-Pearson, and the promise by simulation."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor

from bayesvlm import BayesVLMError
from bayesvlm.safety.precision import fewest_images, precision_thresholds


def drawn(images: int, generator: torch.Generator, ties: bool = False) -> tuple[Tensor, Tensor]:
    """Scores of one label in [0, 1] and whether it is carried, more often where the score is high."""
    scores = torch.rand(images, generator=generator).double()
    if ties:
        scores = (scores * 12).round() / 12
    return scores, torch.rand(images, generator=generator) < scores**0.5


def at_least(scores: Tensor, labels: Tensor, threshold: float) -> tuple[int, int]:
    chosen = scores >= threshold
    return int(chosen.sum()), int((chosen & labels).sum())


def smallest(scores: Tensor, labels: Tensor, precision: float) -> float:
    """By brute force: the lowest score whose precision is high enough."""
    found = math.inf
    for candidate in scores.unique().tolist():
        flagged, correct = at_least(scores, labels, candidate)
        if correct / flagged >= precision - 1e-12:
            found = min(found, candidate)
    return found


def fixed_sequence(scores: Tensor, labels: Tensor, precision: float, confidence: float) -> float:
    """By brute force: from the most confident down, as long as the exact lower bound is high enough."""
    found = math.inf
    for candidate in scores.unique().flip(0).tolist():
        flagged, correct = at_least(scores, labels, candidate)
        if flagged < math.log(1 - confidence) / math.log(precision):
            continue
        bound = binomtest(correct, flagged, alternative="greater").proportion_ci(confidence).low
        if bound < precision:
            break
        found = candidate
    return found


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("precision", [0.5, 0.75, 0.9])
def test_against_brute_force(precision: float, ties: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    cases = [drawn(100, generator, ties) for _ in range(10)]
    scores, labels = (torch.stack(column, dim=1) for column in zip(*cases, strict=True))
    found_some = 0
    for confidence in (None, 0.8, 0.95):
        found = precision_thresholds(scores, labels, precision, confidence)
        for k, (own, carried) in enumerate(cases):
            brute = (
                smallest(own, carried, precision)
                if confidence is None
                else fixed_sequence(own, carried, precision, confidence)
            )
            threshold = float(found.thresholds[k])
            assert at_least(own, carried, threshold) == at_least(own, carried, brute)  # the same images are flagged
            assert (int(found.flagged[k]), int(found.correct[k])) == at_least(own, carried, brute)
            assert int(found.positives[k]) == int(carried.sum())
            assert threshold == math.inf or threshold <= brute
            found_some += brute < math.inf
    assert found_some > 5
    if precision == 0.9:
        assert found_some < 30  # and some have none


def test_a_threshold_lies_between_scores_and_rounding_moves_nothing() -> None:
    scores = torch.tensor([[0.9], [0.8], [0.3], [0.1]], dtype=torch.float64)
    labels = torch.tensor([[True], [True], [False], [False]])
    found = precision_thresholds(scores, labels, 0.9, None)
    assert float(found.thresholds[0]) == pytest.approx(0.55)
    assert (float(found.precision[0]), float(found.recall[0])) == (1.0, 1.0)
    neighbours = torch.tensor([[1.0], [math.nextafter(1.0, 0.0)]], dtype=torch.float64)  # nothing lies between
    found = precision_thresholds(neighbours, torch.tensor([[True], [False]]), 0.9, None)
    assert float(found.thresholds[0]) == 1.0
    everything = precision_thresholds(scores, torch.ones(4, 1, dtype=torch.bool), 0.9, None)
    assert float(everything.thresholds[0]) == 0.1  # the lowest: below it nothing was seen


def test_a_label_nobody_carries_is_never_flagged() -> None:
    scores = torch.rand(50, 2, generator=torch.Generator().manual_seed(0))
    labels = torch.zeros(50, 2, dtype=torch.bool)
    labels[:, 1] = True
    for confidence in (None, 0.95):
        found = precision_thresholds(scores, labels, 0.9, confidence)
        assert found.thresholds[0] == math.inf
        assert math.isnan(float(found.precision[0]))
        assert math.isnan(float(found.recall[0]))
        assert found.flagged.tolist() == [0, 50]


@pytest.mark.parametrize(("precision", "confidence"), [(0.9, 0.95), (0.95, 0.9), (0.5, 0.99), (0.1, 0.05)])
def test_so_many_right_ones_are_enough_and_one_fewer_is_not(precision: float, confidence: float) -> None:
    least = fewest_images(precision, confidence)
    for images, able in ((least, True), (least - 1, False)):
        if images:
            ones = torch.ones(images, 1)
            found = precision_thresholds(torch.rand(images, 1), ones.bool(), precision, confidence)
            assert (float(found.thresholds[0]) < math.inf) == able


def uphill(score: Tensor) -> Tensor:
    return 0.6 + 0.4 * score


def cliff(score: Tensor) -> Tensor:
    """Perfect above 0.8, and just too bad below: the precision is 0.9 at 0.6 exactly."""
    return torch.where(score > 0.8, 1.0, 0.8)


def steps(score: Tensor) -> Tensor:
    """Like `uphill`, on scores with many ties."""
    return 0.6 + 0.4 * score


@pytest.mark.parametrize("carried_at", [uphill, cliff, steps])
@pytest.mark.parametrize("images", [60, 400])
def test_the_promise_holds_over_calibration_sets(carried_at: Callable[[Tensor], Tensor], images: int) -> None:
    """The true precision is below 0.9 for at most 1 - confidence of calibration sets; with the precision on the
    calibration set alone it is for far more."""
    generator, sets, precision, confidence = torch.Generator().manual_seed(7), 3000, 0.9, 0.9
    grid = torch.rand(100_000, generator=generator).double()
    scores = torch.rand(images, sets, generator=generator).double()
    if carried_at is steps:
        grid, scores = (grid * 20).round() / 20, (scores * 20).round() / 20
    labels = torch.rand(images, sets, generator=generator).double() < carried_at(scores)
    ordered = grid.sort(descending=True).values
    true_precision = carried_at(ordered).cumsum(dim=0) / torch.arange(1, len(ordered) + 1)

    def violated(confidence: float | None) -> tuple[float, float]:
        found = precision_thresholds(scores, labels, precision, confidence).thresholds
        count = torch.searchsorted(-ordered, -found, right=True)  # of the grid, at the threshold or above
        bad = (count > 0) & (true_precision[(count - 1).clamp_min(0)] < precision - 1e-3)
        return float(bad.double().mean()), float((found < math.inf).double().mean())

    promised, able = violated(confidence)
    error = 3 * math.sqrt(confidence * (1 - confidence) / sets)
    assert promised <= 1 - confidence + error
    assert able > 0.1  # it does promise something
    if images == 400:
        assert able > 0.5
    alone, _ = violated(None)
    assert alone > 2 * (1 - confidence)


def test_what_it_refuses() -> None:
    scores, labels = torch.rand(5, 2), torch.ones(5, 2, dtype=torch.bool)
    for name, arguments in (("precision", (1.0, 0.95)), ("precision", (0, None)), ("confidence", (0.9, 95))):
        with pytest.raises(BayesVLMError, match=f"^{name}=.*between 0 and 1"):
            precision_thresholds(scores, labels, *arguments)
    with pytest.raises(BayesVLMError, match=r"scores are \[5, 2\] and the labels torch.bool \[4, 2\]"):
        precision_thresholds(scores, labels[:4], 0.9, None)
    with pytest.raises(BayesVLMError, match="NaN"):
        precision_thresholds(scores * math.nan, labels, 0.9, None)
