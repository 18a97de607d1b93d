"""Online Laplace steps against the recursion of the paper, written out, and decomposed from scratch."""

from __future__ import annotations

import math

import pytest
import torch
from core.references import assert_close, normal, positive_definite
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from bayesvlm.active import OnlineLaplace
from bayesvlm.active.contrast import ClassContrast
from bayesvlm.core.curvature import infonce_curvature
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.evidence import optimal_prior_precision
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.core.features import Features
from bayesvlm.core.posterior import Posterior
from bayesvlm.core.projection import Projection

d, p, C, N0, TAU, LAM, SCALE = 6, 9, 5, 400, 1.7, 0.8, 12.0
TEXTS = normal(C, d, seed=6)
CONTRAST = ClassContrast(TEXTS, SCALE)


def start(*, bias: bool = False, residual: bool | None = None, structure: str = "damped") -> Posterior:
    weight = normal(d, p, seed=0)
    projection = Projection(weight[:, :-1], weight[:, -1], residual) if bias else Projection(weight, None, residual)
    factors = KroneckerFactors(positive_definite(p, seed=1) * 30, positive_definite(d, seed=2) * 30, N0)
    return Posterior(projection, factors, TAU, LAM, structure)  # type: ignore[arg-type]


def stream(count: int, *, bias: bool = False, residual: bool = False) -> tuple[Features, list[int]]:
    """Images and labels."""
    extra = normal(count, d, seed=4) if residual else None
    images = Features(normal(count, p - bias, seed=3), extra)
    labels = torch.randint(C, (count,), generator=torch.Generator().manual_seed(5)).tolist()
    return images, labels


def learnt(begun: OnlineLaplace, images: Features, labels: list[int], gamma: float) -> OnlineLaplace:
    online = begun
    for row, label in enumerate(labels):
        online = online.step(images[row], label, gamma)
    return online


@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("beta", [0.0, 1.0, 100.0])
def test_two_hundred_steps_equal_a_decomposition_from_scratch(bias: bool, beta: float) -> None:
    images, labels = stream(200, bias=bias)
    online = learnt(OnlineLaplace.begin(start(bias=bias), CONTRAST, beta), images, labels, gamma=1e-3)
    A, B, W = online.start.factors.A, online.start.factors.B, start(bias=bias).projection.augmented
    for s, label in enumerate(labels):  # the paper's recursion, as it is written
        phi = online.start.projection.inputs(images[s])
        g = phi @ W.T
        curvature = infonce_curvature(g, TEXTS, SCALE)
        A = (math.sqrt(N0 + s) * A + beta * phi.T @ phi) / math.sqrt(N0 + s + 1)
        B = (math.sqrt(N0 + s) * B + beta * curvature) / math.sqrt(N0 + s + 1)
        W = W - 1e-3 * gradient(W, phi, label)
    assert_close(online.projection.augmented, W, 1e-12, "weights")
    assert_close(online.factors.A, A, 1e-12, "A")
    assert_close(online.factors.B, B, 1e-12, "B")
    test = Features(normal(40, p - bias, seed=9))
    inputs = online.projection.inputs(test)
    inverse = torch.linalg.inv(math.sqrt(TAU) * A + math.sqrt(LAM) * torch.eye(p))
    whitened = online.whitened_inputs(test)
    assert_close(whitened @ whitened.T, inputs @ inverse @ inputs.T, 1e-8, "what draws of W have in common")
    scratch = online.posterior.embed(test)
    assert_close(scratch.covariance.scale, whitened.square().sum(dim=1), 1e-8, "a(x)")


def gradient(W: Tensor, phi: Tensor, label: int, residual: Tensor | None = None) -> Tensor:
    """Of the cross-entropy, by automatic differentiation."""
    weight = W.clone().requires_grad_()
    g = phi @ weight.T + (0 if residual is None else residual)
    loss = cross_entropy(SCALE * normalize(g, dim=1) @ normalize(TEXTS, dim=1).T, torch.tensor([label]))
    (found,) = torch.autograd.grad(loss, weight)
    return found


def test_the_gradient_step_with_a_residual() -> None:
    images, labels = stream(1, residual=True)
    begun = OnlineLaplace.begin(start(residual=True), CONTRAST, 1.0)
    moved = begun.step(images, labels[0], gamma=0.5).projection.weight
    expected = gradient(begun.projection.weight, images.activations, labels[0], images.residual)
    assert_close((begun.projection.weight - moved) / 0.5, expected, 1e-10)


def test_a_step_changes_nothing_but_its_result() -> None:
    images, labels = stream(3)
    begun = OnlineLaplace.begin(start(), CONTRAST, 10.0)
    before = (begun.projection.weight.clone(), begun.added.clone(), begun.B_sum.clone(), begun.n)
    one = begun.step(images[0], labels[0], gamma=0.1)
    learnt(one, images[1:], labels[1:], gamma=0.1)
    assert torch.equal(begun.projection.weight, before[0])
    assert torch.equal(begun.added, before[1])
    assert torch.equal(begun.B_sum, before[2])
    assert (begun.n, one.n) == (before[3], before[3] + 1)


def test_without_a_label_the_weights_stay_and_the_factors_grow() -> None:
    images, labels = stream(1)
    begun = OnlineLaplace.begin(start(), CONTRAST, 10.0)
    blind, told = (begun.step(images, label, gamma=0.1) for label in (None, labels[0]))
    assert torch.equal(blind.projection.weight, begun.projection.weight)
    assert not torch.equal(told.projection.weight, begun.projection.weight)
    assert torch.equal(blind.factors.A_sum, told.factors.A_sum)
    assert torch.equal(blind.factors.B_sum, told.factors.B_sum)


def test_before_the_first_step_draws_are_those_of_the_posterior() -> None:
    given, test = start(), Features(normal(7, p, seed=9))
    begun = OnlineLaplace.begin(given, CONTRAST, 100.0)
    ours = begun.drawn_embeddings(test, 3, torch.Generator().manual_seed(0))
    theirs = given.drawn_embeddings(test, 3, torch.Generator().manual_seed(0))
    assert_close(ours, theirs, 1e-10)


def test_draws_after_steps_have_the_covariance_of_the_posterior() -> None:
    images, labels = stream(30)
    online = learnt(OnlineLaplace.begin(start(), CONTRAST, 20.0), images, labels, gamma=1e-3)
    test = Features(normal(3, p, seed=9))
    drawn = online.drawn_embeddings(test, 40_000, torch.Generator().manual_seed(1))
    exact = online.posterior
    for row in range(3):
        A = math.sqrt(TAU) * exact.factors.A + math.sqrt(LAM) * torch.eye(p)
        B = math.sqrt(TAU) * exact.factors.B + math.sqrt(LAM) * torch.eye(d)
        phi = test.activations[row]
        expected = (phi @ torch.linalg.solve(A, phi)) * torch.linalg.inv(B)
        assert_close(drawn[:, row].T.cov(), expected, 0.03)
        assert_close(drawn[:, row].mean(dim=0), exact.projection.embed(test)[row], 0.02)


def test_lam_is_solved_again_when_asked() -> None:
    images, labels = stream(1)
    begun = OnlineLaplace.begin(start(), CONTRAST, 50.0)
    solved = begun.step(images, labels[0], gamma=0.1, solve_lam=True)
    factors, norm = solved.factors, solved.projection.norm_squared
    assert solved.lam == pytest.approx(optimal_prior_precision(factors.A, factors.B, norm, TAU), rel=1e-9)
    assert begun.step(images, labels[0], gamma=0.1).lam == LAM


def test_what_is_refused() -> None:
    images, labels = stream(2)
    with pytest.raises(BayesVLMError, match="online steps are defined for the damped posterior"):
        OnlineLaplace.begin(start(structure="exact"), CONTRAST, 1.0)
    with pytest.raises(BayesVLMError, match="beta=-1; it is the weight of a labelled image"):
        OnlineLaplace.begin(start(), CONTRAST, -1)
    with pytest.raises(BayesVLMError, match="takes one image, got 2"):
        OnlineLaplace.begin(start(), CONTRAST, 1.0).step(images, labels[0], gamma=0.1)
