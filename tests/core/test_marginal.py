"""The entropy split of inputs one by one, against draws of the projections that all inputs share."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from bayesvlm.core.distribution import EmbeddingDistribution
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.core.features import Features
from bayesvlm.core.inverted import InvertedPosterior
from bayesvlm.core.marginal import ClassDraws, TextDraws
from bayesvlm.core.posterior import Posterior
from bayesvlm.core.predict import monte_carlo, tower_generators
from bayesvlm.core.predicted import PredictedVariance
from bayesvlm.core.projection import Projection

from .references import normal

P_IMAGE, P_TEXT, D, N, SCALE = 7, 9, 5, 40, 6.0
TAU, LAM = 3.0, 8.0


def posterior(p: int, seed: int, bias: bool, structure: str = "damped") -> Posterior:
    projection = Projection(normal(D, p, seed=seed), normal(D, seed=seed + 1) if bias else None)
    phi, g = normal(N, p + bias, seed=seed + 2), normal(N, D, seed=seed + 3)
    return Posterior(projection, KroneckerFactors(phi.T @ phi, g.T @ g, N), TAU, LAM, structure)  # type: ignore[arg-type]


def inverted(p: int, seed: int, bias: bool) -> InvertedPosterior:
    of = posterior(p, seed, bias)
    damped = [math.sqrt(TAU) * each + math.sqrt(LAM) * torch.eye(len(each)) for each in (of.factors.A, of.factors.B)]
    return InvertedPosterior(of.projection, torch.linalg.inv(damped[0]), torch.linalg.inv(damped[1]).diagonal())


def towers(kind: str) -> tuple[EmbeddingDistribution, EmbeddingDistribution]:
    if kind == "predicted":
        head = PredictedVariance(torch.zeros(1, dtype=torch.float64), D)
        return head, head
    if kind == "inverted":
        return inverted(P_IMAGE, 0, False), inverted(P_TEXT, 50, True)
    structure, _, covariance = kind.partition(" ")
    pair = posterior(P_IMAGE, 0, True, structure), posterior(P_TEXT, 50, True, structure)
    image, text = (replace(of, covariance=covariance or "diagonal") for of in pair)  # type: ignore[arg-type]
    return image, text


def features(rows: int, p: int, seed: int, kind: str) -> Features:
    if kind == "predicted":
        return Features(2 * normal(rows, D, seed=seed), log_variance=normal(rows, D, seed=seed + 1) - 1)
    return Features(normal(rows, p, seed=seed))


KINDS = ["damped diagonal", "damped full", "exact diagonal", "exact full", "inverted", "predicted"]


@pytest.mark.parametrize("classes", [2, 12])  # their embeddings are kept; only their lengths are
@pytest.mark.parametrize("kind", KINDS)
def test_the_split_is_that_of_shared_draws(kind: str, classes: int) -> None:
    image, text = towers(kind)
    images, texts = features(4, P_IMAGE, 9, kind), features(classes, P_TEXT, 20, kind)
    expected = monte_carlo(image, images, text, texts, SCALE, 20_000, seed=1)
    projection = Projection(normal(D, D if kind == "predicted" else P_TEXT, seed=50))
    draws = TextDraws(text, projection, 20_000, seed=2).of(texts)
    found = draws.split(image.marginals(images), SCALE)
    assert len(draws) == classes
    torch.testing.assert_close(found.probs, expected.probs, atol=0.006, rtol=0)
    torch.testing.assert_close(found.total, expected.total, atol=0.01, rtol=0)
    torch.testing.assert_close(found.epistemic, expected.epistemic, atol=0.001, rtol=0.03)
    assert float(expected.epistemic.mean()) > 0.01, "there is something to compare"


def class_cosines(draws: ClassDraws, g: Tensor) -> Tensor:  # [S, d] -> [S, C]
    """Dot products with the unit embeddings of the classes."""
    found = torch.einsum("sd,sdm->sm", g, draws.table)
    return found if draws.inputs is None else found @ draws.inputs.T / draws.lengths[:, 0]  # type: ignore[index]


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("classes", [2, 12])
def test_classes_are_drawn_as_monte_carlo_draws_them(classes: int, bias: bool, constant: bool) -> None:
    text = posterior(P_TEXT, 50, bias)
    texts = Features(normal(classes, P_TEXT, seed=3), constant=normal(classes, 1, seed=4) if constant else None)
    drawn = text.drawn_embeddings(texts, 30, tower_generators(5)[1])  # [S, C, d]
    g = normal(30, D, seed=6)
    expected = torch.einsum("sd,scd->sc", g, functional.normalize(drawn, dim=2))
    draws = TextDraws(text, text.projection, 30, seed=5).of(texts)
    assert (draws.inputs is None) == (classes == 2)
    torch.testing.assert_close(class_cosines(draws, g), expected, atol=1e-9, rtol=1e-9)


def test_a_residual_is_part_of_an_embedding() -> None:
    text = posterior(P_TEXT, 50, True)
    texts = Features(normal(12, P_TEXT, seed=3), residual=normal(12, D, seed=4))
    drawn = text.drawn_embeddings(texts, 30, tower_generators(5)[1])
    g = normal(30, D, seed=6)
    expected = torch.einsum("sd,scd->sc", g, functional.normalize(drawn, dim=2))
    draws = TextDraws(text, text.projection, 30, seed=5).of(texts)
    torch.testing.assert_close(class_cosines(draws, g), expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("classes", [2, 12])
def test_an_input_is_alone(classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    image, text = towers("damped full")
    images = image.marginals(features(5, P_IMAGE, 9, ""))
    draws = TextDraws(text, Projection(normal(D, P_TEXT, seed=50)), 64, seed=0).of(features(classes, P_TEXT, 20, ""))
    together = draws.split(images, SCALE)
    monkeypatch.setattr("bayesvlm.core.blocks.NUMBERS", 1)
    for row in range(5):
        alone = draws.split(images[row], SCALE)
        for found, expected in zip(alone, together, strict=True):
            torch.testing.assert_close(found[0], expected[row], atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("classes", [2, 12])
def test_in_float32(classes: int) -> None:
    image, text = towers("damped full")
    images, texts = features(5, P_IMAGE, 9, ""), features(classes, P_TEXT, 20, "")
    of = {}
    for dtype in (torch.float64, torch.float32):
        moved = image.to(dtype), text.to(dtype)
        draws = TextDraws(moved[1], Projection(normal(D, P_TEXT, seed=50).to(dtype)), 64, seed=0).of(texts.to(dtype))
        of[dtype] = draws.split(moved[0].marginals(images.to(dtype)), SCALE)
        assert of[dtype].probs.dtype == dtype
    for single, double in zip(of[torch.float32], of[torch.float64], strict=True):
        torch.testing.assert_close(single.double(), double, atol=2e-5, rtol=0)


def test_no_draws() -> None:
    _, text = towers("damped")
    with pytest.raises(BayesVLMError, match="draws is 0; expected a whole number of at least 1"):
        TextDraws(text, Projection(normal(D, P_TEXT, seed=50)), 0, seed=0)
