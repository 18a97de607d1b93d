"""Cosines of one tower against autograd on dense matrices, against draws, and where two items are copies."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import jacrev, vmap

from bayesvlm.core.cosine import prob_cosine
from bayesvlm.core.embeddings import Shape
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.core.features import Features
from bayesvlm.core.linearised import (
    Directed,
    joint_cosines,
    paired_cosines,
    probability_of_best,
    query_cosines,
    same_tower_cosines,
)
from bayesvlm.core.posterior import Posterior
from bayesvlm.core.projection import Projection

from .references import assert_close, dense_covariance, gaussian_draws, generator, normal, positive_definite, unit

d, p, N, M = 4, 6, 5, 3
COVARIANCES = ["diagonal", "full"]


def tower(covariance: Any = "full", tau: float = 2.0, lam: float = 3.0, seed: int = 0, width: int = p) -> Posterior:
    """A posterior over a projection with a bias, which counts as one more input."""
    factors = KroneckerFactors(positive_definite(width + 1, seed=seed), positive_definite(d, seed=seed + 1), 4)
    return Posterior(
        Projection(normal(d, width, seed=seed + 2), normal(d, seed=seed + 3)), factors, tau, lam, "damped", covariance
    )


def features(count: int, seed: int, width: int = p) -> Features:
    """Activations with residuals, which no draw moves."""
    return Features(normal(count, width, seed=seed), normal(count, d, seed=seed + 1))


def directed(posterior: Posterior, inputs: Features) -> Directed:
    return Directed(posterior.embed(inputs).mean, posterior.whitened(inputs))


def weight_covariance(posterior: Posterior) -> Tensor:  # [d (p+1), d (p+1)]
    """Of the flattened weights; "diagonal" keeps the diagonal of Bt^-1 alone, as the paper does."""
    factors = posterior.factors
    dense = dense_covariance(factors.A, factors.B, posterior.tau, posterior.lam, "damped")
    if posterior.covariance == "full":
        return dense
    width = factors.A.shape[0]
    blocks = dense.reshape(d, width, d, width)
    return torch.einsum("apbq,ab->apbq", blocks, torch.eye(d).double()).reshape(d * width, d * width)


def cosine_of(weights: Tensor, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """cos of two inputs, each (phi with its 1, residual), under one augmented projection [d, p + 1]."""
    g, h = (weights @ phi + residual for phi, residual in (first, second))
    return (g @ h) / (g.norm() * h.norm())


def parts(posterior: Posterior, inputs: Features) -> list[tuple[Tensor, Tensor]]:
    assert inputs.residual is not None
    return list(zip(posterior.projection.inputs(inputs), inputs.residual, strict=True))


def dense_cosines(posterior: Posterior, x: Features, y: Features) -> tuple[Tensor, Tensor]:  # [NM], [NM, NM]
    """All cosines at the mean projection, and their covariance by their Jacobian with respect to every weight."""
    weights = posterior.projection.augmented.double()
    pairs = list(product(parts(posterior, x), parts(posterior, y)))
    means = torch.stack([cosine_of(weights, *pair) for pair in pairs])
    jacobian = torch.stack([jacrev(cosine_of)(weights, *pair).flatten() for pair in pairs])
    return means, jacobian @ weight_covariance(posterior) @ jacobian.T


# One tower ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_all_pairs_equal_the_dense_jacobian(covariance: Any) -> None:
    posterior, x, y = tower(covariance), features(N, seed=10), features(M, seed=20)
    mean, expected = dense_cosines(posterior, x, y)
    found = same_tower_cosines(directed(posterior, x), directed(posterior, y), posterior.shape)
    assert_close(found.mean.flatten(), mean, 1e-13, "means")
    assert_close(found.variance.flatten(), expected.diagonal(), 1e-12, "variances")


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_pairs_in_their_places_equal_the_dense_jacobian(covariance: Any) -> None:
    posterior, x, y = tower(covariance), features(N, seed=10), features(N, seed=20)
    mean, expected = dense_cosines(posterior, x, y)
    found, variance = paired_cosines(directed(posterior, x), directed(posterior, y), posterior.shape)
    assert_close(found, mean.reshape(N, N).diagonal(), 1e-13, "means")
    assert_close(variance, expected.diagonal().reshape(N, N).diagonal(), 1e-12, "variances")


def test_blocks_of_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    posterior = tower()
    x, y = directed(posterior, features(N, seed=10)), directed(posterior, features(M, seed=20))
    whole = same_tower_cosines(x, y, posterior.shape)
    monkeypatch.setattr("bayesvlm.core.linearised._PAIRS", 2 * M)
    again = same_tower_cosines(x, y, posterior.shape)
    assert_close(again.mean, whole.mean, 1e-14)
    assert_close(again.variance, whole.variance, 1e-12)


def test_lengths_are_of_no_account() -> None:
    """Rows of an index are divided by their expected length, mean and whitened activations alike."""
    posterior = tower()
    x, y = directed(posterior, features(N, seed=10)), directed(posterior, features(N, seed=20))
    scales = torch.rand(N, 1, generator=generator(0), dtype=torch.float64) + 0.1
    scaled = Directed(x.mean * scales, x.white * scales)
    for function in (paired_cosines, lambda *of: tuple(same_tower_cosines(*of).__dict__.values())[:2]):
        for one, other in zip(function(x, y, posterior.shape), function(scaled, y, posterior.shape), strict=True):
            assert_close(other, one, 1e-12)


def test_float32_is_close_to_float64() -> None:
    posterior = tower()
    x, y = directed(posterior, features(N, seed=10)), directed(posterior, features(N, seed=20))
    exact = same_tower_cosines(x, y, posterior.shape)
    small = [Directed(each.mean.float(), each.white.float()) for each in (x, y)]
    shape = posterior.shape.to(torch.float32)
    found = same_tower_cosines(*small, shape)
    assert found.mean.dtype == found.variance.dtype == torch.float32
    assert_close(found.mean, exact.mean, 1e-6)
    assert_close(found.variance, exact.variance, 1e-5)
    mean, variance = paired_cosines(*small, shape)
    assert_close(mean, exact.mean.diagonal(), 1e-6)
    assert_close(variance, exact.variance.diagonal(), 1e-5)


def test_unequal_numbers_are_no_pairs() -> None:
    posterior = tower()
    with pytest.raises(BayesVLMError, match="5 items and 3 are no pairs"):
        paired_cosines(
            directed(posterior, features(N, seed=1)), directed(posterior, features(M, seed=2)), posterior.shape
        )


# Copies ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_a_copy_has_cosine_one_and_no_variance(covariance: Any, dtype: torch.dtype) -> None:
    width = 256
    posterior = tower(covariance, width=width)
    x = directed(posterior, features(50, seed=30, width=width))
    x = Directed(x.mean.to(dtype), x.white.to(dtype))
    shape = posterior.shape.to(dtype)
    own = same_tower_cosines(x, x, shape)
    assert float(own.variance.diagonal().max()) < 1e-12
    assert float((own.mean.diagonal() - 1).abs().max()) < 1e-6
    typical = float(own.variance[~torch.eye(50, dtype=torch.bool)].median())
    assert typical > 1e-4, "the variances of other pairs are not small"
    mean, variance = paired_cosines(x, x, shape)
    assert bool((mean == 1).all())
    assert float(variance.max()) < 1e-12
    longer = Directed(x.mean * 3, x.white * 3)  # the same item, kept in another scale
    assert float(paired_cosines(x, longer, shape)[1].max()) < 1e-12
    assert float(same_tower_cosines(x, longer, shape).variance.diagonal().max()) < 1e-12


@pytest.mark.parametrize("distance", [1e-2, 1e-4, 1e-6])
def test_near_copies_keep_their_digits(distance: float) -> None:
    """The variance falls with the fourth power of the distance of two inputs; differences lose nothing of it."""
    posterior, x = tower(), features(N, seed=10)
    y = Features(x.activations + distance * normal(N, p, seed=40), x.residual)
    mean, variance = paired_cosines(directed(posterior, x), directed(posterior, y), posterior.shape)
    weights, covariance = posterior.projection.augmented.double(), weight_covariance(posterior)
    moved = parts(posterior, y)
    for place, first in enumerate(parts(posterior, x)):
        jacobian = jacrev(_distance)(weights, first, moved[place]).flatten()
        assert float(mean[place]) == pytest.approx(1 - float(_distance(weights, first, moved[place])), abs=1e-15)
        assert_close(variance[place], jacobian @ covariance @ jacobian, 1e-6)


def _distance(weights: Tensor, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """1 - cos by the difference of unit vectors, which keeps the digits that 1 - cos loses."""
    g, h = (weights @ phi + residual for phi, residual in (first, second))
    return (g / g.norm() - h / h.norm()).square().sum() / 2


# Draws ----------------------------------------------------------------------------------------------------------------


def white_draws(draws: int, size: int, seed: int) -> Tensor:  # [S, size]
    """Noise whose own second moments are exactly those of white noise: what is measured with it is the linearisation,
    and not the chance of 20,000 draws, which alone is 1 % of a variance."""
    noise = normal(draws // 2, size, seed=seed)
    noise = torch.cat([noise, -noise])
    root = torch.linalg.cholesky(noise.T @ noise / draws)
    return torch.linalg.solve_triangular(root, noise.T, upper=False).T


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_within_two_percent_of_20000_draws(covariance: Any) -> None:
    posterior, x, y = tower(covariance, lam=1e3), features(N, seed=10), features(M, seed=20)
    spread = posterior.embed(x)
    ratio = spread.covariance.trace() / spread.mean.square().sum(dim=1)
    assert 1e-3 < float(ratio.max()) < 2e-2, "a regime in which the linearisation holds, and there is something to see"
    root = torch.linalg.cholesky(weight_covariance(posterior))
    noise = white_draws(20_000, len(root), seed=50) @ root.T
    weights = posterior.projection.augmented.double() + noise.reshape(-1, d, p + 1)
    sampled = torch.stack(
        [
            vmap(cosine_of, (0, None, None))(weights, first, second).var()
            for first, second in product(parts(posterior, x), parts(posterior, y))
        ]
    )
    found = same_tower_cosines(directed(posterior, x), directed(posterior, y), posterior.shape).variance.flatten()
    error = (found / sampled - 1).abs()
    print(f"{covariance}: variance against draws, largest relative error {float(error.max()):.2e}")
    assert float(error.max()) < 0.02


def test_independent_items_would_have_another_variance() -> None:
    """What the formula for two towers says of a picture and its copy is wrong by all of it."""
    posterior, x = tower(), features(N, seed=10)
    embedded = posterior.embed(x)
    assert float(prob_cosine(embedded, embedded).variance.diagonal().min()) > 1e-3
    own = same_tower_cosines(directed(posterior, x), directed(posterior, x), posterior.shape)
    assert float(own.variance.diagonal().max()) < 1e-12


# One query and all its hits -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_joint_cosines_of_one_tower_equal_the_dense_jacobian(covariance: Any) -> None:
    posterior, query, items = tower(covariance), features(1, seed=10), features(N, seed=20)
    expected = dense_cosines(posterior, query, items)
    found = joint_cosines(directed(posterior, query), directed(posterior, items), posterior.shape)
    for actual, wanted in zip(found, expected, strict=True):
        assert_close(actual, wanted, 1e-12)


def over_length(posterior: Posterior, inputs: Features) -> Directed:
    length = posterior.embed(inputs).expected_norm[:, None]
    return Directed(*(part / length for part in directed(posterior, inputs)))


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_cosines_of_a_query_equal_the_dense_jacobian_with_expected_lengths(covariance: Any) -> None:
    images, texts = tower(covariance), tower(covariance, seed=60, width=3)
    query, items = features(1, seed=10, width=3), features(N, seed=20)
    (text,), image = parts(texts, query), parts(images, items)
    P, Q = images.projection.augmented.double(), texts.projection.augmented.double()

    def cosines(P: Tensor, Q: Tensor) -> Tensor:  # [N]
        h = Q @ text[0] + text[1]
        return torch.stack([(P @ phi + r) @ h / ((P @ phi + r).norm() * h.norm()) for phi, r in image])

    by_image, by_text = jacrev(cosines, argnums=(0, 1))(P, Q)
    by_image, by_text = by_image.reshape(N, -1), by_text.reshape(N, -1)
    asked, found = over_length(texts, query), over_length(images, items)
    shorter, own = found.mean.norm(dim=1), asked.mean.norm()  # |mu| / s
    expected = shorter[:, None] * shorter * (by_image @ weight_covariance(images) @ by_image.T)
    of_text = own**2 * (by_text @ weight_covariance(texts) @ by_text.T)
    mean, covariances = query_cosines(asked, texts.shape, found, images.shape)
    assert_close(mean, prob_cosine(texts.embed(query), images.embed(items)).mean[0], 1e-13)
    assert_close(covariances, expected + of_text, 1e-12)
    vector = Directed(asked.mean, normal(1, 9, seed=1))
    assert_close(query_cosines(vector, None, found, images.shape)[1], expected, 1e-12, "a vector has no variance")


@pytest.mark.parametrize(("lam", "seed"), [(3.0, 30), (3.0, 50), (30.0, 40), (30.0, 50)])
def test_the_best_of_what_is_found_is_that_of_draws_of_both_projections(lam: float, seed: int) -> None:
    """Lengths are drawn too, at ratios of variance to squared length as of the embedded models and far below."""
    images, texts = tower("full", 0.02, lam), tower("full", 0.02, lam, seed=60, width=3)
    query, items = features(1, seed=10, width=3), features(8, seed=seed)
    embedded = images.embed(items)
    ratio = float((embedded.covariance.trace() / embedded.mean.square().sum(dim=1)).median())
    assert (0.25 < ratio < 0.6) if lam < 10 else (ratio < 0.1), ratio
    mean, covariance = query_cosines(over_length(texts, query), texts.shape, over_length(images, items), images.shape)
    found = probability_of_best(mean, covariance, draws=20_000)
    random = generator(4)
    g, h = (side.drawn_embeddings(of, 20_000, random) for side, of in ((images, items), (texts, query)))
    cosines = torch.nn.functional.cosine_similarity(g, h, dim=2)
    expected = torch.bincount(cosines.argmax(dim=1), minlength=8) / len(cosines)
    assert float(expected.max()) < 0.95, "there is a doubt"
    assert float((found - expected).abs().max()) < 0.04, (found, expected)


def test_the_query_itself_is_found_for_certain() -> None:
    posterior, items = tower(), features(N, seed=20)
    mean, covariance = joint_cosines(directed(posterior, items[:1]), directed(posterior, items), posterior.shape)
    assert float(mean[0]) == 1
    assert float(covariance[0].abs().max()) < 1e-15
    assert float(covariance.diagonal()[1:].min()) > 1e-5


def test_two_queries_are_refused() -> None:
    posterior, items = tower(), features(N, seed=20)
    with pytest.raises(BayesVLMError, match="The query has 2 rows"):
        joint_cosines(directed(posterior, items[:2]), directed(posterior, items), posterior.shape)


# The best of them -----------------------------------------------------------------------------------------------------


def test_the_probability_of_the_best_equals_brute_force_draws() -> None:
    mean, covariance = torch.tensor([0.3, 0.1, 0.25, -1.0]).double(), positive_definite(4, seed=1) / 20
    draws = mean + gaussian_draws(covariance, 200_000, generator(3))
    expected = torch.bincount(draws.argmax(dim=1), minlength=4) / len(draws)
    found = probability_of_best(mean, covariance, draws=20_000)
    assert float(found.sum()) == pytest.approx(1, abs=1e-12)
    assert float((found - expected).abs().max()) < 0.02, (found, expected)  # five standard errors


def test_two_independent_values_have_the_normal_probability() -> None:
    mean, covariance = torch.tensor([0.1, 0.0]).double(), torch.diag(torch.tensor([0.03, 0.01]).double())
    found = probability_of_best(mean, covariance, draws=20_000)
    assert float(found[0]) == pytest.approx(0.5 * (1 + math.erf(0.1 / 0.2 / math.sqrt(2))), abs=0.02)


def test_batches_are_as_one_by_one() -> None:
    mean, covariance = normal(3, 4, seed=1) / 5, torch.stack([positive_definite(4, seed=s) / 20 for s in range(3)])
    found = probability_of_best(mean, covariance, draws=2000, seed=5)
    for place in range(3):
        alone = probability_of_best(mean[place], covariance[place], draws=2000, seed=5)
        assert float((found[place] - alone).abs().max()) < 0.01


def test_copies_share_alike() -> None:
    posterior, items = tower(), features(3, seed=20)
    twice = Features(
        torch.cat([items.activations, items.activations]),
        torch.cat([items.residual, items.residual]),  # type: ignore[list-item]
    )
    query = Directed(unit(normal(1, d, seed=9)), torch.zeros(1, p + 1).double())
    mean, covariance = query_cosines(query, None, directed(posterior, twice), posterior.shape)
    found = probability_of_best(mean, covariance)
    assert_close(found[:3], found[3:], 1e-12)
    assert_close(2 * found[:3], probability_of_best(mean[:3], covariance[:3, :3], draws=20_000), 0.1)


@pytest.mark.parametrize("shape", [(0,), (3, 0)])
def test_nothing_has_no_best(shape: tuple[int, ...]) -> None:
    assert probability_of_best(torch.zeros(shape), torch.zeros(*shape, shape[-1])).shape == shape


def test_certain_values_leave_no_doubt() -> None:
    found = probability_of_best(torch.tensor([0.2, 0.9, 0.1]), torch.zeros(3, 3))
    assert found.tolist() == [0, 1, 0]


def test_a_shape_without_basis_is_diagonal() -> None:
    items = Directed(normal(N, d, seed=1), normal(N, p, seed=2))
    spectrum = torch.rand(d, generator=generator(3), dtype=torch.float64)
    plain = same_tower_cosines(items, items, Shape(spectrum))
    turned = same_tower_cosines(items, items, Shape(spectrum, torch.eye(d).double()))
    assert_close(plain.variance, turned.variance, 1e-12)
