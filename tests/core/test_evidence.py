"""The prior precision: stationary, better than a grid, and made of the determinants it claims."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.evidence import (
    Evidence,
    check_positive,
    optimal_prior_precision,
)

from .references import dense_precision, positive_definite

VARIANTS = [("damped", "evidence"), ("exact", "evidence"), ("damped", "official")]
CASES = {
    "plain": (positive_definite(5, seed=0), positive_definite(4, seed=1), 3.0),
    "singular": (positive_definite(6, seed=2, rank=3), positive_definite(4, seed=3, rank=2), 0.5),
    "steep": (1e4 * positive_definite(6, seed=4), 1e-3 * positive_definite(3, seed=5), 200.0),
}


def eigenvalues(matrix: Tensor) -> Tensor:
    """Eigenvalues with rounding below zero cut off."""
    return torch.linalg.eigvalsh(matrix).clamp_min(0)


@pytest.mark.parametrize(("structure", "objective"), VARIANTS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tau", [0.1, 1.0, 50.0])
def test_stationary_and_better_than_a_grid(structure: Any, objective: Any, case: str, tau: float) -> None:
    A, B, norm = CASES[case]
    arguments = (eigenvalues(A), eigenvalues(B), norm, tau, structure, objective)
    if case == "singular" and objective == "official":  # slope at lam = 0: p d - p 3 - d 2 = -2, no maximum
        with pytest.raises(BayesVLMError, match="no maximum"):
            optimal_prior_precision(A, B, norm, tau, structure, objective)
        return
    lam = optimal_prior_precision(A, B, norm, tau, structure, objective)
    assert isinstance(lam, float)
    assert abs(Evidence(*arguments).slope(math.log(lam))) < 1e-8
    best = Evidence(*arguments).value(math.log(lam))
    grid = np.linspace(math.log(lam) - 20, math.log(lam) + 20, 1000)
    values = [Evidence(*arguments).value(float(x)) for x in grid]
    assert best >= max(values) - 1e-9 * abs(best)
    assert min(values) < best - 1


@pytest.mark.parametrize(("structure", "objective"), VARIANTS)
@pytest.mark.parametrize("log_lam", [-6.0, 0.0, 3.0])
def test_slope_is_the_numerical_derivative(structure: Any, objective: Any, log_lam: float) -> None:
    A, B, norm = CASES["plain"]
    arguments = (eigenvalues(A), eigenvalues(B), norm, 7.0, structure, objective)
    step = 1e-4
    numerical = (Evidence(*arguments).value(log_lam + step) - Evidence(*arguments).value(log_lam - step)) / (2 * step)
    slope = Evidence(*arguments).slope(log_lam)
    assert abs(slope - numerical) <= 1e-6 * max(1.0, abs(slope))


@pytest.mark.parametrize("structure", ["damped", "exact"])
@pytest.mark.parametrize("case", ["plain", "singular"])
def test_log_determinant_is_that_of_the_dense_precision(structure: Any, case: str) -> None:
    A, B, norm = CASES[case]
    lam, tau = 0.7, 3.0
    sign, logdet = torch.linalg.slogdet(dense_precision(A, B, tau, lam, structure))
    parameters = len(A) * len(B)
    expected = -lam / 2 * norm + parameters / 2 * math.log(lam) - float(logdet) / 2
    actual = Evidence(eigenvalues(A), eigenvalues(B), norm, tau, structure).value(math.log(lam))
    assert float(sign) == 1
    assert abs(actual - expected) <= 1e-10 * abs(expected)


def test_official_has_the_sizes_swapped_and_no_half() -> None:
    """What the first release maximised, from its definition: p logdet At + d logdet Bt, not halved."""
    A, B, norm = CASES["plain"]
    lam, tau = 0.7, 3.0
    damped = [
        float(torch.linalg.slogdet(math.sqrt(tau) * M + math.sqrt(lam) * torch.eye(len(M), dtype=M.dtype))[1])
        for M in (A, B)
    ]
    expected = -lam / 2 * norm + 10 * math.log(lam) - (5 * damped[0] + 4 * damped[1])
    actual = Evidence(eigenvalues(A), eigenvalues(B), norm, tau, objective="official").value(math.log(lam))
    assert abs(actual - expected) <= 1e-10 * abs(expected)


def test_the_variants_differ() -> None:
    A, B, norm = CASES["plain"]
    found = {variant: optimal_prior_precision(A, B, norm, 2.0, *variant) for variant in VARIANTS}  # type: ignore[arg-type]
    values = sorted(found.values())
    assert all(high > 1.01 * low for low, high in pairwise(values)), found


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 1000), st.floats(1e-2, 1e3), st.sampled_from(["damped", "exact"]), st.floats(1e-2, 1e2))
def test_scaling_law(seed: int, norm: float, structure: Any, stretch: float) -> None:
    """Weights s times larger and A B 1/s^2 times smaller are the same problem in other units: lam is 1/s^2 of it."""
    A, B = positive_definite(4, seed=seed), positive_definite(3, seed=seed + 1)
    base = optimal_prior_precision(A, B, norm, 2.0, structure)
    scaled = optimal_prior_precision(A / stretch, B / stretch, norm * stretch**2, 2.0, structure)
    assert scaled * stretch**2 == pytest.approx(base, rel=1e-8)


def test_more_data_or_smaller_weights_raise_lam() -> None:
    A, B, norm = CASES["plain"]
    base = optimal_prior_precision(A, B, norm)
    assert optimal_prior_precision(A, B, norm, tau=10.0) > base
    assert optimal_prior_precision(A, B, norm / 2) > base


def test_float32_factors_of_the_published_kind_are_accepted() -> None:
    A, B, norm = CASES["plain"]
    exact = optimal_prior_precision(A, B, norm)
    assert optimal_prior_precision(A.float(), B.float(), norm) == pytest.approx(exact, rel=1e-5)


def test_from_eigenvalues_at_hand() -> None:
    A, B, norm = CASES["singular"]
    found = Evidence(eigenvalues(A), eigenvalues(B), norm, 2.0, "exact").best_lam()
    assert found == pytest.approx(optimal_prior_precision(A, B, norm, 2.0, "exact"), rel=1e-9)


# ------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(("structure", "objective"), VARIANTS)
def test_factors_without_curvature_have_no_optimum(structure: Any, objective: Any) -> None:
    with pytest.raises(BayesVLMError, match="no maximum"):
        optimal_prior_precision(torch.zeros(3, 3), torch.zeros(2, 2), 1.0, 1.0, structure, objective)


@pytest.mark.parametrize("tau", [0.0, -1.0, float("nan"), float("inf"), "1", None])
def test_tau_must_be_positive(tau: Any) -> None:
    with pytest.raises(BayesVLMError, match="tau="):
        optimal_prior_precision(torch.eye(3), torch.eye(2), 1.0, tau)


@pytest.mark.parametrize("norm", [0.0, -1.0, float("nan"), float("inf")])
def test_weights_must_not_be_zero(norm: float) -> None:
    with pytest.raises(BayesVLMError, match=r"\|W\|\^2"):
        optimal_prior_precision(torch.eye(3), torch.eye(2), norm)


def test_names_and_matrices_are_checked() -> None:
    eye = torch.eye(2)
    with pytest.raises(BayesVLMError, match="structure='dense'"):
        optimal_prior_precision(eye, eye, 1.0, structure="dense")  # type: ignore[arg-type]
    with pytest.raises(BayesVLMError, match="objective='laplace'"):
        optimal_prior_precision(eye, eye, 1.0, objective="laplace")  # type: ignore[arg-type]
    with pytest.raises(BayesVLMError, match="official"):
        optimal_prior_precision(eye, eye, 1.0, structure="exact", objective="official")
    with pytest.raises(BayesVLMError, match="Factor B is indefinite"):
        optimal_prior_precision(eye, torch.diag(torch.tensor([1.0, -0.5])), 1.0)
    with pytest.raises(BayesVLMError, match="Factor A must be a square"):
        optimal_prior_precision(torch.ones(2, 3), eye, 1.0)
    with pytest.raises(BayesVLMError, match="NaN"):
        optimal_prior_precision(eye * float("nan"), eye, 1.0)


@pytest.mark.parametrize("bad", [float("nan"), -3.0])
def test_eigenvalues_at_hand_are_checked_too(bad: float) -> None:
    """No lam in silence from eigenvalues that are none of a curvature factor."""
    with pytest.raises(BayesVLMError):
        Evidence(torch.tensor([bad, 1.0]), torch.ones(2), 5.0)


@pytest.mark.parametrize("value", [1, 2.5, np.float64(2.5), np.float32(2.5), np.int64(3)])
def test_any_finite_positive_number_counts(value: Any) -> None:
    """Also what numpy grids hand over: `for tau in np.logspace(..., dtype=np.float32)`."""
    assert check_positive("tau", value) == float(value)
