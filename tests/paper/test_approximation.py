"""ProbCosine against draws: the densities against scipy, the draws against what they are drawn from, both verdicts."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad, trapezoid
from scipy.stats import gaussian_kde, norm

from bayesvlm import BayesVLM, Features
from bayesvlm.core.embeddings import GaussianEmbeddings
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.predict import sample_cosines
from bayesvlm.core.predicted import PredictedVariance
from bayesvlm.core.projection import Projection
from bayesvlm.report.blocks import Table
from bayesvlm_paper.exhibits import Lines
from bayesvlm_paper.items import approximation
from bayesvlm_paper.items.approximation import (
    DIAGONAL,
    FULL,
    MARGINALS,
    SHIFTS,
    compare,
    cosines,
    directions_away,
    marginal_draws,
    measure,
    moments,
    move_apart,
    noise_floor,
    projection_draws,
    tell,
    total_variation,
)
from paper.told import Told, told


def randn(*shape: int, seed: int = 9) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Densities -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mean", "std"), [(0.4, 0.05), (0.38, 0.06), (0.5, 0.05), (0.4, 0.25), (0.4, 0.01)])
def test_the_distance_is_the_integral(mean: float, std: float) -> None:
    samples = 0.4 + 0.05 * randn(300)
    density = gaussian_kde(samples.numpy(), bw_method=0.3)
    expected = quad(
        lambda x: abs(density(x)[0] - norm.pdf(x, mean, std)) / 2, mean - 2, mean + 2, limit=400, points=[0.3, 0.4, 0.5]
    )[0]
    assert total_variation(samples, mean, std) == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("apart", [0.0, 0.5, 2.0])
def test_the_distance_of_two_gaussians(apart: float) -> None:
    """That of N(0, 1) and N(d, 1) is 2 Phi(d / 2) - 1; evenly spread quantiles with narrow kernels are N(0, 1)."""
    samples = torch.from_numpy(norm.ppf((np.arange(4000) + 0.5) / 4000))
    found = total_variation(samples, apart, 1, bandwidth=0.05)
    assert found == pytest.approx(2 * norm.cdf(apart / 2) - 1, abs=5e-3)


def test_nothing_in_common_is_a_distance_of_one() -> None:
    assert total_variation(randn(100), 40, 1) == pytest.approx(1, abs=1e-2)


# Draws ---------------------------------------------------------------------------------------------------------------


def embedded(scale: float = 0.3) -> tuple[GaussianEmbeddings, GaussianEmbeddings]:
    variances = [scale**2 * randn(4, 6, seed=seed).square() for seed in (1, 2)]
    means = [randn(4, 6, seed=seed) for seed in (3, 4)]
    x, y = (GaussianEmbeddings.from_variances(mean, variance) for mean, variance in zip(means, variances, strict=True))
    return x, y


def test_marginals_have_these_means_and_variances_and_are_independent() -> None:
    x, y = embedded()
    drawn = [torch.stack(side, dim=2) for side in zip(*marginal_draws(x, y, 5000), strict=True)]
    for side, draws in zip((x, y), drawn, strict=True):
        variance = side.covariance.per_item().variance
        error = (draws.mean(dim=2) - side.mean) / (variance / 5000).sqrt()
        assert float(error.abs().max()) < 4.5
        np.testing.assert_allclose(draws.var(dim=2), variance, rtol=0.1)
    both = torch.corrcoef(torch.cat(drawn, dim=1).flatten(0, 1))  # [48, 48]
    assert float((both - torch.eye(48)).abs().max()) < 0.08


def small_vlm(seed: int = 0, noise: float = 1.0) -> tuple[BayesVLM, Features, Features]:
    """Sixteen inputs, eight outputs; captions that match their pictures up to noise; a posterior."""
    weight = randn(8, 16, seed=seed + 1)
    vlm = BayesVLM.from_projections(weight, weight, logit_scale=2.0)
    phi = randn(120, 16, seed=seed + 2)
    images, texts = Features(phi), Features(phi + noise * randn(120, 16, seed=seed + 3))
    vlm.fit([(images, texts)], progress=False)
    return vlm, images[:30], texts[:30]


def test_projection_draws_are_those_of_monte_carlo() -> None:
    vlm, images, texts = small_vlm()
    image, text = vlm.posterior["image"], vlm.posterior["text"]
    found = cosines(projection_draws(image, images, text, texts, 5, seed=3), torch.zeros(30, 8).double(), (0.0,))
    expected = [cosine.diagonal() for cosine in sample_cosines(image, images, text, texts, 5, seed=3)]
    np.testing.assert_allclose(found[0], torch.stack(expected, dim=1), rtol=1e-9)


def test_projection_draws_are_in_the_axes_of_the_means() -> None:
    vlm, images, texts = small_vlm()
    full = vlm.replace(covariance="full").embed_images(images[:1])
    spread = full.covariance.per_item()
    assert spread.basis is not None
    covariance = spread.basis @ torch.diag(spread.variance[0]) @ spread.basis.T
    posterior = vlm.posterior
    draws = [g[0] for g, _ in projection_draws(posterior["image"], images[:1], posterior["text"], texts[:1], 5000)]
    drawn = torch.stack(draws, dim=1)
    np.testing.assert_allclose(drawn.mean(dim=1), full.mean[0], atol=0.05 * float(full.covariance.trace().sqrt()))
    np.testing.assert_allclose(drawn.cov(), covariance, atol=0.08 * float(covariance.diagonal().max()))


def test_captions_move_away_by_that_much() -> None:
    x, y = randn(50, 5, seed=1), randn(50, 5, seed=2)
    away, apart = directions_away(x, y), (y - x).norm(dim=1)
    np.testing.assert_allclose(away.norm(dim=1), apart, rtol=1e-12)
    distances = torch.stack([(y + shift * away - x).norm(dim=1) for shift in SHIFTS])
    assert bool((distances.diff(dim=0) > 0).all())
    assert bool((away != directions_away(x, y, seed=5)).all())


def test_cosines_are_of_the_moved_caption() -> None:
    g, h, away = randn(3, 4, seed=1), randn(3, 4, seed=2), randn(3, 4, seed=3)
    found = cosines([(g, h), (h, g)], away, (0.0, 2.0))
    assert found.shape == (2, 3, 2)
    moved = h + 2 * away
    assert float(found[1, 0, 0]) == pytest.approx(float(g[0] @ moved[0] / g[0].norm() / moved[0].norm()))


def test_no_draw_points_where_the_captions_move() -> None:
    """With one seed for both the first draw of every pair would be an outlier, and widen the distribution."""
    x, y = (GaussianEmbeddings.from_variances(randn(20, 64, seed=s), torch.ones(20, 64).double()) for s in (1, 2))
    away = torch.nn.functional.normalize(directions_away(x.mean, y.mean), dim=1)
    for drawn in marginal_draws(x, y, 3):
        for side, draw in zip((x, y), drawn, strict=True):
            along = ((draw - side.mean) * away).sum(dim=1)
            assert float(along.abs().max()) < 5, "standard deviations; the whole noise is 8 long"


# Comparing -----------------------------------------------------------------------------------------------------------


def test_comparison_with_a_known_gaussian() -> None:
    samples = randn(6, 5000)
    found = compare(samples, torch.full((6,), 0.5).double(), torch.full((6,), 2.0).double())
    np.testing.assert_allclose(found["ratio"], 2, rtol=0.05)
    np.testing.assert_allclose(found["bias"], 0.5, atol=0.05)
    exact = quad(lambda x: abs(norm.pdf(x) - norm.pdf(x, 0.5, 2)) / 2, -20, 20, limit=200)[0]
    np.testing.assert_allclose(found["distance"], exact, atol=0.04)


def test_the_noise_floor_falls_with_the_draws() -> None:
    few, many = noise_floor(20, 100), noise_floor(20, 2000)
    assert 0 < many["distance"] < few["distance"] < 0.15
    assert many["std ratio"] == pytest.approx(1, abs=0.02)
    assert many["absolute bias"] < 0.04


@pytest.mark.parametrize("cosine", [0.0, 0.6, 0.9])
def test_the_first_order_factor_of_the_remark(cosine: float) -> None:
    """Small variances, equal in all directions: ProbCosine's std is 1 / sqrt(1 - cos^2) times that of the draws."""
    g, h = torch.zeros(50, 6).double(), torch.zeros(50, 6).double()
    g[:, 0], h[:, 0], h[:, 1] = 1, cosine, math.sqrt(1 - cosine**2)
    x, y = (GaussianEmbeddings.from_variances(mean, torch.full((50, 6), 1e-4).double()) for mean in (g, h))
    drawn = cosines(marginal_draws(x, y, 400), torch.zeros(50, 6).double(), (0.0,))
    ratio = moments(x, y)[1][0] / drawn[0].flatten().std()
    assert float(ratio) == pytest.approx(1 / math.sqrt(1 - cosine**2), rel=0.03)


def test_moments_are_of_each_with_its_own() -> None:
    x, y = embedded()
    mean, std = moments(x, y)
    sx = float((x.mean[2].square().sum() + x.covariance.trace()[2]).sqrt())
    sy = float((y.mean[2].square().sum() + y.covariance.trace()[2]).sqrt())
    vx, vy = x.covariance.per_item().variance[2], y.covariance.per_item().variance[2]
    variance = (vx * y.mean[2] ** 2 + vy * x.mean[2] ** 2 + vx * vy).sum() / (sx * sy) ** 2
    assert float(mean[2]) == pytest.approx(float(x.mean[2] @ y.mean[2]) / sx / sy)
    assert float(std[2]) == pytest.approx(float(variance) ** 0.5)


def test_moving_keeps_the_covariance_and_moves_the_mean() -> None:
    vlm, images, texts = small_vlm()
    moved = move_apart(vlm, images, texts, draws=20)
    assert list(moved) == list(SHIFTS)
    assert set(moved[0.0].moments) == {MARGINALS, DIAGONAL, FULL}
    for covariance, name in (("diagonal", DIAGONAL), ("full", FULL)):
        plain = vlm.replace(covariance=covariance).similarity(images, texts)  # type: ignore[arg-type]
        np.testing.assert_allclose(moved[0.0].moments[name][0], plain.mean.diagonal(), rtol=1e-9)
        np.testing.assert_allclose(moved[0.0].moments[name][1], plain.std.diagonal(), rtol=1e-9)
    x, y = vlm.embed_images(images), vlm.embed_texts(texts)
    away = directions_away(x.mean, y.mean)
    mean, std = moments(x, GaussianEmbeddings(y.mean + 2 * away, y.covariance))
    np.testing.assert_allclose(moved[2.0].moments[MARGINALS][0], mean)
    np.testing.assert_allclose(moved[2.0].moments[MARGINALS][1], std)
    assert moved[2.0].samples[MARGINALS].shape == (30, 20)
    assert bool((moved[2.0].samples[DIAGONAL] == moved[2.0].samples[FULL]).all())


def test_marginals_want_a_diagonal_covariance() -> None:
    vlm, images, texts = small_vlm()
    full = vlm.replace(covariance="full")
    with pytest.raises(BayesVLMError, match="diagonal"):
        next(marginal_draws(full.embed_images(images), full.embed_texts(texts), 1))


# The finding ---------------------------------------------------------------------------------------------------------


class OnePair:
    """What the item asks of a lab."""

    models = ("small",)

    def __init__(self, vlm: BayesVLM, images: Features, texts: Features) -> None:
        self._vlm, self._pairs = vlm, (images, texts)

    def vlm(self, name: str) -> BayesVLM:
        return self._vlm

    def pairs(self, model: str) -> tuple[Features, Features]:
        return self._pairs


def found(vlm: BayesVLM, images: Features, texts: Features) -> Told:
    return told(OnePair(vlm, images, texts), measure, tell)


def predicting(variance: float, noise: float) -> tuple[BayesVLM, Features, Features]:
    """A model that predicts one variance for all; captions are their pictures up to noise."""
    projection = Projection(torch.eye(32).double())
    given = {tower: PredictedVariance(projection.weight, 32) for tower in ("image", "text")}
    vlm = BayesVLM(projection, projection, 2.0).with_distributions(given)  # type: ignore[arg-type]
    mean = torch.nn.functional.normalize(randn(40, 32, seed=1), dim=1)
    log_variance = torch.full((40, 32), math.log(variance)).double()
    captions = mean + noise / math.sqrt(32) * randn(40, 32, seed=2)
    return vlm, Features(mean, log_variance=log_variance), Features(captions, log_variance=log_variance)


def test_unlike_pairs_are_approximated_well() -> None:
    finding = found(*predicting(variance=1e-4, noise=5.0))
    assert finding.claims[0].verdict == "holds"
    assert finding.numbers["pairs"] == 40
    lines, grid = finding.exhibits
    assert isinstance(lines, Lines)
    assert isinstance(grid, Table)
    assert [len(panel.series) for panel in lines.panels] == [2] * len(SHIFTS), "it has no projections to draw"
    assert all(len(row) == len(grid.columns) == len(SHIFTS) + 2 for row in grid.rows)
    for solid, dashed in (panel.series for panel in lines.panels):
        assert (solid.dashed, dashed.dashed) == (False, True)
        for line in (solid, dashed):
            assert trapezoid(line.y, line.x) == pytest.approx(1, abs=0.01), "a density, shown whole"


def test_pairs_that_are_nearly_the_same_are_not() -> None:
    finding = found(*predicting(variance=1e-4, noise=0.3))
    assert finding.claims[0].verdict == "does not hold"
    shifts = [finding.numbers["shifts"][f"{shift:g}"] for shift in SHIFTS]
    for quantity in ("distance", "std ratio"):
        assert shifts[0][MARGINALS][quantity] > shifts[-1][MARGINALS][quantity], "better the further apart"
    assert [each["apart"] for each in shifts] == sorted(each["apart"] for each in shifts)
    assert [each["cosine"] for each in shifts] == sorted((each["cosine"] for each in shifts), reverse=True)


def test_a_fitted_model_is_also_compared_with_its_projections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approximation, "MOST_PAIRS", 6)
    finding = found(*small_vlm())
    assert finding.numbers["pairs"] == 6
    assert set(finding.numbers["shifts"]["1"]) == {
        "apart",
        "cosine",
        "first-order std ratio",
        MARGINALS,
        DIAGONAL,
        FULL,
    }
    assert "draws of the projections themselves" in finding.answer
    lines = finding.exhibits[0]
    assert isinstance(lines, Lines)
    assert [len(panel.series) for panel in lines.panels] == [4] * len(SHIFTS)
