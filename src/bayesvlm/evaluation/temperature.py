r"""Temperature scaling (Guo et al. 2017): softmax(z / T), T by the NLPD of a validation set.

With d = z - z_y and beta = 1/T the NLPD and its slope in beta are

    mean log sum_c exp(beta d_c),                  mean sum_c softmax(beta d)_c d_c

a log-sum-exp of linear functions, hence convex: the slope has one root, found by bracketing, and to either side of it
the NLPD only rises.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from scipy.optimize import brentq
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError, check_positive
from bayesvlm.evaluation.metrics import Estimate
from bayesvlm.evaluation.outcomes import check_labelled

_NUMBERS = 2**22  # logits handled at a time: 32 MiB in float64


@dataclass(frozen=True)
class Temperature:
    """A temperature, the NLPD it reaches, and whether a bound stopped it."""

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
    low, high = _checked_bounds(bounds)
    validation = _Validation(logits, check_labelled("logits", logits, labels))
    if validation.slope(math.log(high)) >= 0:
        return Temperature(high, validation.nlpd(high), at_edge=True)
    if validation.slope(math.log(low)) <= 0:
        return Temperature(low, validation.nlpd(low), at_edge=True)
    best = math.exp(brentq(validation.slope, math.log(low), math.log(high), xtol=1e-12))
    return Temperature(best, validation.nlpd(best), at_edge=False)


@torch.no_grad()
def raised_temperature(
    logits: Tensor,  # [N, C]
    labels: Tensor,  # [N]
    bounds: tuple[float, float] = (0.01, 100.0),
) -> Temperature:
    """The largest T within `bounds` whose NLPD is at most one standard error above the smallest.

    Where a shift asks for less confidence than validation images do, this T gives as much less as one standard error
    of their NLPD pays for, with no image of the shift and no posterior. What is said to be better than temperature
    scaling under a shift has to be better than this too. The standard error is that of the mean NLPD at the best T,
    std / sqrt(N). `nlpd` is that at the raised T; `at_edge` says that even the highest T is within it.
    """
    _, high = _checked_bounds(bounds)
    best = fit_temperature(logits, labels, bounds)
    validation = _Validation(logits, check_labelled("logits", logits, labels))
    if validation.count < 2:
        raise BayesVLMError("There is one labelled input, whose NLPD has no standard error; give at least two.")
    limit = best.nlpd + Estimate.of(validation.losses(best.value)).standard_error
    if (reached := validation.nlpd(high)) <= limit:
        return Temperature(high, reached, at_edge=True)
    raised = brentq(lambda value: validation.nlpd(value) - limit, best.value, high, xtol=1e-12, rtol=1e-12)
    return Temperature(raised, validation.nlpd(raised), at_edge=False)


def _checked_bounds(bounds: tuple[float, float]) -> tuple[float, float]:
    low, high = (check_positive("bounds", bound) for bound in bounds)
    if low >= high:
        raise BayesVLMError(f"bounds={bounds}; the first must be below the second.")
    return low, high


class _Validation:
    """What the NLPD of labelled logits is at a temperature; they are read in float64, some rows at a time."""

    def __init__(self, logits: Tensor, labels: Tensor) -> None:  # [N, C], [N]
        self.logits, self.labels, self.count = logits, labels, len(labels)

    def losses(self, temperature: float) -> Tensor:  # [N]
        return torch.cat([torch.logsumexp(excess / temperature, dim=1) for excess in self._excesses()])

    def nlpd(self, temperature: float) -> float:
        return float(self.losses(temperature).sum()) / self.count

    def slope(self, log_temperature: float) -> float:
        """That of the NLPD in 1/T."""
        total = 0.0
        for excess in self._excesses():
            weights = torch.softmax(excess / math.exp(log_temperature), dim=1)
            total += float((weights * excess).sum())
        return total / self.count

    def _excesses(self) -> Iterator[Tensor]:  # [n, C]
        """z - z_y a few rows at a time: all of them would be copied three times over."""
        step = max(1, _NUMBERS // self.logits.shape[1])
        for rows in torch.split(torch.arange(self.count, device=self.logits.device), step):
            chunk = self.logits[rows].double()
            yield chunk - chunk.gather(1, self.labels[rows, None])


def apply_temperature(logits: Tensor, temperature: float) -> Tensor:  # [N, C] -> [N, C]
    """softmax(logits / T), computed in float64 and returned in the dtype of the logits."""
    if not bool(torch.isfinite(logits).all()):
        raise BayesVLMError("The logits hold NaN or Inf; a temperature cannot mend them: drop those inputs.")
    return torch.softmax(logits.double() / check_positive("temperature", temperature), dim=-1).to(logits.dtype)
