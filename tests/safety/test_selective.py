"""The threshold on confidence: against brute force, and the promise over many draws."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor

from bayesvlm import BayesVLMError
from bayesvlm.safety.selective import SEQUENCES, fewest_answers, risk_bound, selective_threshold


def answers(count: int, seed: int, sharpness: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """Confidences, whether each answer is right, and the probability that it is."""
    generator = torch.Generator().manual_seed(seed)
    confidence = torch.randn(count, generator=generator, dtype=torch.float64)
    right = torch.sigmoid(1.5 + 2 * sharpness * confidence)
    return confidence, torch.rand(count, generator=generator, dtype=torch.float64) < right, right


def brute_force(confidence: Tensor, correct: Tensor, risk: float, level: float) -> int:
    """How many are answered, by the Clopper-Pearson bound of scipy at every threshold, in every sequence."""
    n, delta = len(confidence), 1 - level
    least = fewest_answers(risk, 1 - delta / SEQUENCES)
    starts = [fewest_answers(risk, level)]
    if n >= 2 * least:
        starts = [round(least * (n / least) ** (i / SEQUENCES)) for i in range(SEQUENCES)]
    best = 0
    for start in starts:
        for value in sorted(set(confidence.tolist()), reverse=True):
            taken = confidence >= value
            k, wrong = int(taken.sum()), int((taken & ~correct).sum())
            if k < start:
                continue
            sure = 1 - delta / len(starts)
            upper = binomtest(wrong, k, alternative="less").proportion_ci(sure, method="exact").high
            if upper > risk:
                break
            best = max(best, k)
    return best


@pytest.mark.parametrize("risk", [0.05, 0.1, 0.25])
@pytest.mark.parametrize("count", [120, 400])
def test_it_is_the_largest_coverage_that_passes_in_any_sequence(risk: float, count: int) -> None:
    found_some = 0
    for seed in range(6):
        confidence, correct, _ = answers(count, seed)
        confidence = (confidence * 20).round() / 20  # ties
        fit = selective_threshold(confidence, correct, risk, 0.9)
        assert fit.answered == brute_force(confidence, correct, risk, 0.9)
        assert fit.answered == int((confidence >= fit.threshold).sum())
        assert fit.wrong == int((~correct)[confidence >= fit.threshold].sum())
        assert fit.coverage == fit.answered / count
        if fit.answered:
            found_some += 1
            assert fit.bound <= risk + 1e-12
    assert found_some >= 1


def test_the_risk_is_kept_as_often_as_promised() -> None:
    """Over 400 draws of 300 images the true risk is above the level in fewer than 10 % of them: 40, and the standard
    deviation of that is 6."""
    above, answered = 0, 0
    fine = torch.linspace(-4, 4, 4001, dtype=torch.float64)
    weight, right = torch.exp(-(fine**2) / 2), torch.sigmoid(1.5 + 2 * fine)
    for seed in range(400):
        confidence, correct, _ = answers(300, 50_000 + seed)
        fit = selective_threshold(confidence, correct, 0.15, 0.9)
        if fit.answered:
            taken = fine >= fit.threshold
            true = float((weight * (1 - right))[taken].sum() / weight[taken].sum())
            above, answered = above + (true > 0.15), answered + 1
    assert answered > 300
    assert above < 55


def test_one_early_mistake_does_not_end_it() -> None:
    confidence = torch.arange(1000, 0, -1).double()
    correct = torch.ones(1000, dtype=torch.bool)
    correct[[3, 20, 30]] = False
    assert selective_threshold(confidence, correct, 0.05).coverage == 1


def test_bounds_are_those_of_scipy() -> None:
    for k, wrong in ((59, 0), (100, 3), (10, 10)):
        expected = binomtest(wrong, k, alternative="less").proportion_ci(0.95, method="exact").high
        assert risk_bound(k, wrong, 0.95) == pytest.approx(expected, abs=1e-9)


def test_nothing_is_answered_where_nothing_can_be_promised() -> None:
    fit = selective_threshold(torch.arange(200.0), torch.arange(200) < 100, 0.1)
    assert (fit.threshold, fit.answered, fit.coverage, fit.bound) == (math.inf, 0, 0.0, 1.0)
    assert selective_threshold(torch.arange(5.0), torch.ones(5), 0.1).answered == 0  # too few


def test_what_it_refuses() -> None:
    confidence, correct, _ = answers(100, 0)
    for risk in (0, 1, -0.1, math.nan, "x"):
        with pytest.raises(BayesVLMError, match="risk="):
            selective_threshold(confidence, correct, risk)  # type: ignore[arg-type]
    with pytest.raises(BayesVLMError, match="confidence="):
        selective_threshold(confidence, correct, 0.1, 95)
    with pytest.raises(BayesVLMError, match=r"are \[100\] and correct \[99\]"):
        selective_threshold(confidence, correct[1:], 0.1)
    with pytest.raises(BayesVLMError, match="NaN or Inf"):
        selective_threshold(confidence / 0, correct, 0.1)
