r"""The prior precision lam, by maximising the evidence on eigenvalues.

The mathematics: docs/method.md, "Prior precision".

    log p(D) = const - lam/2 |W|^2 + P/2 log lam - 1/2 logdet(precision),     P = p d

With the eigenvalues alpha of A and beta of B the log-determinant is a sum of scalars, and the slope in `log lam` is a
sum of positive, strictly falling terms minus `lam |W|^2 / 2`: one root, found by bracketing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from scipy.optimize import brentq
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError, check_choice, check_positive
from bayesvlm.core.factors import spectrum, symmetric
from bayesvlm.core.printing import described

Structure = Literal["damped", "exact"]
Objective = Literal["evidence", "official"]


def optimal_prior_precision(
    A: Tensor,  # [p, p]
    B: Tensor,  # [d, d]
    weight_norm_squared: float,
    tau: float = 1.0,
    structure: Structure = "damped",
    objective: Objective = "evidence",
) -> float:
    """The lam that maximises the evidence, to 1e-10 in log lam.

    Args:
        A, B: Kronecker factors, 1/sqrt(n) included.
        weight_norm_squared: |W|^2 of the projection, bias included.
        tau: pseudo-data count.
        structure: of the precision: "damped" (the paper) or "exact" (tau A (x) B + lam I).
        objective: "evidence", or "official": the authors' first release, p and d swapped in the log-determinant and
            no 1/2 on it. For reading published numbers only; damped by construction.
    """
    alpha = spectrum(symmetric(A, "A"), "A").values
    beta = spectrum(symmetric(B, "B"), "B").values
    return Evidence(alpha, beta, weight_norm_squared, tau, structure, objective).best_lam()


@dataclass(frozen=True, eq=False)
class Evidence:
    """The log evidence of one tower as a function of log lam, on the eigenvalues of its factors.

    Args:
        alpha, beta: eigenvalues of A and B (1/sqrt(n) included), none negative.
        weight_norm_squared, tau, structure, objective: as for `optimal_prior_precision`.
    """

    alpha: Tensor  # [p]
    beta: Tensor  # [d]
    weight_norm_squared: float
    tau: float = 1.0
    structure: Structure = "damped"
    objective: Objective = "evidence"

    __repr__ = described

    def __post_init__(self) -> None:
        check_positive("|W|^2", self.weight_norm_squared)
        check_positive("tau", self.tau)
        check_choice("structure", self.structure, get_args(Structure))
        check_choice("objective", self.objective, get_args(Objective))
        if self.objective == "official" and self.structure == "exact":
            raise BayesVLMError(
                "objective='official' exists for structure='damped' only; use 'evidence' for an exact posterior."
            )
        for name, values in (("alpha", self.alpha), ("beta", self.beta)):
            if not bool((torch.isfinite(values) & (values >= 0)).all()):
                raise BayesVLMError(
                    f"The eigenvalues {name} hold negative numbers, NaN or Inf; take them from `spectrum`."
                )
            object.__setattr__(self, name, values.double())

    def value(self, log_lam: float) -> float:
        """The objective, without its constant."""
        p, d, lam = len(self.alpha), len(self.beta), math.exp(log_lam)
        prior = -lam / 2 * self.weight_norm_squared + p * d / 2 * log_lam
        if self.structure == "exact":
            return prior - float(torch.log(self.tau * torch.outer(self.alpha, self.beta) + lam).sum()) / 2
        logdet_A = float(torch.log(math.sqrt(self.tau) * self.alpha + math.sqrt(lam)).sum())
        logdet_B = float(torch.log(math.sqrt(self.tau) * self.beta + math.sqrt(lam)).sum())
        if self.objective == "official":
            return prior - (p * logdet_A + d * logdet_B)
        return prior - (d * logdet_A + p * logdet_B) / 2

    def slope(self, log_lam: float) -> float:
        """The derivative of `value` in log lam: what the data know minus `lam |W|^2 / 2`, strictly falling."""
        lam = math.exp(log_lam)
        return self._known(lam) - lam * self.weight_norm_squared / 2

    def best_lam(self) -> float:
        """The lam at which the slope is zero."""
        low = high = -math.log(self.weight_norm_squared)  # where lam |W|^2 = 1
        step = 1.0
        while self.slope(low) < 0:
            low, step = low - step, 2 * step
            if low < -600:
                raise BayesVLMError(
                    f"The {self.objective} has no maximum: it rises as lam falls to zero (tau={self.tau}, "
                    f"structure={self.structure!r}). The factors carry no curvature the prior could be weighed "
                    "against; estimate them on real pairs."
                )
        step = 1.0
        while self.slope(high) > 0:
            high, step = high + step, 2 * step
            if high > 600:
                raise BayesVLMError(f"The {self.objective} has no maximum below lam = e^600; check the factors' scale.")
        if low == high:
            return math.exp(low)
        return math.exp(brentq(self.slope, low, high, xtol=1e-14, rtol=4 * torch.finfo(torch.float64).eps, maxiter=500))

    def implied_weight_norm_squared(self, lam: float) -> float:
        """The |W|^2 for which `lam` would be the best: what a published lam says about its projection."""
        return 2 * self._known(lam) / lam

    def _known(self, lam: float) -> float:
        """P/2 minus half the slope of the log-determinant; for the evidence as one sum, so that nothing cancels."""
        p, d = len(self.alpha), len(self.beta)
        if self.structure == "exact":
            curvature = self.tau * torch.outer(self.alpha, self.beta)
            return float((curvature / (curvature + lam)).sum()) / 2
        root, scaled_alpha, scaled_beta = (
            math.sqrt(lam),
            math.sqrt(self.tau) * self.alpha,
            math.sqrt(self.tau) * self.beta,
        )
        if self.objective == "official":
            shrunk = p * float((root / (scaled_alpha + root)).sum()) + d * float((root / (scaled_beta + root)).sum())
            return (p * d - shrunk) / 2
        known_A = float((scaled_alpha / (scaled_alpha + root)).sum())
        known_B = float((scaled_beta / (scaled_beta + root)).sum())
        return (d * known_A + p * known_B) / 4
