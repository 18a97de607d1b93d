r"""The prior precision lam, by maximising the evidence on eigenvalues (METHOD section 3).

    log p(D) = const - lam/2 |W|^2 + P/2 log lam - 1/2 logdet(precision),     P = p d

With the eigenvalues alpha of A and beta of B the log-determinant is a sum of scalars, and the slope in `log lam` is a
sum of positive, strictly falling terms minus `lam |W|^2 / 2`: one root, found by bracketing.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from scipy.optimize import brentq
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError, check_choice, check_positive
from bayesvlm.core.factors import spectrum, symmetric

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
    return solve_prior_precision(alpha, beta, weight_norm_squared, tau, structure, objective)


def solve_prior_precision(
    alpha: Tensor,  # [p]
    beta: Tensor,  # [d]
    weight_norm_squared: float,
    tau: float = 1.0,
    structure: Structure = "damped",
    objective: Objective = "evidence",
) -> float:
    """`optimal_prior_precision` from eigenvalues already at hand."""
    if not (math.isfinite(weight_norm_squared) and weight_norm_squared > 0):
        raise BayesVLMError(f"|W|^2 = {weight_norm_squared}; the evidence needs a projection that is not zero.")
    for name, values in (("alpha", alpha), ("beta", beta)):
        if not bool((torch.isfinite(values) & (values >= 0)).all()):
            raise BayesVLMError(f"The eigenvalues {name} hold negative numbers, NaN or Inf; take them from `spectrum`.")
    arguments = (alpha.double(), beta.double(), weight_norm_squared, tau, structure, objective)

    def slope(log_lam: float) -> float:
        return evidence_slope(log_lam, *arguments)

    low = high = -math.log(weight_norm_squared)  # where lam |W|^2 = 1
    step = 1.0
    while slope(low) < 0:
        low, step = low - step, 2 * step
        if low < -600:
            raise BayesVLMError(
                f"The {objective} has no maximum: it rises as lam falls to zero (tau={tau}, structure={structure!r}). "
                "The factors carry no curvature the prior could be weighed against; estimate them on real pairs."
            )
    step = 1.0
    while slope(high) > 0:
        high, step = high + step, 2 * step
        if high > 600:
            raise BayesVLMError(f"The {objective} has no maximum below lam = e^600; check the factors' scale.")
    if low == high:
        return math.exp(low)
    return math.exp(brentq(slope, low, high, xtol=1e-14, rtol=4 * torch.finfo(torch.float64).eps, maxiter=500))


def log_evidence(
    log_lam: float,
    alpha: Tensor,  # [p]
    beta: Tensor,  # [d]
    weight_norm_squared: float,
    tau: float = 1.0,
    structure: Structure = "damped",
    objective: Objective = "evidence",
) -> float:
    """The objective itself, without its constant."""
    p, d, lam = len(alpha), len(beta), math.exp(log_lam)
    prior = -lam / 2 * weight_norm_squared + p * d / 2 * log_lam
    _check_options(structure, objective, tau)
    if structure == "exact":
        return prior - float(torch.log(tau * torch.outer(alpha, beta) + lam).sum()) / 2
    logdet_A = float(torch.log(math.sqrt(tau) * alpha + math.sqrt(lam)).sum())
    logdet_B = float(torch.log(math.sqrt(tau) * beta + math.sqrt(lam)).sum())
    if objective == "official":
        return prior - (p * logdet_A + d * logdet_B)
    return prior - (d * logdet_A + p * logdet_B) / 2


def evidence_slope(
    log_lam: float,
    alpha: Tensor,  # [p]
    beta: Tensor,  # [d]
    weight_norm_squared: float,
    tau: float = 1.0,
    structure: Structure = "damped",
    objective: Objective = "evidence",
) -> float:
    """d log_evidence / d log_lam. For the evidence P/2 is folded into the sums, so that nothing cancels."""
    p, d, lam = len(alpha), len(beta), math.exp(log_lam)
    _check_options(structure, objective, tau)
    if structure == "exact":
        curvature = tau * torch.outer(alpha, beta)
        return float((curvature / (curvature + lam)).sum()) / 2 - lam * weight_norm_squared / 2
    root = math.sqrt(lam)
    scaled_alpha, scaled_beta = math.sqrt(tau) * alpha, math.sqrt(tau) * beta
    if objective == "official":
        shrunk = p * float((root / (scaled_alpha + root)).sum()) + d * float((root / (scaled_beta + root)).sum())
        return (p * d - shrunk - lam * weight_norm_squared) / 2
    known_A = float((scaled_alpha / (scaled_alpha + root)).sum())
    known_B = float((scaled_beta / (scaled_beta + root)).sum())
    return (d * known_A + p * known_B) / 4 - lam * weight_norm_squared / 2


def implied_weight_norm_squared(
    alpha: Tensor,  # [p]
    beta: Tensor,  # [d]
    lam: float,
    tau: float = 1.0,
) -> float:
    """The |W|^2 at which the official objective peaks at `lam`: what a published lam says about its projection."""
    return 2 * evidence_slope(math.log(lam), alpha, beta, 0.0, tau, objective="official") / lam


def _check_options(structure: str, objective: str, tau: float) -> None:
    check_positive("tau", tau)
    check_choice("structure", structure, ("damped", "exact"))
    check_choice("objective", objective, ("evidence", "official"))
    if objective == "official" and structure == "exact":
        raise BayesVLMError("objective='official' exists for structure='damped' only: the authors had no exact one.")
