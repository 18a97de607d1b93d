"""The paired t-test against its formula in fifty digits, and which methods share the first place."""

from __future__ import annotations

import math

import mpmath
import pytest
import scipy.stats
import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.evaluation import PairedTest, not_worse_than_best, paired_t_test

from .references import generator


def losses(rows: int, shift: float, seed: int) -> tuple[Tensor, Tensor]:
    """Two columns that have most of their spread in common, the first larger by `shift`."""
    draws = generator(seed)
    common = 3 * torch.randn(rows, generator=draws, dtype=torch.float64)
    noise = torch.randn(2, rows, generator=draws, dtype=torch.float64)
    return common + noise[0] + shift, common + noise[1]


def exactly(a: Tensor, b: Tensor) -> tuple[float, float]:
    """t and p from their definitions, in fifty digits: P(|T| >= |t|) is an incomplete beta function."""
    with mpmath.workdps(50):
        differences = [mpmath.mpf(x) - mpmath.mpf(y) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
        n = len(differences)
        mean = mpmath.fsum(differences) / n
        variance = mpmath.fsum((d - mean) ** 2 for d in differences) / (n - 1)
        t = mean / mpmath.sqrt(variance / n)
        x = (n - 1) / (n - 1 + t**2)
        return float(t), float(mpmath.betainc(mpmath.mpf(n - 1) / 2, 0.5, 0, x, regularized=True))


@pytest.mark.parametrize("rows", [2, 3, 30, 2000])
@pytest.mark.parametrize("shift", [0.0, 0.1, -2.0])
def test_against_the_formula(rows: int, shift: float) -> None:
    a, b = losses(rows, shift, seed=rows)
    test = paired_t_test(a, b)
    assert test.difference == pytest.approx(float(a.mean() - b.mean()), abs=1e-13)
    assert (test.t, test.p) == pytest.approx(exactly(a, b), rel=1e-9)


def test_turning_it_round_turns_the_sign() -> None:
    a, b = losses(50, 0.3, seed=0)
    there, back = paired_t_test(a, b), paired_t_test(b, a)
    assert (there.difference, there.t, there.p) == pytest.approx((-back.difference, -back.t, back.p), rel=1e-14)


def test_float32_is_tested_in_float64() -> None:
    a, b = (column.float() for column in losses(50, 0.3, seed=1))
    assert paired_t_test(a, b) == paired_t_test(a.double(), b.double())


def test_no_difference_and_the_same_difference_everywhere() -> None:
    a = torch.tensor([1.0, 2.0, 5.0])
    assert paired_t_test(a, a) == PairedTest(0.0, 0.0, 1.0)
    assert paired_t_test(a + 2, a) == PairedTest(2.0, math.inf, 0.0)
    assert paired_t_test(a - 2, a) == PairedTest(-2.0, -math.inf, 0.0)


@pytest.mark.filterwarnings("error")
def test_nearly_the_same_difference_everywhere() -> None:
    a = torch.tensor([0.1, 0.2, 0.7, 1.3], dtype=torch.float64)
    test = paired_t_test(a + 2, a)
    assert test.t > 1e14
    assert test.p < 1e-40


def test_small_p_values_are_not_rounded_to_zero() -> None:
    a, b = losses(2000, 1.0, seed=2)
    assert 0 < paired_t_test(a, b).p < 1e-100


def test_false_alarms_come_as_often_as_the_level_says() -> None:
    """2,000 comparisons of equals at 5 %: three standard deviations are 1.5 %."""
    alarms = sum(paired_t_test(*losses(20, 0.0, seed=1000 + k)).p < 0.05 for k in range(2000))
    assert 0.035 <= alarms / 2000 <= 0.065


# --------------------------------------------------------------------------------------------------- the first place


def test_those_not_significantly_worse_share_the_first_place() -> None:
    worse, best = losses(400, 0.5, seed=3)
    noise = torch.randn(400, generator=generator(4), dtype=torch.float64)
    close = best + 0.01 * (noise - noise.mean()) + 1e-5
    methods = {"worse": worse, "best": best, "close": close, "far": best.flip(0) + 100}
    assert float(best.mean()) == min(float(column.mean()) for column in methods.values())
    assert not_worse_than_best(methods) == {"best", "close"}


def test_the_level_decides() -> None:
    a, b = losses(100, 0.3, seed=5)
    p = scipy.stats.ttest_rel(a, b).pvalue
    assert 1e-4 < p < 0.5
    assert not_worse_than_best({"a": a, "b": b}, level=1.01 * p) == {"b"}
    assert not_worse_than_best({"a": a, "b": b}, level=0.99 * p) == {"a", "b"}


def test_pairing_sees_what_separate_means_do_not() -> None:
    """A difference of a tenth under a common spread of three: lost to an unpaired test, certain to a paired one."""
    best = 3 * torch.randn(300, generator=generator(6), dtype=torch.float64)
    worse = best + 0.1 + 0.05 * torch.randn(300, generator=generator(7), dtype=torch.float64)
    assert scipy.stats.ttest_ind(worse, best).pvalue > 0.5
    assert not_worse_than_best({"worse": worse, "best": best}) == {"best"}


def test_twins_and_a_method_by_itself() -> None:
    a, _ = losses(20, 0.0, seed=8)
    assert not_worse_than_best({"a": a, "copy": a.clone()}) == {"a", "copy"}
    assert not_worse_than_best({"a": a}) == {"a"}


# ----------------------------------------------------------------------------------------------------------- errors

GOOD = torch.tensor([1.0, 2.0, 4.0])


@pytest.mark.parametrize(
    ("a", "b", "sentence"),
    [
        (
            GOOD,
            GOOD[:2],
            r"'a' has shape \[3\] and 'b' \[2\]; both must be \[N\], one loss for each of the same inputs",
        ),
        (GOOD[None], GOOD[None], r"'a' has shape \[1, 3\] and 'b' \[1, 3\]; both must be \[N\]"),
        (GOOD[:1], GOOD[:1], r"'a' has shape \[1\] and 'b' \[1\]; both must be \[N\].* at least two"),
        (GOOD, GOOD * math.nan, "The losses of 'b' hold NaN or Inf, which no t-test can weigh; clamp or drop them"),
        (GOOD / 0, GOOD, "The losses of 'a' hold NaN or Inf"),
    ],
)
def test_bad_inputs_are_refused_in_a_sentence(a: Tensor, b: Tensor, sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        paired_t_test(a, b)


def test_errors_name_the_methods() -> None:
    with pytest.raises(BayesVLMError, match=r"'ours' has shape \[2\] and 'theirs' \[3\]"):
        not_worse_than_best({"theirs": GOOD, "ours": GOOD[:2] + 10})
    with pytest.raises(BayesVLMError, match="The losses of 'ours' hold NaN or Inf"):
        not_worse_than_best({"theirs": GOOD, "ours": GOOD * math.nan})
    with pytest.raises(BayesVLMError, match="There are no losses to compare; give at least one method"):
        not_worse_than_best({})


@pytest.mark.parametrize("level", [0.0, 1.0, 5, math.nan])
def test_a_level_lies_between_zero_and_one(level: float) -> None:
    with pytest.raises(BayesVLMError, match=f"level={level}; it must lie between 0 and 1"):
        not_worse_than_best({"a": GOOD}, level=level)


def test_losses_that_are_no_numbers_win_nothing() -> None:
    with pytest.raises(BayesVLMError, match="The losses of 'a' hold NaN"):
        not_worse_than_best({"a": torch.tensor([math.nan, 1.0]), "b": torch.ones(2)})
