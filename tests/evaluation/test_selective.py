"""Risk against coverage over all tie orders; AUROC and FPR95 against scikit-learn."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.evaluation import augrc, aupr, aurc, auroc, coverage_at_risk, e_aurc, fpr95, risk_coverage

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


@given(few)
@settings(max_examples=100, deadline=None)
def test_generalised_and_excess_risk_are_means_over_the_orders_of_the_ties(cases: list[tuple[int, bool]]) -> None:
    uncertainty, correct = columns(cases)
    risks, count = references.risks(uncertainty.tolist(), correct.tolist()), len(cases)
    generalised = [(k + 1) / count * risk for k, risk in enumerate(risks)]
    assert augrc(uncertainty, correct) == pytest.approx(sum(generalised) / count, abs=1e-13)
    best = references.best_risks(correct.tolist())
    assert e_aurc(uncertainty, correct) == pytest.approx((sum(risks) - sum(best)) / count, abs=1e-13)
    for level in (0.0, 0.1, 1 / 3, 0.5, 1.0):
        reached = [k + 1 for k, risk in enumerate(risks) if risk <= level + 1e-12]
        assert coverage_at_risk(uncertainty, correct, level) == pytest.approx(
            max(reached, default=0) / count, abs=1e-15
        )


@pytest.mark.parametrize("rows", [2, 17, 1000])
def test_augrc_against_the_trapezoid_of_torch_uncertainty(rows: int) -> None:
    """Theirs counts the first and the last generalised risk by half and divides by N - 1."""
    uncertainty, wrong = scored(rows, seed=rows)
    order = uncertainty.argsort()
    first, last = float(wrong[order[0]]) / rows, float(wrong.double().mean())
    theirs = (rows * augrc(uncertainty, ~wrong) - (first + last) / 2) / (rows - 1)
    assert theirs == pytest.approx(references.trapezoid_augrc(uncertainty.tolist(), (~wrong).tolist()), abs=1e-12)


def test_augrc_is_made_of_the_auroc_and_the_error_rate() -> None:
    """Traub et al.: (1 - AUROC) a (1 - a) + (1 - a)^2 / 2 with the accuracy a, up to 1/N, here exactly."""
    uncertainty, wrong = scored(400, seed=3)
    rate = float(wrong.double().mean())
    expected = (1 - auroc(uncertainty, wrong)) * rate * (1 - rate) + rate**2 / 2 + rate / (2 * 400)
    assert augrc(uncertainty, ~wrong) == pytest.approx(expected, abs=1e-14)


def test_a_perfect_order_has_no_excess_and_a_constant_one_has_half_the_error_rate() -> None:
    correct = torch.arange(100) < 80
    assert e_aurc((~correct).float(), correct) == 0
    assert e_aurc(correct.float(), correct) > e_aurc(torch.ones(100), correct) > 0.1
    assert augrc(torch.ones(100), correct) == pytest.approx(0.2 * 101 / 200, abs=1e-15)
    assert augrc((~correct).float(), correct) == pytest.approx(sum(range(21)) / 100 / 100, abs=1e-15)
    for kind in (torch.ones(7).bool(), torch.zeros(7).bool()):
        assert e_aurc(torch.arange(7), kind) == 0, "nothing to order"


def test_coverage_at_risk_by_hand() -> None:
    uncertainty, correct = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5]), torch.tensor([False, True, True, True, False])
    found = [coverage_at_risk(uncertainty, correct, risk) for risk in (0.0, 0.25, 0.3, 0.4, 1)]
    assert found == [0, 0.8, 0.8, 1, 1], "the largest coverage, however large the risk is before it"
    assert coverage_at_risk(torch.zeros(3), torch.tensor([True, True, False]), 1 / 3) == 1.0


@pytest.mark.parametrize("risk", [-0.1, 1.5, math.nan])
def test_a_risk_is_an_error_rate(risk: float) -> None:
    with pytest.raises(BayesVLMError, match=f"risk={risk}; it is an error rate, from 0 to 1"):
        coverage_at_risk(torch.zeros(2), torch.tensor([True, False]), risk)


# -------------------------------------------------------------------------------------------------------- detection


@given(many)
@settings(max_examples=200, deadline=None)
def test_auroc_and_fpr95_against_scikit_learn_with_ties(cases: list[tuple[int, bool]]) -> None:
    scores, positives = columns(cases)
    assert auroc(scores, positives) == pytest.approx(sklearn.metrics.roc_auc_score(positives, scores), abs=1e-14)
    assert aupr(scores, positives) == pytest.approx(
        sklearn.metrics.average_precision_score(positives, scores), abs=1e-13
    )
    false, true, _ = sklearn.metrics.roc_curve(positives, scores, drop_intermediate=False)
    assert fpr95(scores, positives) == pytest.approx(false[true >= 0.95].min(), abs=1e-15)


@pytest.mark.parametrize("rows", [20, 101, 5000])
def test_auroc_and_fpr95_against_scikit_learn_without_ties(rows: int) -> None:
    scores, positives = scored(rows, seed=rows)
    assert auroc(scores, positives) == pytest.approx(sklearn.metrics.roc_auc_score(positives, scores), abs=1e-14)
    assert aupr(scores, positives) == pytest.approx(
        sklearn.metrics.average_precision_score(positives, scores), abs=1e-13
    )
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
    assert (aupr(scores, positives), aupr(torch.ones(4), positives)) == (1.0, 0.5)
    assert aupr(-scores, positives) == pytest.approx((1 / 3 + 2 / 4) / 2, abs=1e-15)


def test_infinite_scores_rank_as_any_other() -> None:
    positives = torch.tensor([True, False, True, False])
    assert auroc(torch.tensor([math.inf, -math.inf, 0.0, 1.0]), positives) == 0.75
    assert aurc(torch.tensor([math.inf, -math.inf, 0.0, 1.0]), positives) == aurc(torch.tensor([9, 0, 1, 2]), positives)


# ----------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("function", [auroc, fpr95, aupr])
@pytest.mark.parametrize("flag", [True, False])
def test_a_ranking_needs_both_kinds(function: Any, flag: bool) -> None:
    with pytest.raises(BayesVLMError, match=f"{3 * flag} of 3 inputs are positive; a ranking needs both kinds"):
        function(torch.arange(3), torch.full((3,), flag))


@pytest.mark.parametrize(
    ("function", "values", "flags"),
    [
        (risk_coverage, "uncertainty", "correct"),
        (aurc, "uncertainty", "correct"),
        (e_aurc, "uncertainty", "correct"),
        (augrc, "uncertainty", "correct"),
        (partial(coverage_at_risk, risk=0.1), "uncertainty", "correct"),
        (auroc, "scores", "positives"),
        (fpr95, "scores", "positives"),
        (aupr, "scores", "positives"),
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
