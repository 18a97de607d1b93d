"""DeLong against its definition and a simulation; resamples from counts against resamples from scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.evaluation import (
    DeLong,
    aupr,
    aurc,
    auroc,
    auroc_interval,
    delong,
    fpr95,
    paired_bootstrap,
    rank_interval,
)

from . import references
from .references import generator

METRICS = [auroc, aupr, fpr95]
pairs = st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.booleans()), min_size=4, max_size=30).filter(
    lambda cases: 2 <= sum(flag for *_, flag in cases) <= len(cases) - 2
)


def two_scores(
    rows: int, seed: int, shifts: tuple[float, float] = (1.0, 1.0), share: float = 0.4, round_to: float | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Two scores that have half of their noise in common, higher for positives by `shifts`."""
    draws = generator(seed)
    positives = torch.rand(rows, generator=draws) < share
    common, *own = torch.randn(3, rows, generator=draws, dtype=torch.float64)
    a, b = (common + noise + shift * positives for noise, shift in zip(own, shifts, strict=True))
    if round_to is not None:
        a, b = ((score / round_to).round() * round_to for score in (a, b))
    return a, b, positives


def by_definition(a: Tensor, b: Tensor, positives: Tensor) -> tuple[float, float]:
    """Difference and standard error of DeLong, pair by pair, with numpy's covariance matrices."""
    components = [references.pair_components(score.tolist(), positives.tolist()) for score in (a, b)]
    covariance = sum(np.cov(np.array([of[kind] for of in components])) / len(components[0][kind]) for kind in range(2))
    weights = np.array([1.0, -1.0])
    areas = [float(np.mean(of[0])) for of in components]
    return areas[0] - areas[1], math.sqrt(max(0.0, float(weights @ covariance @ weights)))


# ------------------------------------------------------------------------------------------------------------- DeLong


@given(pairs)
@settings(max_examples=100, deadline=None)
def test_delong_against_its_definition_with_ties(cases: list[tuple[int, int, bool]]) -> None:
    a, b = (torch.tensor([float(case[k]) for case in cases]) for k in range(2))
    positives = torch.tensor([flag for *_, flag in cases])
    found = delong(a, b, positives)
    difference, error = by_definition(a, b, positives)
    assert (found.first, found.second) == pytest.approx((auroc(a, positives), auroc(b, positives)), abs=1e-14)
    assert found.difference == pytest.approx(difference, abs=1e-13)
    assert found.standard_error == pytest.approx(error, abs=1e-7), "a root of differences that cancel"
    assert 0 <= found.p <= 1


@pytest.mark.parametrize("rows", [30, 300])
@pytest.mark.parametrize("shifts", [(1.0, 1.0), (1.5, 0.5), (0.0, 3.0)])
def test_delong_in_numbers(rows: int, shifts: tuple[float, float]) -> None:
    a, b, positives = two_scores(rows, 0, shifts)
    found = delong(a, b, positives)
    difference, error = by_definition(a, b, positives)
    assert (found.difference, found.standard_error) == pytest.approx((difference, error), rel=1e-10)
    assert found.p == pytest.approx(2 * scipy.stats.norm.sf(abs(difference) / error), rel=1e-9)


def test_the_standard_error_is_that_of_repeated_samples() -> None:
    """400 samples of 200: the estimate is within 10 % of the spread, whose own error is 3.5 %."""
    found = [delong(*two_scores(200, 100 + k, (1.5, 1.0))) for k in range(400)]
    spread = np.std([each.difference for each in found])
    assert np.mean([each.standard_error for each in found]) == pytest.approx(spread, rel=0.1)


def test_false_alarms_come_as_often_as_the_level_says() -> None:
    """1,000 comparisons of equals at 5 %: three standard deviations are 2.1 %."""
    alarms = sum(delong(*two_scores(120, 5000 + k)).p < 0.05 for k in range(1000))
    assert 0.025 <= alarms / 1000 <= 0.08


def test_pairing_sees_what_separate_intervals_do_not() -> None:
    a, _, positives = two_scores(600, 1)
    b = a - 0.15 * positives + 0.02 * torch.randn(600, generator=generator(2), dtype=torch.float64)
    low, high = auroc_interval(a, positives)
    assert low < auroc(b, positives) < high
    assert delong(a, b, positives).p < 1e-6


def test_turning_it_round_turns_the_sign() -> None:
    a, b, positives = two_scores(50, 3)
    there, back = delong(a, b, positives), delong(b, a, positives)
    assert (there.first, there.difference, there.p) == pytest.approx((back.second, -back.difference, back.p), rel=1e-12)
    other = delong(-a, -b, positives)
    assert other.difference == pytest.approx(-there.difference, abs=1e-14)
    assert other.standard_error == pytest.approx(there.standard_error, rel=1e-10)


def test_only_the_order_counts() -> None:
    a, b, positives = two_scores(60, 4)
    assert delong(a.exp(), 3 * b - 7, positives) == delong(a, b, positives)


def test_the_same_ranking_and_one_that_is_perfect() -> None:
    a, _, positives = two_scores(40, 5)
    same = delong(a, 2 * a, positives)
    assert same == DeLong(same.first, same.first, 0.0, 0.0, 1.0)
    assert same.first == pytest.approx(auroc(a, positives), abs=1e-15)
    perfect = positives.double()
    assert delong(perfect, -perfect, positives) == DeLong(1.0, 0.0, 1.0, 0.0, 0.0)
    assert auroc_interval(perfect, positives) == (1.0, 1.0)
    infinite = torch.where(positives, math.inf, -math.inf)
    assert delong(infinite, perfect, positives).p == 1.0


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_the_interval_of_one_auroc_covers_as_often_as_it_says(level: float) -> None:
    """500 samples; the AUROC of two normals a standard deviation of the difference apart is Phi(1 / 2)."""
    truth = float(scipy.stats.norm.cdf(0.5))
    hits = 0
    for k in range(500):
        a, _, positives = two_scores(200, 9000 + k, (1.0, 1.0))
        low, high = auroc_interval(a, positives, level)
        hits += low <= truth <= high
    assert hits / 500 == pytest.approx(level, abs=0.08)


# ---------------------------------------------------------------------------------------------------------- bootstrap


@pytest.mark.parametrize("round_to", [None, 0.5])
@pytest.mark.parametrize("metric", METRICS)
def test_counts_give_what_scores_give(metric: Callable[..., float], round_to: float | None) -> None:
    """A function that nothing is known of is called on every resample: the same resamples, the same interval."""
    a, b, positives = two_scores(70, 6, (1.5, 0.5), round_to=round_to)
    slow = partial(metric)
    assert rank_interval(metric, a, positives, 200) == pytest.approx(rank_interval(slow, a, positives, 200), abs=1e-13)
    fast, called = (paired_bootstrap(each, a, b, positives, 200) for each in (metric, slow))
    assert (fast.difference, fast.low, fast.high) == pytest.approx(
        (called.difference, called.low, called.high), abs=1e-12
    )
    assert fast.difference == metric(a, positives) - metric(b, positives)


@pytest.mark.parametrize("block", [1, 500, 10**9])
def test_blocks_change_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The draws of one kind after the other: blocks of another size are other draws, of the same distribution."""
    a, _, positives = two_scores(100, 7)
    whole = rank_interval(auroc, a, positives, 3000)
    monkeypatch.setattr("bayesvlm.evaluation.ranking._BLOCK", block)
    assert rank_interval(auroc, a, positives, 3000) == pytest.approx(whole, abs=0.02)


@pytest.mark.parametrize("metric", METRICS)
def test_the_interval_is_about_the_spread_of_repeated_samples(metric: Callable[..., float]) -> None:
    spread = np.std([metric(*two_scores(400, 300 + k)[::2]) for k in range(300)])
    widths = [np.diff(rank_interval(metric, *two_scores(400, 300 + k)[::2], resamples=300))[0] for k in range(20)]
    assert np.mean(widths) / (2 * 1.96) == pytest.approx(spread, rel=0.3)


def test_the_bootstrap_agrees_with_delong() -> None:
    a, b, positives = two_scores(500, 8, (1.3, 0.9))
    exact, drawn = delong(a, b, positives), paired_bootstrap(auroc, a, b, positives, 4000)
    assert drawn.difference == pytest.approx(exact.difference, abs=1e-14)
    assert (drawn.high - drawn.low) / (2 * 1.96) == pytest.approx(exact.standard_error, rel=0.1)
    assert paired_bootstrap(auroc, a, a - positives.double(), positives).p == pytest.approx(2 / 1001)
    assert paired_bootstrap(auroc, a, a, positives).p == 1.0


def test_both_kinds_are_drawn_as_often_as_they_occur() -> None:
    _, _, positives = two_scores(50, 9)
    assert rank_interval(aupr, torch.zeros(50), positives) == pytest.approx((float(positives.double().mean()),) * 2)


def test_a_seed_is_a_resample_and_a_level_a_width() -> None:
    a, _, positives = two_scores(100, 10)
    assert rank_interval(auroc, a, positives, seed=1) == rank_interval(auroc, a, positives, seed=1)
    assert rank_interval(auroc, a, positives, seed=1) != rank_interval(auroc, a, positives, seed=2)
    narrow, wide = (rank_interval(auroc, a, positives, level=level) for level in (0.5, 0.99))
    assert wide[0] < narrow[0] < auroc(a, positives) < narrow[1] < wide[1]


def test_any_metric_of_scores_and_flags() -> None:
    a, _, wrong = two_scores(60, 11)
    low, high = rank_interval(lambda scores, flags: aurc(scores, ~flags), a, wrong, 100)
    assert low < aurc(a, ~wrong) < high


# -------------------------------------------------------------------------------------------------------------- errors

SCORES, KINDS = torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([True, False, True, False])


@pytest.mark.parametrize(
    "function", [partial(auroc_interval), partial(rank_interval, auroc), partial(rank_interval, partial(fpr95))]
)
def test_bad_inputs_of_one_score(function: Any) -> None:
    for scores, kinds, sentence in (
        (SCORES, KINDS.new_ones(4), "4 of 4 inputs are positive; a ranking needs both kinds"),
        (SCORES, KINDS[:2], r"positives has shape \[2\] and torch.bool; it must be bool \[4\], one for each of scores"),
        (SCORES * math.nan, KINDS, "scores holds 4 NaN, which have no rank"),
        (SCORES[:0], KINDS[:0], r"scores has shape \[0\]; it must be \[N\], one number per input, at least one"),
    ):
        with pytest.raises(BayesVLMError, match=sentence):
            function(scores, kinds)
    for level in (0.0, 1.0, math.nan):
        with pytest.raises(BayesVLMError, match=f"level={level}; it must lie between 0 and 1"):
            function(SCORES, KINDS, level=level)


@pytest.mark.parametrize("function", [delong, partial(paired_bootstrap, auroc)])
def test_bad_inputs_of_two_scores(function: Any) -> None:
    with pytest.raises(BayesVLMError, match=r"a has shape \[4\] and b \[3\]; both must score the same inputs"):
        function(SCORES, SCORES[:3], KINDS)
    with pytest.raises(BayesVLMError, match="b holds 4 NaN"):
        function(SCORES, SCORES * math.nan, KINDS)
    with pytest.raises(BayesVLMError, match="0 of 4 inputs are positive"):
        function(SCORES, SCORES, ~KINDS.new_ones(4))


def test_a_standard_error_needs_two_of_each() -> None:
    with pytest.raises(BayesVLMError, match="There are 1 positive and 3 negative inputs; a standard error needs two"):
        delong(SCORES, SCORES, torch.tensor([True, False, False, False]))


def test_resamples_are_at_least_one() -> None:
    with pytest.raises(BayesVLMError, match="resamples=0; give at least 1"):
        rank_interval(auroc, SCORES, KINDS, 0)
