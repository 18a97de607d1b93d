"""Scores and calibration against scikit-learn, torchmetrics and plain loops; the bootstrap against recomputation."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import sklearn.calibration
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.evaluation import (
    Estimate,
    Outcomes,
    accuracy,
    adaptive_ece,
    balanced_accuracy,
    bootstrap_interval,
    brier,
    ece,
    metrics,
    nlpd,
    reliability,
)

from . import references
from .references import generator, predictions, two_classes

SIZES = [(1, 2), (7, 2), (200, 3), (1500, 40)]
METRICS = [accuracy, nlpd, brier, balanced_accuracy, reliability, ece, adaptive_ece]
BATCHED = [
    (accuracy, Outcomes.accuracy),
    (nlpd, Outcomes.nlpd),
    (brier, Outcomes.brier),
    (balanced_accuracy, Outcomes.balanced_accuracy),
    (ece, Outcomes.ece),
    (adaptive_ece, Outcomes.adaptive_ece),
]
# multiples of 1/20 hit the edges of 20, 10, 5 and 4 bins, and collide
coarse = st.lists(st.tuples(st.integers(10, 20), st.booleans()), min_size=1, max_size=12)


def confidences(probs: Tensor, labels: Tensor) -> tuple[list[float], list[bool]]:
    return probs.max(dim=1).values.tolist(), (probs.argmax(dim=1) == labels).tolist()


# --------------------------------------------------------------------------------------------------------------- scores


@pytest.mark.parametrize(("rows", "classes"), SIZES)
def test_scores_against_scikit_learn(rows: int, classes: int) -> None:
    probs, labels = predictions(rows, classes, seed=0)
    predicted, every = probs.argmax(dim=1), list(range(classes))
    assert accuracy(probs, labels).value == pytest.approx(sklearn.metrics.accuracy_score(labels, predicted), abs=1e-15)
    assert nlpd(probs, labels).value == pytest.approx(sklearn.metrics.log_loss(labels, probs, labels=every), rel=1e-13)
    assert brier(probs, labels).value == pytest.approx(
        sklearn.metrics.brier_score_loss(labels, probs, labels=every, scale_by_half=False), rel=1e-13
    )


@pytest.mark.parametrize(("rows", "classes"), [(50, 4), (200, 3), (1500, 40)])
def test_balanced_accuracy_against_scikit_learn(rows: int, classes: int) -> None:
    probs, labels = predictions(rows, classes, seed=1)
    labels = torch.where(labels == 1, 0, labels)  # one class is predicted and never occurs
    seen = [(probs.argmax(dim=1) == labels)[labels == c].double().mean() for c in torch.unique(labels)]
    assert len(seen) < classes
    assert balanced_accuracy(probs, labels) == pytest.approx(float(torch.stack(seen).mean()), rel=1e-14)
    inside = probs.index_fill(1, torch.tensor([1]), 0.0)
    inside = inside / inside.sum(dim=1, keepdim=True)  # scikit-learn warns of predictions that never occur
    expected = sklearn.metrics.balanced_accuracy_score(labels, inside.argmax(dim=1))
    assert balanced_accuracy(inside, labels) == pytest.approx(expected, rel=1e-14)


def test_standard_errors_are_std_over_root_n() -> None:
    probs, labels = predictions(300, 5, seed=2)
    columns = {
        accuracy: (probs.argmax(dim=1) == labels).numpy(),
        nlpd: -np.log(probs.numpy()[np.arange(300), labels]),
        brier: ((probs - torch.eye(5).double()[labels]) ** 2).sum(dim=1).numpy(),
    }
    for metric, values in columns.items():
        expected = np.std(values, ddof=1) / math.sqrt(300)
        assert metric(probs, labels).standard_error == pytest.approx(expected, rel=1e-12), metric.__name__


@pytest.mark.parametrize("metric", [accuracy, nlpd, brier])
def test_one_input_has_a_value_and_no_standard_error(metric: Any) -> None:
    probs, labels = predictions(1, 3, seed=3)
    estimate = metric(probs, labels)
    assert math.isfinite(estimate.value)
    assert math.isnan(estimate.standard_error)


@pytest.mark.parametrize(("dtype", "nats"), [(torch.float32, 87.3365), (torch.float64, 708.3964)])
def test_a_probability_of_zero_costs_the_log_of_tiny(dtype: torch.dtype, nats: float) -> None:
    probs = torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=dtype)
    assert nlpd(probs, torch.tensor([1, 1])).value == pytest.approx(nats, abs=1e-4)
    assert nlpd(probs, torch.tensor([0, 0])).value == 0


def test_float32_is_accumulated_in_float64() -> None:
    """400,000 inputs of one probability: a float32 sum would be off by some 1e-4 relative."""
    probs, labels = torch.tensor([[0.7, 0.3]]).expand(400_000, 2), torch.zeros(400_000, dtype=torch.int64)
    single = float(torch.tensor(0.7, dtype=torch.float32))
    assert nlpd(probs, labels).value == pytest.approx(-math.log(single), rel=1e-12)
    assert brier(probs, labels).value == pytest.approx((1 - single) ** 2 + float(probs[0, 1]) ** 2, rel=1e-12)
    assert ece(probs, labels) == pytest.approx(1 - single, rel=1e-10)


def test_of_equal_probabilities_the_first_is_the_prediction() -> None:
    probs = torch.full((2, 4), 0.25)
    assert Outcomes.of(probs, torch.tensor([0, 1])).correct.tolist() == [True, False]


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(0.61234, 0.00123), "0.6123 ± 0.0012"),
        (Estimate(12.3456, 1.5), "12.3 ± 1.5"),
        (Estimate(1234.5, 67.8), "1234 ± 68"),
        (Estimate(0.5, 1e-12), "0.500000 ± 0.000000"),
        (Estimate(1.0, 0.0), "1 ± 0"),
        (Estimate(0.5, math.nan), "0.5 ± nan"),
    ],
)
def test_an_estimate_prints_to_the_digits_it_knows(estimate: Estimate, text: str) -> None:
    assert str(estimate) == text


# ---------------------------------------------------------------------------------------------------------- calibration


@pytest.mark.parametrize(("rows", "classes"), SIZES)
@pytest.mark.parametrize("bins", [1, 7, 15, 20, 100])
def test_ece_against_torchmetrics_and_a_loop(rows: int, classes: int, bins: int) -> None:
    """torchmetrics computes in float32, the loop in float64."""
    probs, labels = predictions(rows, classes, seed=4)
    for given_probs in (probs, probs.float()):
        expected = multiclass_calibration_error(given_probs, labels, classes, n_bins=bins, norm="l1")
        assert ece(given_probs, labels, bins) == pytest.approx(float(expected), abs=1e-6)
    assert ece(probs, labels, bins) == pytest.approx(references.ece(*confidences(probs, labels), bins), abs=1e-13)


def test_twenty_bins_unless_told() -> None:
    probs, labels = predictions(200, 3, seed=5)
    assert ece(probs, labels) == ece(probs, labels, bins=20) != ece(probs, labels, bins=19)
    assert adaptive_ece(probs, labels) == adaptive_ece(probs, labels, bins=20) != adaptive_ece(probs, labels, bins=19)
    assert len(reliability(probs, labels).count) == 20


def test_a_certain_prediction_is_in_the_last_bin_with_its_neighbours() -> None:
    """torchmetrics gives confidences of exactly 1 a bin of their own, where errors of opposite sign cannot cancel."""
    probs, labels = two_classes([1.0, 0.96, 0.96, 0.96], [False, True, True, True])
    assert ece(probs, labels, bins=20) == pytest.approx(0.97 - 0.75, abs=1e-15)
    assert float(multiclass_calibration_error(probs, labels, 2, n_bins=20)) == pytest.approx(0.28, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("bins", [3, 10, 20, 49])
def test_a_confidence_on_an_edge_belongs_to_the_bin_above(dtype: torch.dtype, bins: int) -> None:
    above = [k for k in range(bins + 1) if 2 * k >= bins]
    probs, labels = two_classes([k / bins for k in above], [True] * len(above), dtype)
    count = reliability(probs, labels, bins).count
    assert count.tolist() == [0] * above[0] + [1] * (bins - 1 - above[0]) + [2]  # the last bin has both its ends


@given(coarse, st.sampled_from([1, 4, 5, 10, 20]))
@settings(max_examples=100, deadline=None)
def test_ece_against_a_loop_on_edges_and_ties(cases: list[tuple[int, bool]], bins: int) -> None:
    confidence, correct = [k / 20 for k, _ in cases], [right or k == 10 for k, right in cases]
    probs, labels = two_classes(confidence, correct)
    assert ece(probs, labels, bins) == pytest.approx(references.ece(*confidences(probs, labels), bins), abs=1e-14)


@given(coarse, st.integers(1, 15))
@settings(max_examples=100, deadline=None)
def test_adaptive_ece_against_a_loop_with_ties(cases: list[tuple[int, bool]], bins: int) -> None:
    probs, labels = two_classes([k / 20 for k, _ in cases], [right or k == 10 for k, right in cases])
    expected = references.adaptive_ece(*confidences(probs, labels), bins)
    assert adaptive_ece(probs, labels, bins) == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("bins", [1, 4, 20])
def test_adaptive_ece_against_quantile_bins_of_scikit_learn(bins: int) -> None:
    """Without ties, and with a whole number of inputs a bin, quantiles cut where ranks do."""
    probs, labels = predictions(400, 6, seed=6)
    confidence, correct = probs.max(dim=1).values, probs.argmax(dim=1) == labels
    observed, stated = sklearn.calibration.calibration_curve(correct, confidence, n_bins=bins, strategy="quantile")
    assert len(observed) == bins
    assert adaptive_ece(probs, labels, bins) == pytest.approx(np.abs(observed - stated).mean(), abs=1e-14)


def test_adaptive_ece_with_no_whole_number_of_inputs_a_bin() -> None:
    probs, labels = predictions(103, 6, seed=7)
    for bins in (3, 20, 103, 150):
        expected = references.adaptive_ece(*confidences(probs, labels), bins)
        assert adaptive_ece(probs, labels, bins) == pytest.approx(expected, abs=1e-13)


@given(coarse, st.randoms(use_true_random=False))
@settings(max_examples=50, deadline=None)
def test_adaptive_ece_does_not_see_the_order(cases: list[tuple[int, bool]], shuffler: Any) -> None:
    probs, labels = two_classes([k / 20 for k, _ in cases], [right for _, right in cases])
    order = list(range(len(cases)))
    shuffler.shuffle(order)
    assert adaptive_ece(probs[order], labels[order], 3) == pytest.approx(adaptive_ece(probs, labels, 3), abs=1e-14)


def test_reliability_by_hand() -> None:
    probs, labels = two_classes([0.55, 0.65, 0.95, 1.0], [True, False, True, True])
    diagram = reliability(probs, labels, bins=5)
    assert diagram.edges.tolist() == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert diagram.count.tolist() == [0, 0, 1, 1, 2]
    assert diagram.confidence.isnan().tolist() == diagram.accuracy.isnan().tolist() == [True, True, False, False, False]
    assert diagram.confidence[2:].tolist() == pytest.approx([0.55, 0.65, 0.975], abs=1e-15)
    assert diagram.accuracy[2:].tolist() == [1.0, 0.0, 1.0]


def test_ece_is_the_weighted_gap_of_the_diagram() -> None:
    probs, labels = predictions(500, 4, seed=8)
    diagram = reliability(probs, labels, bins=12)
    assert int(diagram.count.sum()) == 500
    gap = (diagram.count.double() / 500 * (diagram.accuracy - diagram.confidence).abs()).nansum()
    assert ece(probs, labels, bins=12) == pytest.approx(float(gap), abs=1e-15)


@pytest.mark.parametrize("metric", [ece, adaptive_ece])
def test_one_bin_compares_the_means_and_more_bins_never_less(metric: Any) -> None:
    """Splitting every bin cannot lower the sum of absolute gaps; one bin is |accuracy - mean confidence|."""
    probs, labels = predictions(500, 4, seed=9)
    confidence, correct = confidences(probs, labels)
    values = [metric(probs, labels, bins) for bins in (1, 2, 4, 8, 16)]
    assert values[0] == pytest.approx(abs(np.mean(correct) - np.mean(confidence)), abs=1e-14)
    assert all(fine >= rough - 1e-14 for rough, fine in pairwise(values))
    assert values[-1] > values[0] + 1e-3


# ------------------------------------------------------------------------------------------------------------ bootstrap


@pytest.mark.parametrize(("metric", "batched"), BATCHED)
def test_bootstrap_is_the_metric_on_resampled_inputs(metric: Any, batched: Any) -> None:
    probs, labels = predictions(60, 4, seed=10)
    drawn = torch.randint(60, (50, 60), generator=generator(3))
    values = [metric(probs[rows], labels[rows]) for rows in drawn]
    values = [value.value if isinstance(value, Estimate) else value for value in values]
    low, high = bootstrap_interval(batched, probs, labels, level=0.8, resamples=50, seed=3)
    assert (low, high) == pytest.approx(tuple(np.quantile(values, [0.1, 0.9])), rel=1e-12)
    assert low < high


def test_bootstrap_takes_any_function_of_the_outcomes() -> None:
    probs, labels = predictions(60, 4, seed=11)
    fifteen = bootstrap_interval(lambda outcomes: outcomes.ece(bins=15), probs, labels, resamples=50)
    assert fifteen != bootstrap_interval(Outcomes.ece, probs, labels, resamples=50)


def test_bootstrap_repeats_with_its_seed_and_moves_no_global_generator() -> None:
    probs, labels = predictions(60, 4, seed=12)
    state = torch.random.get_rng_state()
    once, twice, other = (bootstrap_interval(Outcomes.nlpd, probs, labels, resamples=50, seed=s) for s in (0, 0, 1))
    assert once == twice != other
    assert torch.equal(torch.random.get_rng_state(), state)


def test_bootstrap_does_not_depend_on_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    probs, labels = predictions(60, 4, seed=13)
    whole = bootstrap_interval(Outcomes.nlpd, probs, labels, resamples=50)
    for block in (1, 7 * 60 + 1):
        monkeypatch.setattr(metrics, "_BLOCK", block)
        assert bootstrap_interval(Outcomes.nlpd, probs, labels, resamples=50) == whole


def test_bootstrap_of_a_mean_agrees_with_its_standard_error() -> None:
    probs, labels = predictions(1500, 4, seed=14)
    estimate = nlpd(probs, labels)
    low, high = bootstrap_interval(Outcomes.nlpd, probs, labels, resamples=2000)
    assert low < estimate.value < high
    assert high - low == pytest.approx(2 * 1.96 * estimate.standard_error, rel=0.1)


@pytest.mark.parametrize(("batched", "truth"), [(Outcomes.accuracy, 0.6), (Outcomes.ece, 0.3)])
def test_bootstrap_intervals_cover_the_truth_about_as_often_as_they_say(batched: Any, truth: float) -> None:
    """Confidence 0.9, right with probability 0.6, 300 experiments: 90 %, give or take three times 1.7 %."""
    draws = generator(15)
    covered = 0
    for seed in range(300):
        correct = (torch.rand(200, generator=draws) < 0.6).tolist()
        low, high = bootstrap_interval(batched, *two_classes([0.9] * 200, correct), level=0.9, resamples=200, seed=seed)
        covered += low <= truth <= high
    assert 0.85 <= covered / 300 <= 0.95


# --------------------------------------------------------------------------------------------------------------- inputs


def test_float16_probabilities_and_small_integers_are_taken() -> None:
    probs, labels = predictions(200, 50, seed=16)
    for metric in (accuracy, nlpd, brier):
        half = metric(probs.half(), labels.to(torch.uint8)).value
        assert half == pytest.approx(metric(probs, labels).value, rel=2e-3), metric.__name__


def test_gradients_and_inputs_are_left_alone() -> None:
    probs, labels = predictions(30, 3, seed=17)
    before = probs.clone()
    wanted = probs.requires_grad_()
    for metric in METRICS:
        metric(wanted, labels)
    outcomes = Outcomes.of(wanted, labels)
    assert not outcomes.nll.requires_grad
    assert not outcomes.confidence.requires_grad
    assert torch.equal(wanted.detach(), before)


def test_outcomes_are_what_they_say() -> None:
    probs = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]], dtype=torch.float64)
    outcomes = Outcomes.of(probs, torch.tensor([0, 2]))
    assert outcomes.labels.tolist() == [0, 2]
    assert outcomes.confidence.tolist() == [0.5, 0.6]
    assert outcomes.correct.tolist() == [True, False]
    assert outcomes.nll.tolist() == pytest.approx([-math.log(0.5), -math.log(0.3)], rel=1e-15)
    assert outcomes.squared_error.tolist() == pytest.approx([0.25 + 0.09 + 0.04, 0.01 + 0.36 + 0.49], rel=1e-14)
    again = outcomes.take(torch.tensor([[1, 1], [0, 1]]))
    assert again.confidence.tolist() == [[0.6, 0.6], [0.5, 0.6]]
    assert again.accuracy().tolist() == [0.0, 0.5]


GOOD = torch.tensor([[0.5, 0.5], [0.2, 0.8]])
LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize(
    ("probs", "labels", "sentence"),
    [
        (GOOD[0], LABELS, r"probs has shape \[2\] and torch.float32; it must be floating-point numbers \[N, C\]"),
        (GOOD.round().long(), LABELS, r"probs has shape \[2, 2\] and torch.int64; it must be floating-point"),
        (GOOD[:0], LABELS[:0], r"probs has shape \[0, 2\]; give at least one input and two classes"),
        (GOOD[:, :1], LABELS, r"probs has shape \[2, 1\]; give at least one input and two classes"),
        (GOOD, LABELS.float(), r"labels has shape \[2\] and torch.float32; it must be integers \[N\]"),
        (GOOD, LABELS.bool(), r"labels has shape \[2\] and torch.bool; it must be integers \[N\]"),
        (GOOD, LABELS[None], r"labels has shape \[1, 2\] and torch.int64; it must be integers \[N\]"),
        (GOOD, LABELS[:1], "probs has 2 rows and there are 1 labels; give one label per row"),
        (GOOD, LABELS + 1, "labels run from 1 to 2, but probs has 2 classes; number them 0 to 1"),
        (GOOD, LABELS - 1, "labels run from -1 to 0, but probs has 2 classes"),
        (torch.tensor([[0.5, 0.5], [math.nan, 1.0]]), LABELS, "probs holds NaN or Inf, first in row 1"),
        (torch.tensor([[math.inf, 0.5], [math.nan, 1.0]]), LABELS, "probs holds NaN or Inf, first in row 0"),
        (torch.tensor([[0.5, 0.5], [1.25, -0.25]]), LABELS, "probs holds -0.25; probabilities are not negative"),
        (torch.tensor([[0.5, 0.5], [0.2, 0.802]]), LABELS, "Row 1 of probs sums to 1.002; each must sum to one"),
        (100 * GOOD, LABELS, "Row 0 of probs sums to 100; each must sum to one within 0.001: pass the softmax"),
    ],
)
def test_bad_inputs_are_refused_in_a_sentence(metric: Any, probs: Tensor, labels: Tensor, sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        metric(probs, labels)


def test_sums_within_the_tolerance_are_taken() -> None:
    assert accuracy(torch.tensor([[0.2, 0.8005], [0.7995, 0.2]]), LABELS).value == 0.0


@pytest.mark.parametrize("metric", [reliability, ece, adaptive_ece])
@pytest.mark.parametrize("bins", [0, -3, 2.5])
def test_bins_are_a_positive_whole_number(metric: Any, bins: Any) -> None:
    with pytest.raises(BayesVLMError, match=f"bins={bins}; it must be a whole number of at least 1"):
        metric(GOOD, LABELS, bins)
    assert metric(GOOD, LABELS, np.int64(20)) is not None


@pytest.mark.parametrize("level", [0.0, 1.0, 95, math.nan])
def test_a_level_lies_between_zero_and_one(level: float) -> None:
    with pytest.raises(BayesVLMError, match=f"level={level}; it must lie between 0 and 1"):
        bootstrap_interval(Outcomes.ece, GOOD, LABELS, level=level)


def test_a_bootstrap_needs_resamples() -> None:
    with pytest.raises(BayesVLMError, match="resamples=0; give at least 1"):
        bootstrap_interval(Outcomes.ece, GOOD, LABELS, resamples=0)


def test_a_metric_that_mixes_the_resamples_is_refused() -> None:
    with pytest.raises(BayesVLMError, match=r"The metric gave shape \[\] for 10 resamples; it must reduce outcomes"):
        bootstrap_interval(lambda outcomes: outcomes.nll.mean(), GOOD, LABELS, resamples=10)


def test_arrays_and_lists_are_as_good_as_tensors() -> None:
    probs, labels = [[0.5, 0.5], [0.2, 0.8], [0.9, 0.1]], [0, 1, 1]
    expected = nlpd(torch.tensor(probs), torch.tensor(labels))
    assert nlpd(torch.tensor(probs).numpy(), torch.tensor(labels).numpy()) == expected
    assert nlpd(torch.tensor(probs), labels) == expected


def test_true_is_no_number_of_bins() -> None:
    with pytest.raises(BayesVLMError, match="bins=True"):
        ece(torch.tensor([[0.5, 0.5]]), torch.tensor([0]), bins=True)
