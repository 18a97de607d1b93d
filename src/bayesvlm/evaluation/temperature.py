r"""Temperature scaling (Guo et al. 2017): softmax(z / T), T by the NLPD of a validation set.

With d = z - z_y and beta = 1/T the NLPD and its slope in beta are

    mean log sum_c exp(beta d_c),                  mean sum_c softmax(beta d)_c d_c

a log-sum-exp of linear functions, hence convex: the slope has one root, found by bracketing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from scipy.optimize import brentq
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError, check_positive
from bayesvlm.evaluation.outcomes import check_labelled

_NUMBERS = 2**22  # logits handled at a time: 32 MiB in float64


@dataclass(frozen=True)
class Temperature:
    """The best temperature, the NLPD it reaches, and whether a bound stopped it."""

    value: float
    nlpd: float
    at_edge: bool


@torch.no_grad()
def fit_temperature(
    logits: Tensor,  # [N, C]
    labels: Tensor,  # [N]
    bounds: tuple[float, float] = (0.01, 100.0),
) -> Temperature:
    """The T within `bounds` that minimises the NLPD of softmax(logits / T), to 1e-12 in log T.

    At an edge the data ask for more: the lower one where every label has the largest logit (the NLPD falls to zero with
    T), the upper one where the logits say nothing of the labels, or are all equal and every T is as good.
    """
    low, high = (check_positive("bounds", bound) for bound in bounds)
    if low >= high:
        raise BayesVLMError(f"bounds={bounds}; the first must be below the second.")
    labels = check_labelled("logits", logits, labels)
    count = len(labels)

    def excesses() -> Iterator[Tensor]:  # [n, C]
        """z - z_y in float64, a few rows at a time: all of them would be copied three times over."""
        step = max(1, _NUMBERS // logits.shape[1])
        for rows in torch.split(torch.arange(count, device=logits.device), step):
            chunk = logits[rows].double()
            yield chunk - chunk.gather(1, labels[rows, None])

    def nlpd(temperature: float) -> float:
        return sum(float(torch.logsumexp(excess / temperature, dim=1).sum()) for excess in excesses()) / count

    def slope(log_temperature: float) -> float:
        total = 0.0
        for excess in excesses():
            weights = torch.softmax(excess / math.exp(log_temperature), dim=1)
            total += float((weights * excess).sum())
        return total / count

    if slope(math.log(high)) >= 0:
        return Temperature(high, nlpd(high), at_edge=True)
    if slope(math.log(low)) <= 0:
        return Temperature(low, nlpd(low), at_edge=True)
    best = math.exp(brentq(slope, math.log(low), math.log(high), xtol=1e-12))
    return Temperature(best, nlpd(best), at_edge=False)


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:  # [N, C] -> [N, C]
    """softmax(logits / T), computed in float64 and returned in the dtype of the logits."""
    if not bool(torch.isfinite(logits).all()):
        raise BayesVLMError("The logits hold NaN or Inf; a temperature cannot mend them: drop those inputs.")
    return torch.softmax(logits.double() / check_positive("temperature", temperature), dim=-1).to(logits.dtype)
