"""Proper scores and calibration of class probabilities [N, C], with their uncertainty.

The mathematics: docs/method.md, "Metrics".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.evaluation.outcomes import Outcomes, Reliability, negative_log_likelihood

_BLOCK = 2**20  # outcomes the bootstrap draws at a time: some 100 MiB, however many inputs and resamples


@dataclass(frozen=True)
class Estimate:
    """A mean over inputs and its standard error.

    >>> print(Estimate(0.61234, 0.00123))
    0.6123 ± 0.0012
    """

    value: float
    standard_error: float

    @classmethod
    def of(cls, values: Tensor) -> Estimate:  # [N]
        """Mean and std / sqrt(N), with N - 1 in the variance; NaN for the error of a single value."""
        values = values.double()
        error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        return cls(float(values.mean()), error)

    def __str__(self) -> str:
        """Both to the second digit of the error, six decimals at most."""
        if not 0 < self.standard_error < math.inf:
            return f"{self.value:.4g} ± {self.standard_error:.2g}"
        decimals = min(6, max(0, 1 - math.floor(math.log10(self.standard_error))))
        return f"{self.value:.{decimals}f} ± {self.standard_error:.{decimals}f}"


def accuracy(probs: Tensor, labels: Tensor) -> Estimate:  # [N, C], [N]
    """Share of inputs whose most probable class (the first of equals) is the label."""
    return Estimate.of(Outcomes.of(probs, labels).correct)


def nlpd(probs: Tensor, labels: Tensor) -> Estimate:  # [N, C], [N]
    """Negative log predictive density, mean of -log p_y in nats.

    A probability of zero counts as the smallest normal number of its dtype: 87 nats in float32, 708 in float64.
    """
    return Estimate.of(negative_log_likelihood(probs, labels))


def brier(probs: Tensor, labels: Tensor) -> Estimate:  # [N, C], [N]
    """Brier score, mean of sum_c (p_c - [c = y])^2: between 0 and 2, not halved when there are two classes."""
    return Estimate.of(Outcomes.of(probs, labels).squared_error)


def balanced_accuracy(probs: Tensor, labels: Tensor) -> float:  # [N, C], [N]
    """Mean of the accuracies within each class, over the classes that occur among the labels."""
    return float(Outcomes.of(probs, labels).balanced_accuracy())


def reliability(probs: Tensor, labels: Tensor, bins: int = 20) -> Reliability:  # [N, C], [N]
    """Mean top-label confidence and accuracy in bins of equal width: [b/B, (b+1)/B), the last with its right end.

    A confidence on an edge belongs to the bin above, one of exactly 1 to the last; the edges are rounded to the dtype
    of the probabilities. Empty bins are NaN, with count 0.
    """
    return Outcomes.of(probs, labels).reliability(bins)


def ece(probs: Tensor, labels: Tensor, bins: int = 20) -> float:  # [N, C], [N]
    """Expected calibration error, sum_b count_b / N |accuracy_b - confidence_b|, over the bins of `reliability`."""
    return float(Outcomes.of(probs, labels).ece(bins))


def adaptive_ece(probs: Tensor, labels: Tensor, bins: int = 20) -> float:  # [N, C], [N]
    """Expected calibration error over bins of equal mass, N/B inputs each.

    An input on the border of two bins is shared between them and equal confidences are shared evenly, so that the
    order of the inputs does not matter.
    """
    return float(Outcomes.of(probs, labels).adaptive_ece(bins))


def bootstrap_interval(
    metric: Callable[[Outcomes], Tensor],
    probs: Tensor,  # [N, C]
    labels: Tensor,  # [N]
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap over inputs: the middle `level` of the metric over resamples with replacement.

    A calibration error is a sum of absolute values, so that noise only adds to it, and a resample is noisier than its
    sample: for a nearly calibrated model the interval lies high, and may lie wholly above `ece`.

    Args:
        metric: `Outcomes.ece`, `Outcomes.balanced_accuracy`, `lambda outcomes: outcomes.ece(bins=15)`, or any function
            from outcomes [R, N] to values [R].
        probs, labels: reduced to `Outcomes` once; resamples are drawn of those.
        level: probability mass of the interval.
        resamples: how many to draw.
        seed: of the draws, which are the same on every device.
    """
    return outcomes_interval(metric, Outcomes.of(probs, labels), level, resamples, seed)


def outcomes_interval(
    metric: Callable[[Outcomes], Tensor], outcomes: Outcomes, level: float = 0.95, resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """`bootstrap_interval` where the probabilities are already reduced, [N]."""
    if not 0 < level < 1:
        raise BayesVLMError(f"level={level}; it must lie between 0 and 1, such as 0.95.")
    if resamples < 1:
        raise BayesVLMError(f"resamples={resamples}; give at least 1, and 1000 or more for a 95 % interval.")
    count, generator = len(outcomes.labels), torch.Generator().manual_seed(seed)
    values, size = [], max(1, _BLOCK // count)
    for start in range(0, resamples, size):
        rows = torch.randint(count, (min(size, resamples - start), count), generator=generator)
        block = metric(outcomes.take(rows.to(outcomes.labels.device)))
        if block.shape != rows.shape[:1]:
            raise BayesVLMError(
                f"The metric gave shape {list(block.shape)} for {len(rows)} resamples; it must reduce outcomes [R, N] "
                "over their last dimension, to [R]."
            )
        values.append(block.double().cpu())
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = torch.cat(values).quantile(tails).tolist()
    return low, high
