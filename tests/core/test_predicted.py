"""Embeddings with predicted variances: their moments, their draws, and what is refused."""

from __future__ import annotations

import pytest
import torch

from bayesvlm.core.cosine import prob_cosine
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.core.predict import sample_cosines
from bayesvlm.core.predicted import PredictedVariance

from .references import normal

HEAD = PredictedVariance(torch.zeros(1, dtype=torch.float64), 4)


def features(rows: int, seed: int) -> Features:
    return Features(3 * normal(rows, 4, seed=seed), log_variance=normal(rows, 4, seed=seed + 1) - 2)


def test_the_moments_are_those_of_the_predicted_gaussians() -> None:
    given = features(5, 0)
    embedded = HEAD.embed(given)
    assert torch.equal(embedded.mean, given.activations)
    drawn = HEAD.drawn_embeddings(given, 40_000, torch.Generator().manual_seed(0))
    assert torch.allclose(drawn.mean(0), embedded.mean, atol=0.03)
    assert torch.allclose(drawn.var(0), given.log_variance.exp(), rtol=0.05)
    apart = ((drawn[:, 0] - drawn[:, 0].mean(0)) * (drawn[:, 1] - drawn[:, 1].mean(0))).mean(0)
    assert float(apart.abs().max()) < 0.02, "inputs are drawn independently"


def test_prob_cosine_is_near_the_cosines_of_draws() -> None:
    images, texts = features(6, 0), features(3, 7)
    moments = prob_cosine(HEAD.embed(images), HEAD.embed(texts))
    cosines = torch.stack(list(sample_cosines(HEAD, images, HEAD, texts, 20_000)))
    assert torch.allclose(cosines.mean(0), moments.mean, atol=0.05)
    assert float((cosines.var(0) / moments.variance).median()) == pytest.approx(1, abs=0.35)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (Features(normal(2, 4, seed=0)), "but the features carry none"),
        (Features(normal(2, 5, seed=0), log_variance=normal(2, 5, seed=1)), "activations is 5 wide"),
        (Features(normal(2, 4, seed=0), log_variance=normal(2, 3, seed=1)), "log_variance is 3 wide"),
    ],
)
def test_features_of_another_model(given: Features, sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        HEAD.embed(given)
