"""Risk against coverage over all tie orders; AUROC and FPR95 against scikit-learn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.evaluation import aurc, auroc, fpr95, risk_coverage

from . import references
from .references import generator

few = st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=6)
many = st.lists(st.tuples(st.integers(-8, 8), st.booleans()), min_size=2, max_size=60).filter(
    lambda cases: len({flag for _, flag in cases}) == 2
)


def columns(cases: list[tuple[int, bool]]) -> tuple[Tensor, Tensor]:
    return torch.tensor([float(k) for k, _ in cases]), torch.tensor([flag for _, flag in cases])


def scored(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Scores without ties that are higher for positives by one standard deviation; three in ten are positive."""
    draws = generator(seed)
    positives = torch.rand(rows, generator=draws) < 0.3
    return torch.randn(rows, generator=draws, dtype=torch.float64) + positives, positives


# -------------------------------------------------------------------------------------------------- risk and coverage


@given(few)
@settings(max_examples=100, deadline=None)
def test_risk_is_the_mean_over_all_orders_of_the_ties(cases: list[tuple[int, bool]]) -> None:
    uncertainty, correct = columns(cases)
    expected = references.risks(uncertainty.tolist(), correct.tolist())
    curve = risk_coverage(uncertainty, correct)
    assert curve.coverage.tolist() == pytest.approx([(k + 1) / len(cases) for k in range(len(cases))], abs=1e-15)
    assert curve.risk.tolist() == pytest.approx(expected, abs=1e-13)
    assert aurc(uncertainty, correct) == pytest.approx(sum(expected) / len(expected), abs=1e-13)


def test_risk_coverage_by_hand() -> None:
    curve = risk_coverage(torch.tensor([0.3, 0.1, 0.2, 0.4]), torch.tensor([True, True, False, False]))
    assert curve.coverage.tolist() == [0.25, 0.5, 0.75, 1.0]
    assert curve.risk.tolist() == pytest.approx([0, 1 / 2, 1 / 3, 1 / 2], abs=1e-15)


def test_aurc_without_ties_against_a_loop() -> None:
    uncertainty, wrong = scored(500, seed=0)
    order = np.argsort(uncertainty.numpy())
    errors = np.cumsum(wrong.numpy()[order])
    assert aurc(uncertainty, ~wrong) == pytest.approx(np.mean(errors / np.arange(1, 501)), rel=1e-13)


def test_a_useless_uncertainty_has_the_error_rate_everywhere() -> None:
    correct = torch.tensor([True, True, False, True, False])
    assert risk_coverage(torch.ones(5), correct).risk.tolist() == pytest.approx([0.4] * 5, abs=1e-15)


def test_the_ranking_decides_between_the_best_and_the_worst() -> None:
    correct = torch.arange(100) < 80
    best, worst = aurc((~correct).float(), correct), aurc(correct.float(), correct)
    assert best == pytest.approx(np.mean([max(0, k - 80) / k for k in range(1, 101)]), abs=1e-14)
    assert worst == pytest.approx(np.mean([min(k, 20) / k for k in range(1, 101)]), abs=1e-14)
    assert aurc(torch.arange(100), torch.ones(100, dtype=torch.bool)) == 0  # nothing wrong, nothing to rank
    assert aurc(torch.arange(100), torch.zeros(100, dtype=torch.bool)) == 1


# -------------------------------------------------------------------------------------------------------- detection


@given(many)
@settings(max_examples=200, deadline=None)
def test_auroc_and_fpr95_against_scikit_learn_with_ties(cases: list[tuple[int, bool]]) -> None:
    scores, positives = columns(cases)
    assert auroc(scores, positives) == pytest.approx(sklearn.metrics.roc_auc_score(positives, scores), abs=1e-14)
    false, true, _ = sklearn.metrics.roc_curve(positives, scores, drop_intermediate=False)
    assert fpr95(scores, positives) == pytest.approx(false[true >= 0.95].min(), abs=1e-15)


@pytest.mark.parametrize("rows", [20, 101, 5000])
def test_auroc_and_fpr95_against_scikit_learn_without_ties(rows: int) -> None:
    scores, positives = scored(rows, seed=rows)
    assert auroc(scores, positives) == pytest.approx(sklearn.metrics.roc_auc_score(positives, scores), abs=1e-14)
    false, true, _ = sklearn.metrics.roc_curve(positives, scores, drop_intermediate=False)
    assert fpr95(scores, positives) == pytest.approx(false[true >= 0.95].min(), abs=1e-15)


@pytest.mark.parametrize("count", [19, 20, 21, 60, 100, 140])
def test_ninety_five_percent_is_counted_in_whole_numbers(count: int) -> None:
    """Positives score 1 ... P and the negatives half a step below each: as many are reached as positives, less one."""
    positive = torch.arange(1, count + 1).double()
    scores = torch.cat([positive, positive - 0.5])
    positives = torch.arange(2 * count) < count
    reached = next(k for k in range(count + 1) if 20 * k >= 19 * count)
    assert fpr95(scores, positives) == pytest.approx((reached - 1) / count, abs=1e-15)


def test_perfect_and_reversed_and_constant_scores() -> None:
    positives = torch.tensor([True, True, False, False])
    scores = torch.tensor([4.0, 3.0, 2.0, 1.0])
    assert (auroc(scores, positives), fpr95(scores, positives)) == (1.0, 0.0)
    assert (auroc(-scores, positives), fpr95(-scores, positives)) == (0.0, 1.0)
    assert (auroc(torch.ones(4), positives), fpr95(torch.ones(4), positives)) == (0.5, 1.0)


def test_infinite_scores_rank_as_any_other() -> None:
    positives = torch.tensor([True, False, True, False])
    assert auroc(torch.tensor([math.inf, -math.inf, 0.0, 1.0]), positives) == 0.75
    assert aurc(torch.tensor([math.inf, -math.inf, 0.0, 1.0]), positives) == aurc(torch.tensor([9, 0, 1, 2]), positives)


# ----------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("function", [auroc, fpr95])
@pytest.mark.parametrize("flag", [True, False])
def test_a_ranking_needs_both_kinds(function: Any, flag: bool) -> None:
    with pytest.raises(BayesVLMError, match=f"{3 * flag} of 3 inputs are positive; a ranking needs both kinds"):
        function(torch.arange(3), torch.full((3,), flag))


@pytest.mark.parametrize(
    ("function", "values", "flags"),
    [
        (risk_coverage, "uncertainty", "correct"),
        (aurc, "uncertainty", "correct"),
        (auroc, "scores", "positives"),
        (fpr95, "scores", "positives"),
    ],
)
def test_bad_inputs_are_refused_in_a_sentence(function: Any, values: str, flags: str) -> None:
    numbers, kinds = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([True, False, True])
    for given_numbers, given_kinds, sentence in (
        (numbers[None], kinds[None], rf"{values} has shape \[1, 3\]; it must be \[N\], one number per input"),
        (numbers[:0], kinds[:0], rf"{values} has shape \[0\]; it must be \[N\], one number per input, at least one"),
        (
            numbers,
            kinds[:2],
            rf"{flags} has shape \[2\] and torch.bool; it must be bool \[3\], one for each of {values}",
        ),
        (numbers, kinds.long(), rf"{flags} has shape \[3\] and torch.int64; it must be bool \[3\]"),
        (numbers * math.nan, kinds, f"{values} holds 3 NaN, which have no rank; mend or drop those inputs"),
    ):
        with pytest.raises(BayesVLMError, match=sentence):
            function(given_numbers, given_kinds)
