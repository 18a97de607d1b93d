"""Cosines drawn without their embeddings, against embeddings drawn whole and against the algebra they rest on."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from bayesvlm.core import held as module
from bayesvlm.core.draws import standard_normal
from bayesvlm.core.held import SKETCH, HeldCosines
from bayesvlm.core.predict import tower_generators

from .references import assert_close, normal, positive_definite
from .test_draws import degenerate, other_eigenvectors

d, C, p, N = 24, 3, 6, 4
H = normalize(normal(C, d, seed=0) + 1, dim=1)
COVARIANCE = positive_definite(d, seed=1) / 900  # a tr R is up to 0.9 of |m|^2; of small real models 0.3
FACTOR = torch.linalg.cholesky(COVARIANCE)
MEAN = 0.3 * normal(N, d, seed=2) + normalize(H.sum(dim=0), dim=0)
INPUTS = normal(N, p, seed=3) / math.sqrt(p) + 0.3


def given(like: Tensor = MEAN) -> HeldCosines:
    return HeldCosines.of(H, FACTOR, like)


def cosines(of: HeldCosines, mean: Tensor, inputs: Tensor, draws: int, seed: int) -> Tensor:  # [S, N, C]
    out = mean.new_empty(draws, len(mean), len(of.directions))
    for rows, these, found in of.blocks(mean, inputs, draws, seed):
        out[these, rows] = found.transpose(0, 1)
    return out


def whole(draws: int, seed: int) -> Tensor:  # [S, N, C]
    """Embeddings drawn and divided by their lengths."""
    noise = torch.randn(draws, d, p, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    g = MEAN + torch.einsum("ij,sjk,nk->sni", FACTOR, noise, INPUTS)
    return normalize(g, dim=2) @ H.T


def moments(drawn: Tensor) -> tuple[Tensor, Tensor]:  # [N C], [N C, N C]
    flat = drawn.flatten(1)
    return flat.mean(dim=0), torch.cov(flat.T)


def test_moments_of_cosines_between_all_inputs() -> None:
    """Means, and the covariance of every input and class with every other, within 2 %.

    Not for want of trying: with the length at its mean given the rest, or with everything but the classes left out, the
    covariance is further off than that.
    """
    many = 120_000
    mean, covariance = moments(whole(many, 1))
    found = moments(cosines(given(), MEAN, INPUTS, many, 2))
    assert_close(found[0], mean, 0.005, "means")
    assert_close(found[1], covariance, 0.02, "covariance")
    for row in range(N):
        own = slice(row * C, (row + 1) * C)
        assert_close(found[1][own, own], covariance[own, own], 0.02, f"covariance of input {row}")
    assert float((INPUTS.square().sum(dim=1) * COVARIANCE.trace() / MEAN.square().sum(dim=1)).max()) > 0.8, "wide"
    quiet = replace(given(), rest=torch.zeros(d, d, dtype=torch.float64), spread=0.0)
    _, poorer = moments(cosines(quiet, MEAN, INPUTS, 30_000, 2))
    assert float((poorer - covariance).norm() / covariance.norm()) > 0.04
    nothing = replace(quiet, trace=0.0)
    _, poorest = moments(cosines(nothing, MEAN, INPUTS, 30_000, 2))
    assert float((poorest - covariance).norm() / covariance.norm()) > 0.2


def test_what_the_directions_see_and_the_rest_make_up_the_covariance() -> None:
    of = given()
    assert_close(of.root @ of.root, H @ COVARIANCE @ H.T, 1e-12, "root")
    assert_close(of.root, of.root.T, 1e-12)
    assert_close(H @ of.along, of.root, 1e-12)
    assert_close(of.along @ of.along.T + of.rest @ of.rest.T, COVARIANCE, 1e-12, "covariance")
    assert float((H @ of.rest).abs().max()) < 1e-12, "the rest moves no class"
    left = of.rest @ of.rest.T
    assert of.trace == pytest.approx(float(left.trace()))
    assert SKETCH * of.spread**2 == pytest.approx(float(left.square().sum()))


def test_as_many_directions_as_dimensions_leave_nothing_to_approximate() -> None:
    """Draw by draw: the embedding is `m + M y` then, y the white noise that the module's docstring says."""
    all_of_them = normalize(normal(d, d, seed=5), dim=1)
    of = HeldCosines.of(all_of_them, FACTOR, MEAN)
    assert of.trace < 1e-12
    noise = standard_normal(7, (d, p), tower_generators(3)[0], MEAN)
    g = MEAN + (INPUTS @ noise.transpose(1, 2)) @ of.along.T
    assert_close(cosines(of, MEAN, INPUTS, 7, 3), normalize(g, dim=2) @ all_of_them.T, 1e-10)


def test_the_rest_of_the_length_has_its_mean_and_its_covariance_between_inputs() -> None:
    """Given what the classes see, y: 2 (m + M y) . e + |e|^2 for e = F_rest Z u, Z white noise of full rank.

    Its mean is |u|^2 tr A, its covariance 4 u.u' (m + M y)^T A (m' + M y') + 2 (u.u')^2 tr A^2.
    """
    of, many = given(), 150_000
    A = of.rest @ of.rest.T
    one = replace(of, root=torch.zeros_like(of.root))  # cosines are H m / |g| then: lengths can be read from them
    white = standard_normal(1, (C, p), torch.Generator().manual_seed(1), MEAN)
    y = INPUTS @ white[0].T
    pieces = standard_normal(many, (SKETCH, p + d), torch.Generator().manual_seed(2), MEAN)
    noise = module._Noise.of(
        white.expand(many, C, p).reshape(-1, p), pieces[..., :p], pieces[..., p:] @ of.rest.T, of.along
    )
    found = one._cosines(MEAN, INPUTS, noise)  # [N, S, C]
    squares = ((MEAN @ H.T)[:, None, 0] / found[:, :, 0]).square()
    centre = MEAN + y @ of.along.T
    gram = INPUTS @ INPUTS.T
    mean = centre.square().sum(dim=1) + gram.diagonal() * of.trace
    covariance = 4 * gram * (centre @ A @ centre.T) + 2 * gram.square() * A.square().sum()
    assert_close(squares.mean(dim=1), mean, 0.003, "mean of |g|^2")
    assert_close(torch.cov(squares), covariance, 0.02, "covariance of |g|^2")


def test_signs_and_bases_of_eigenvectors_do_not_enter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a direction twice and equal eigenvalues, where eigenvectors are free."""
    width = 7
    axes = torch.eye(width, dtype=torch.float64)[[0, 1, 2, 2]]
    factor = torch.linalg.cholesky(degenerate(width, 3))
    mean, inputs = normal(N, width, seed=4), normal(N, p, seed=5)
    values = [torch.linalg.eigvalsh(each @ factor @ factor.T @ each.T) for each in (axes[:3], axes)]
    assert float(values[1][0].abs()) < 1e-12, "singular"
    for directions in (axes, torch.eye(width, dtype=torch.float64)):
        with monkeypatch.context() as patch:
            first = cosines(HeldCosines.of(directions, factor, mean), mean, inputs, 5, 1)
            made = other_eigenvectors(patch)
            second = cosines(HeldCosines.of(directions, factor, mean), mean, inputs, 5, 1)
        assert made, "the decomposition was taken again"
        assert_close(second, first, 1e-9)
    twice = cosines(HeldCosines.of(axes, factor, mean), mean, inputs, 5, 1)
    assert_close(twice[..., 3], twice[..., 2], 1e-10, "the same direction, the same cosine")


def test_either_precision_has_the_same_draws() -> None:
    exact = cosines(given(), MEAN, INPUTS, 20, 1)
    rounded = cosines(given(MEAN.float()), MEAN.float(), INPUTS.float(), 20, 1)
    assert rounded.dtype == torch.float32
    assert_close(rounded.double(), exact, 1e-5)


def test_neither_groups_of_draws_nor_blocks_of_inputs_change_a_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = cosines(given(), MEAN, INPUTS, 9, 1)
    monkeypatch.setattr(module, "group_sizes", lambda draws, size: (2, 3, 4))
    monkeypatch.setattr(module, "BLOCK", 3 * (C + SKETCH))
    assert_close(cosines(given(), MEAN, INPUTS, 9, 1), at_once, 1e-12)
    assert_close(cosines(given(), MEAN[2:], INPUTS[2:], 9, 1), at_once[:, 2:], 1e-12, "whatever inputs are beside")


def test_a_posterior_of_any_width_gives_cosines() -> None:
    """Means that the noise drowns, and nothing to draw at all."""
    for size in (0.0, 1e-3, 1e6):
        of = HeldCosines.of(H, size * FACTOR + 1e-9 * torch.eye(d, dtype=torch.float64), MEAN.float())
        found = cosines(of, 1e-3 * MEAN.float(), INPUTS.float(), 500, 1)
        assert bool(torch.isfinite(found).all())
        assert float(found.abs().max()) <= 1 + 1e-6
    still = HeldCosines.of(H, 1e-9 * torch.eye(d, dtype=torch.float64), MEAN)
    assert_close(cosines(still, MEAN, INPUTS, 1, 1)[0], normalize(MEAN, dim=1) @ H.T, 1e-6)


def test_when_it_pays() -> None:
    assert HeldCosines.pay(65, 512)
    assert not HeldCosines.pay(255, 512)
    few, many = (HeldCosines.of(normal(C, width, seed=0), normal(width, width, seed=1), MEAN) for width in (12, 96))
    assert few.cost(10, 768) == pytest.approx(many.cost(10, 768), rel=0.1), "d hardly enters"
