"""Prompt ensembles: one row of activations against draws of the projection, and against its own special cases."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bayesvlm.core.cosine import prob_cosine
from bayesvlm.core.ensemble import ensemble
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.core.features import Features
from bayesvlm.core.posterior import Posterior
from bayesvlm.core.predicted import PredictedVariance
from bayesvlm.core.projection import Projection

from .references import assert_close, relative_error

D, P = 6, 9
GROUPS = [0, 0, 0, 1, 2, 2]  # three prompts, one, two


def draw(*size: int, seed: int) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def posterior(seed: int, bias: bool, residual: bool, structure: str = "damped") -> Posterior:
    projection = Projection(draw(D, P, seed=seed), draw(D, seed=seed + 1) if bias else None, residual or None)
    p = P + bias
    roots = draw(p, 2 * p, seed=seed + 2), draw(D, 2 * D, seed=seed + 3)
    factors = KroneckerFactors(roots[0] @ roots[0].T, roots[1] @ roots[1].T, 100)
    return Posterior(projection, factors, tau=3.0, lam=6.0, structure=structure, covariance="full")  # type: ignore[arg-type]


def features(count: int, seed: int, residual: bool) -> Features:
    return Features(draw(count, P, seed=seed), draw(count, D, seed=seed + 1) if residual else None)


def drawn(of: Posterior, draws: int, seed: int) -> Tensor:  # [S, d, p]
    """Draws of the projection from its dense covariance, by a Cholesky factor: no code of the package."""
    A, B = of.factors.A, of.factors.B
    if of.structure == "damped":
        At = math.sqrt(of.tau) * A + math.sqrt(of.lam) * torch.eye(len(A), dtype=A.dtype)
        Bt = math.sqrt(of.tau) * B + math.sqrt(of.lam) * torch.eye(len(B), dtype=B.dtype)
        precision = torch.kron(Bt, At)
    else:
        precision = of.tau * torch.kron(B, A) + of.lam * torch.eye(len(A) * len(B), dtype=A.dtype)
    root = torch.linalg.cholesky(torch.linalg.inv(precision))
    noise = draw(draws, len(root), seed=seed) @ root.T
    return of.projection.augmented + noise.reshape(draws, len(B), len(A))


def embeddings(weights: Tensor, of: Projection, inputs: Features) -> Tensor:  # [S, N, d]
    ones = torch.ones(len(inputs), 1, dtype=torch.float64)
    phi = inputs.activations if of.bias is None else torch.cat([inputs.activations, ones], dim=1)
    found = torch.einsum("sdp,np->snd", weights, phi)
    return found if inputs.residual is None else found + inputs.residual


@pytest.mark.parametrize("structure", ["damped", "exact"])
@pytest.mark.parametrize(("bias", "residual"), [(False, False), (True, False), (True, True)])
def test_moments_are_those_of_draws_of_both_projections(bias: bool, residual: bool, structure: str) -> None:
    image, text = posterior(0, bias, residual, structure), posterior(10, bias, residual, structure)
    inputs, prompts = features(8, 20, residual), features(len(GROUPS), 30, residual)
    moments = prob_cosine(image.embed(inputs), text.embed(ensemble(text.projection, prompts, GROUPS)))

    draws = 20_000
    g = embeddings(drawn(image, draws, 1), image.projection, inputs)
    h = embeddings(drawn(text, draws, 2), text.projection, prompts)
    norms = embeddings(text.projection.augmented[None], text.projection, prompts)[0].norm(dim=1)
    group = torch.tensor(GROUPS)
    averaged = torch.stack([(h / norms[:, None])[:, group == c].mean(dim=1) for c in range(3)], dim=1)  # [S, C, d]
    products = torch.einsum("snd,scd->snc", g, averaged)
    sizes = g.square().sum(2).mean(0).sqrt()[:, None] * averaged.square().sum(2).mean(0).sqrt()
    assert_close(moments.mean, products.mean(0) / sizes, 0.02, "means")
    assert_close(moments.variance, products.var(0) / sizes.square(), 0.02, "variances")


def test_prompts_share_the_projection() -> None:
    """Prompts that are alike vary together, so their mean varies as each does, not a third as much."""
    text = posterior(0, bias=True, residual=False)
    one = features(1, 1, False)
    alike = Features(one.activations + 0.01 * draw(3, P, seed=2))
    together = text.embed(ensemble(text.projection, alike, [0, 0, 0]))
    alone = text.embed(alike)
    scale = together.covariance.per_item().variance.sum() / together.mean.square().sum()
    each = (alone.covariance.per_item().variance.sum(1) / alone.mean.square().sum(1)).mean()
    assert abs(float(scale / each) - 1) < 0.05


def test_the_mean_is_that_of_the_unit_embeddings() -> None:
    projection = posterior(0, bias=True, residual=True).projection
    prompts = features(len(GROUPS), 3, True)
    unit = torch.nn.functional.normalize(projection.embed(prompts), dim=1)
    expected = torch.stack([unit[torch.tensor(GROUPS) == c].mean(0) for c in range(3)])
    found = projection.embed(ensemble(projection, prompts, GROUPS))
    normalize = torch.nn.functional.normalize
    assert_close(normalize(found, dim=1), normalize(expected, dim=1), 1e-12, "directions")
    lengths = projection.embed(prompts).norm(dim=1)
    assert_close(found.norm(dim=1), torch.stack([lengths[:3].mean(), lengths[3], lengths[4:].mean()]), 1e-12, "lengths")


@pytest.mark.parametrize("bias", [False, True])
def test_one_prompt_is_itself_whatever_the_others_are(bias: bool) -> None:
    text = posterior(0, bias, residual=False)
    prompts = features(len(GROUPS), 3, False)
    alone, among = prompts[3], ensemble(text.projection, prompts, GROUPS)[1]
    for have, want in zip(
        (text.embed(among).mean, text.embed(among).covariance.per_item().variance),
        (text.embed(alone).mean, text.embed(alone).covariance.per_item().variance),
        strict=True,
    ):
        assert_close(have, want, 1e-12, "moments")
    single = ensemble(text.projection, prompts, [2, 0, 1, 5, 4, 3])
    assert torch.equal(single.activations, prompts.activations[[1, 2, 0, 5, 4, 3]]), "in the order of the groups"


def test_a_prompt_twice_is_the_prompt_once() -> None:
    text = posterior(0, bias=True, residual=False)
    prompts = features(2, 3, False)
    twice = ensemble(text.projection, prompts[[0, 0, 1]], [0, 0, 1])
    assert_close(text.embed(twice).mean, text.embed(prompts).mean, 1e-12)
    variances = (text.embed(each).covariance.per_item().variance for each in (twice, prompts))
    assert_close(*variances, 1e-12)


def test_float32_agrees_with_float64() -> None:
    text = posterior(0, bias=True, residual=True)
    prompts = features(len(GROUPS), 3, True)
    narrow = ensemble(text.projection.to(torch.float32), prompts.to(torch.float32), GROUPS)
    wide = ensemble(text.projection, prompts, GROUPS)
    assert narrow.activations.dtype == torch.float32
    for name, value in wide.tensors().items():
        assert relative_error(narrow.tensors()[name], value) < 1e-6, name


def test_predicted_standard_deviations_are_averaged() -> None:
    """A model's own variances: those of one prompt given twice are its own, of two the deviations' mean."""
    projection, like = Projection(torch.eye(D, dtype=torch.float64)), torch.zeros(1, dtype=torch.float64)
    mean = torch.nn.functional.normalize(draw(2, D, seed=0), dim=1)
    prompts = Features(mean, log_variance=draw(2, D, seed=1))
    predicted = PredictedVariance(like, D)
    alone = predicted.embed(ensemble(projection, prompts[[0, 0]], [0, 0]))
    assert_close(alone.covariance.per_item().variance, prompts.log_variance[:1].exp(), 1e-12)  # type: ignore[index]
    both = predicted.embed(ensemble(projection, prompts, [0, 0]))
    deviation = (prompts.log_variance / 2).exp().mean(0) / mean.mean(0).norm()  # type: ignore[operator]
    assert_close(both.covariance.per_item().variance[0], deviation.square(), 1e-12)
    assert_close(both.mean[0].norm(), torch.tensor(1.0), 1e-12)


def test_mistakes_are_named() -> None:
    projection = Projection(torch.eye(2))
    prompts = Features(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]))
    with pytest.raises(BayesVLMError, match="of class 0 point in opposite directions"):
        ensemble(projection, prompts, [0, 0])
    with pytest.raises(BayesVLMError, match="of class 7 point in opposite directions"):
        ensemble(projection, prompts, [0, 0], first=7)
    with pytest.raises(BayesVLMError, match="none may be empty"):
        ensemble(projection, prompts, [0, 2])
    with pytest.raises(BayesVLMError, match="each needs its group"):
        ensemble(projection, prompts, [0])
    with pytest.raises(BayesVLMError, match="rows \\[1\\] are zero"):
        ensemble(projection, Features(torch.tensor([[1.0, 0.0], [0.0, 0.0]])), [0, 0])


def test_ensembles_and_single_prompts_stand_in_one_list() -> None:
    text = posterior(0, bias=True, residual=False)
    prompts = features(4, 3, False)
    together = Features.concatenate([ensemble(text.projection, prompts[:3], [0, 0, 0]), prompts[3:]])
    assert_close(text.projection.embed(together)[1], text.projection.embed(prompts)[3], 1e-12)
