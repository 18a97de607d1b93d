"""The scores ProLIP and PCME++ were trained with, between Gaussians with a diagonal covariance.

For unit means they are one score: |m - m'|^2 = 2 - 2 m.m', so PCME++'s is ProLIP's with scale 2a and bias b - 2a.
Both split into one product of the means and one number per item, so that no [N, M, d] tensor is needed.
"""

from __future__ import annotations

from torch import Tensor


def csd(
    mean: Tensor,  # [N, d]
    variance: Tensor,  # [N, d]
    other_mean: Tensor,  # [M, d]
    other_variance: Tensor,  # [M, d]
    scale: float | Tensor = 1.0,
    bias: float | Tensor = 0.0,
) -> Tensor:  # [N, M]
    """ProLIP's closed-form sampled distance, as a similarity: scale (m.m' - sum(v + v') / 2) + bias.

    Args:
        mean, other_mean: unit vectors, as the model gives them.
        variance, other_variance: the exponential of the log variances it gives.
        scale: exp(logit_scale) of the model.
        bias: logit_bias of the model.
    """
    return scale * (mean @ other_mean.T - _spread(variance, other_variance) / 2) + bias


def pcmepp_score(
    mean: Tensor,  # [N, d]
    variance: Tensor,  # [N, d]
    other_mean: Tensor,  # [M, d]
    other_variance: Tensor,  # [M, d]
    negative_scale: float | Tensor = 1.0,
    shift: float | Tensor = 0.0,
) -> Tensor:  # [N, M]
    """PCME++'s logit that two items match: -negative_scale (|m - m'|^2 + sum(v + v')) + shift; as for `csd`."""
    norms = mean.square().sum(1)[:, None] + other_mean.square().sum(1)
    distance = norms - 2 * (mean @ other_mean.T) + _spread(variance, other_variance)
    return -negative_scale * distance + shift


def _spread(variance: Tensor, other_variance: Tensor) -> Tensor:  # [N, M]
    return variance.sum(1)[:, None] + other_variance.sum(1)
