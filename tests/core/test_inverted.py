"""A posterior known by its inverses predicts what the factors it came from predict."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bayesvlm.core.cosine import prob_cosine
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.core.features import Features
from bayesvlm.core.inverted import InvertedPosterior
from bayesvlm.core.posterior import Posterior
from bayesvlm.core.predict import monte_carlo
from bayesvlm.core.projection import Projection

P, D, N = 7, 5, 40
TAU, LAM = 3.0, 12.0


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def both(seed: int, bias: bool = False) -> tuple[Posterior, InvertedPosterior]:
    """The same posterior by its factors and by its inverses."""
    projection = Projection(draw(seed, D, P), draw(seed + 1, D) if bias else None)
    phi, g = draw(seed + 2, N, P + bias), draw(seed + 3, N, D)
    factors = KroneckerFactors(phi.T @ phi, g.T @ g, N)
    damped = [math.sqrt(TAU) * of + math.sqrt(LAM) * torch.eye(len(of)) for of in (factors.A, factors.B)]
    inverted = InvertedPosterior(projection, torch.linalg.inv(damped[0]), torch.linalg.inv(damped[1]).diagonal())
    return Posterior(projection, factors, TAU, LAM), inverted


@pytest.mark.parametrize("bias", [False, True])
def test_embeddings_equal_those_of_the_factors(bias: bool) -> None:
    posterior, inverted = both(0, bias)
    features = Features(draw(9, 6, P))
    expected, found = posterior.embed(features), inverted.embed(features)
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.covariance.per_item().variance, expected.covariance.per_item().variance)


def test_the_variance_is_the_quadratic_form() -> None:
    _, inverted = both(0)
    phi = draw(9, 6, P)
    expected = torch.stack([(x @ inverted.A_inverse @ x) * inverted.B_diagonal for x in phi])
    torch.testing.assert_close(inverted.embed(Features(phi)).covariance.per_item().variance, expected)


def test_draws_have_the_moments() -> None:
    _, inverted = both(0)
    features = Features(draw(9, 3, P))
    drawn = inverted.drawn_embeddings(features, 40_000, torch.Generator().manual_seed(1))
    embedded = inverted.embed(features)
    variance = embedded.covariance.per_item().variance
    torch.testing.assert_close(drawn.mean(dim=0), embedded.mean, atol=0.03, rtol=0)
    torch.testing.assert_close(drawn.var(dim=0), variance, atol=0, rtol=0.05)


def test_predictions_by_moments_and_by_draws() -> None:
    (image, inverted_image), (text, inverted_text) = both(0), both(50, bias=True)
    images, texts = Features(draw(9, 6, P)), Features(draw(10, 4, P))
    expected = prob_cosine(image.embed(images), text.embed(texts))
    found = prob_cosine(inverted_image.embed(images), inverted_text.embed(texts))
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.variance, expected.variance)
    probs = monte_carlo(inverted_image, images, inverted_text, texts, 5.0, 500).probs
    torch.testing.assert_close(probs.sum(dim=1), torch.ones(6, dtype=probs.dtype))


def test_in_float32() -> None:
    _, inverted = both(0)
    single = InvertedPosterior(inverted.projection.to(torch.float32), inverted.A_inverse, inverted.B_diagonal)
    features = Features(draw(9, 6, P))
    variance = single.embed(features).covariance.per_item().variance
    assert variance.dtype == torch.float32
    torch.testing.assert_close(
        variance.double(), inverted.embed(features).covariance.per_item().variance, rtol=1e-5, atol=0
    )


@pytest.mark.parametrize(
    ("inverse", "diagonal", "message"),
    [
        (torch.eye(P + 1), torch.ones(D), "belong to another model or tower"),
        (torch.eye(P), torch.ones(D + 1), "belong to another model or tower"),
        (torch.zeros(P, P), torch.ones(D), "the covariance was never set"),
        (torch.eye(P), torch.zeros(D), "the covariance was never set"),
        (torch.eye(P), -torch.ones(D), "the covariance was never set"),
        (torch.eye(P) * torch.nan, torch.ones(D), "NaN or Inf"),
        (-torch.eye(P), torch.ones(D), "indefinite"),
        (draw(1, P, P), torch.ones(D), "not symmetric"),
    ],
)
def test_what_is_no_covariance(inverse: Tensor, diagonal: Tensor, message: str) -> None:
    with pytest.raises(BayesVLMError, match=message):
        InvertedPosterior(Projection(draw(0, D, P)), inverse, diagonal)
