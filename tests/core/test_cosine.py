"""ProbCosine against the formulas written out pair by pair, and against Monte Carlo."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from bayesvlm.core.cosine import CosineMoments, prob_cosine, variance_factors
from bayesvlm.core.embeddings import GaussianEmbeddings, Shape, SharedCovariance
from bayesvlm.core.errors import BayesVLMError

from .references import assert_close, gaussian_draws, generator, normal, positive_definite

d, N, C = 4, 5, 3
KINDS = ["diagonal", "full", "item diagonal", "item full"]


def embeddings(rows: int, kind: str, seed: int, size: float = 0.3) -> tuple[GaussianEmbeddings, Tensor]:
    """Embeddings and their covariance matrices [rows, d, d], written out."""
    values, vectors = torch.linalg.eigh(positive_definite(d, seed=seed) * size)
    mean, scale = normal(rows, d, seed=seed + 1) + 1, normal(rows, seed=seed + 2).abs() + 0.2
    if kind == "item diagonal":
        variance = size * normal(rows, d, seed=seed + 3).square()
        return GaussianEmbeddings.from_variances(mean, variance), torch.diag_embed(variance)
    R = vectors @ torch.diag(values) @ vectors.T
    if kind == "diagonal":
        shape = Shape(R.diagonal())
        matrices = scale[:, None, None] * torch.diag(R.diagonal())
    else:
        shape = Shape(values, vectors)
        matrices = scale[:, None, None] * R
    result = GaussianEmbeddings(mean, SharedCovariance(scale, shape))
    if kind == "item full":
        result = GaussianEmbeddings(mean, result.covariance.per_item())
    return result, matrices


def moments_pair_by_pair(x: Tensor, Sx: Tensor, y: Tensor, Sy: Tensor) -> tuple[Tensor, Tensor]:  # [N, C], [N, C]
    """The two formulas of the paper, one pair at a time, with dense matrices."""
    mean, variance = torch.empty(len(x), len(y)).double(), torch.empty(len(x), len(y)).double()
    for i, (g, Sg) in enumerate(zip(x, Sx, strict=True)):
        for j, (h, Sh) in enumerate(zip(y, Sy, strict=True)):
            sg, sh = (g @ g + Sg.trace()).sqrt(), (h @ h + Sh.trace()).sqrt()
            mean[i, j] = g @ h / (sg * sh)
            variance[i, j] = (h @ Sg @ h + g @ Sh @ g + (Sg @ Sh).trace()) / (sg * sh) ** 2
    return mean, variance


@pytest.mark.parametrize("left", KINDS)
@pytest.mark.parametrize("right", KINDS)
def test_equals_the_formulas_pair_by_pair(left: str, right: str) -> None:
    x, Sx = embeddings(N, left, seed=0)
    y, Sy = embeddings(C, right, seed=10)
    moments = prob_cosine(x, y)
    mean, variance = moments_pair_by_pair(x.mean, Sx, y.mean, Sy)
    assert_close(moments.mean, mean, 1e-12, "mean")
    assert_close(moments.variance, variance, 1e-12, "variance")
    assert_close(moments.std, variance.sqrt(), 1e-12, "std")


@pytest.mark.parametrize("kind", ["diagonal", "full", "item diagonal"])
def test_moments_of_the_dot_product_against_monte_carlo(kind: str) -> None:
    """400,000 draws of both embeddings of one pair: undoing the expected norms gives mean and variance of g . h."""
    x, Sx = embeddings(1, kind, seed=20)
    y, Sy = embeddings(1, kind, seed=30)
    moments, random = prob_cosine(x, y), generator(0)
    g = x.mean + gaussian_draws(Sx[0], 400_000, random)
    h = y.mean + gaussian_draws(Sy[0], 400_000, random)
    dot, norms = (g * h).sum(dim=1), x.expected_norm * y.expected_norm
    assert float(moments.mean[0, 0] * norms) == pytest.approx(float(dot.mean()), abs=5 * float(dot.std()) / 632)
    assert float(moments.variance[0, 0] * norms**2) == pytest.approx(float(dot.var()), rel=0.01)
    assert float(x.expected_norm) == pytest.approx(float(g.square().sum(dim=1).mean().sqrt()), rel=0.005)


@pytest.mark.parametrize(("left", "right"), [("diagonal", "full"), ("full", "full"), ("diagonal", "diagonal")])
def test_rank_two_path_equals_the_general_one(left: str, right: str) -> None:
    x, _ = embeddings(N, left, seed=40)
    y, _ = embeddings(C, right, seed=50)
    quick = prob_cosine(x, y)
    for general in (
        prob_cosine(GaussianEmbeddings(x.mean, x.covariance.per_item()), y),
        prob_cosine(x, GaussianEmbeddings(y.mean, y.covariance.per_item())),
    ):
        assert_close(quick.variance, general.variance, 1e-12)
        assert_close(quick.mean, general.mean, 1e-14)
    one, two = variance_factors(x, y)
    assert one.shape == (N, 2)
    assert two.shape == (C, 2)
    assert_close(one @ two.T, quick.variance, 1e-14)


def test_one_shape_on_both_sides() -> None:
    """An image against images of the same posterior, as retrieval does."""
    x, Sx = embeddings(N, "full", seed=60)
    mean, variance = moments_pair_by_pair(x.mean, Sx, x.mean, Sx)
    assert_close(prob_cosine(x, x).mean, mean, 1e-12)
    assert_close(prob_cosine(x, x).variance, variance, 1e-12)


def test_symmetric_in_its_arguments() -> None:
    x, _ = embeddings(N, "full", seed=70)
    y, _ = embeddings(C, "item diagonal", seed=80)
    assert_close(prob_cosine(x, y).variance, prob_cosine(y, x).variance.T, 1e-12)
    assert_close(prob_cosine(x, y).mean, prob_cosine(y, x).mean.T, 1e-13)


def test_stored_scalars_change_nothing_but_the_work() -> None:
    x, _ = embeddings(N, "full", seed=90)
    y, _ = embeddings(C, "full", seed=100)
    assert isinstance(x.covariance, SharedCovariance)
    assert isinstance(y.covariance, SharedCovariance)
    expected = prob_cosine(x, y).variance
    stored = x.against(y.covariance.shape)
    assert_close(prob_cosine(stored, y.against(x.covariance.shape)).variance, expected, 1e-14)
    assert_close(prob_cosine(stored[1:3], y).variance, expected[1:3], 1e-14)


def test_scalars_stored_for_another_shape_are_not_used() -> None:
    x, _ = embeddings(N, "full", seed=90)
    y, _ = embeddings(C, "full", seed=100)
    other, _ = embeddings(C, "full", seed=110)
    assert isinstance(y.covariance, SharedCovariance)
    poisoned = GaussianEmbeddings(x.mean, x.covariance, (y.covariance.shape, torch.full((N,), 1e6).double()))
    assert_close(prob_cosine(poisoned, other).variance, prob_cosine(x, other).variance, 1e-14)
    assert float(prob_cosine(poisoned, y).variance.min()) > 1e3  # it would have been seen


def test_diagonal_and_full_share_the_mean_and_agree_along_axes() -> None:
    full, _ = embeddings(N, "full", seed=120)
    diagonal, _ = embeddings(N, "diagonal", seed=120)
    axes = GaussianEmbeddings.from_variances(torch.eye(d).double(), torch.zeros(d, d).double())
    assert_close(prob_cosine(full, axes).mean, prob_cosine(diagonal, axes).mean, 1e-13)
    assert_close(prob_cosine(full, axes).variance, prob_cosine(diagonal, axes).variance, 1e-12)
    y, _ = embeddings(C, "full", seed=130)
    apart = (prob_cosine(full, y).variance / prob_cosine(diagonal, y).variance - 1).abs()
    assert float(apart.max()) > 0.05  # off the axes they are not the same thing


def test_without_uncertainty_it_is_the_plain_cosine() -> None:
    g, h = normal(N, d, seed=140), normal(C, d, seed=141)
    zero = prob_cosine(
        GaussianEmbeddings.from_variances(g, torch.zeros_like(g)),
        GaussianEmbeddings.from_variances(h, torch.zeros_like(h)),
    )
    assert_close(zero.mean, torch.nn.functional.cosine_similarity(g[:, None], h[None], dim=2), 1e-13)
    assert float(zero.variance.abs().max()) == 0


def test_float32_is_close_to_float64() -> None:
    x, _ = embeddings(N, "full", seed=150)
    y, _ = embeddings(C, "full", seed=160)

    def single(e: GaussianEmbeddings) -> GaussianEmbeddings:
        assert isinstance(e.covariance, SharedCovariance)
        basis = e.covariance.shape.basis
        shape = Shape(e.covariance.shape.spectrum.float(), None if basis is None else basis.float())
        return GaussianEmbeddings(e.mean.float(), SharedCovariance(e.covariance.scale.float(), shape))

    assert_close(prob_cosine(single(x), single(y)).variance, prob_cosine(x, y).variance, 1e-5)
    assert_close(prob_cosine(single(x), single(y)).mean, prob_cosine(x, y).mean, 1e-5)


# ------------------------------------------------------------------------------------------------------------ intervals


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95, 0.99])
def test_intervals_cover_the_right_share(level: float) -> None:
    """100,000 normal draws around each mean: the share inside is binomial, five standard errors allowed."""
    moments = CosineMoments(normal(3, 2, seed=170) * 0.1, 0.001 + 0.01 * normal(3, 2, seed=171).square())
    low, high = moments.interval(level)
    draws = moments.mean + moments.std * torch.randn(100_000, 3, 2, generator=generator(1), dtype=torch.float64)
    inside = ((draws >= low) & (draws <= high)).double().mean(dim=0)
    assert float((inside - level).abs().max()) <= 5 * math.sqrt(level * (1 - level) / 100_000)
    assert_close((low + high) / 2, moments.mean, 1e-12)


def test_intervals_of_real_pairs_cover_the_right_share() -> None:
    """Dot products of Gaussian embeddings are near enough to normal: 95 % within one percentage point and a half."""
    x, Sx = embeddings(1, "full", seed=180, size=0.02)
    y, Sy = embeddings(1, "full", seed=190, size=0.02)
    random = generator(2)
    g = x.mean + gaussian_draws(Sx[0], 100_000, random)
    h = y.mean + gaussian_draws(Sy[0], 100_000, random)
    scaled = (g * h).sum(dim=1) / (x.expected_norm * y.expected_norm)
    low, high = prob_cosine(x, y).interval(0.95)
    inside = ((scaled >= low[0, 0]) & (scaled <= high[0, 0])).double().mean()
    assert float(inside) == pytest.approx(0.95, abs=0.015)


def test_intervals_stay_within_what_a_cosine_can_be() -> None:
    low, high = CosineMoments(torch.tensor([[0.99, -0.99, 0.0]]), torch.full((1, 3), 4.0)).interval(0.95)
    assert torch.equal(low, -torch.ones(1, 3))
    assert torch.equal(high, torch.ones(1, 3))


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, 95.0, float("nan")])
def test_levels_are_checked(level: float) -> None:
    with pytest.raises(BayesVLMError, match="level="):
        CosineMoments(torch.zeros(1, 1), torch.ones(1, 1)).interval(level)


def test_widths_must_agree() -> None:
    x, _ = embeddings(N, "full", seed=0)
    y: Any = GaussianEmbeddings.from_variances(torch.ones(2, d + 1), torch.ones(2, d + 1))
    with pytest.raises(BayesVLMError, match="4 and 5 wide"):
        prob_cosine(x, y)
