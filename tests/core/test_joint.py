"""The joint covariance of logits against dense algebra and against 200,000 parameter draws."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bayesvlm.core.cosine import prob_cosine
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.core.features import Features
from bayesvlm.core.joint import joint_logit_covariance
from bayesvlm.core.posterior import Posterior
from bayesvlm.core.projection import Projection

from .references import (
    assert_close,
    dense_covariance,
    embedding_covariance,
    gaussian_draws,
    generator,
    normal,
    positive_definite,
    relative_error,
)

d, p, q, N, C, SCALE = 3, 4, 2, 3, 2, 7.0
STRUCTURES = ["damped", "exact"]


def towers(structure: Any, covariance: Any = "full", bias: bool = True) -> tuple[Posterior, Posterior]:
    """Image and text posteriors of different widths, temperatures of data and priors; the image tower has a bias."""
    P, Q = normal(d, p, seed=0), normal(d, q, seed=1)
    image = Posterior(
        Projection(P, normal(d, seed=2) if bias else None),
        KroneckerFactors(positive_definite(p + bias, seed=3), positive_definite(d, seed=4), 4),
        2.0,
        3.0,
        structure,
        covariance,
    )
    text = Posterior(
        Projection(Q),
        KroneckerFactors(positive_definite(q, seed=5), positive_definite(d, seed=6), 4),
        0.7,
        5.0,
        structure,
        covariance,
    )
    return image, text


def inputs() -> tuple[Features, Features]:
    """Images with a residual, texts without."""
    return Features(normal(N, p, seed=7), normal(N, d, seed=8)), Features(normal(C, q, seed=9))


def dense(posterior: Posterior) -> torch.Tensor:
    """Covariance of the flattened weights."""
    factors = posterior.factors
    return dense_covariance(factors.A, factors.B, posterior.tau, posterior.lam, posterior.structure)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_within_one_percent_of_monte_carlo(structure: Any) -> None:
    image, text = towers(structure)
    images, texts = inputs()
    random, draws = generator(0), 200_000
    phi, psi = image.projection.inputs(images), text.projection.inputs(texts)
    P = image.projection.augmented + gaussian_draws(dense(image), draws, random).reshape(draws, d, p + 1)
    Q = text.projection.augmented + gaussian_draws(dense(text), draws, random).reshape(draws, d, q)
    assert images.residual is not None
    G = torch.einsum("sdp,np->snd", P, phi) + images.residual
    H = torch.einsum("sdq,cq->scd", Q, psi)
    logits = SCALE * torch.einsum("snd,scd->snc", G, H).reshape(draws, N * C)
    sampled = torch.cov(logits.T)
    actual = joint_logit_covariance(image, images, text, texts, SCALE).reshape(N * C, N * C)
    print(f"{structure}: closed form against Monte Carlo, relative error {relative_error(actual, sampled):.2e}")
    assert_close(actual, sampled, 0.01)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_equals_dense_algebra(structure: Any) -> None:
    image, text = towers(structure)
    images, texts = inputs()
    G, H = image.projection.embed(images), text.projection.embed(texts)
    Kg = embedding_covariance(dense(image), image.projection.inputs(images), d)  # [N, N, d, d]
    Kh = embedding_covariance(dense(text), text.projection.inputs(texts), d)  # [C, C, d, d]
    expected = torch.empty(N, C, N, C).double()
    for n in range(N):
        for i in range(C):
            for m in range(N):
                for j in range(C):
                    expected[n, i, m, j] = (
                        H[i] @ Kg[n, m] @ H[j] + G[n] @ Kh[i, j] @ G[m] + (Kg[n, m] @ Kh[i, j].T).trace()
                    )
    assert_close(joint_logit_covariance(image, images, text, texts), expected, 1e-11)
    assert_close(joint_logit_covariance(image, images, text, texts, SCALE), SCALE**2 * expected, 1e-11)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_symmetric_and_positive_semi_definite(structure: Any) -> None:
    image, text = towers(structure)
    joint = joint_logit_covariance(image, *(inputs()[0], text, inputs()[1])).reshape(N * C, N * C)
    assert_close(joint, joint.T, 1e-13)
    assert float(torch.linalg.eigvalsh(joint)[0]) >= -1e-12 * float(joint.norm())


@pytest.mark.parametrize("structure", STRUCTURES)
def test_its_diagonal_is_the_variance_of_prob_cosine(structure: Any) -> None:
    image, text = towers(structure)
    images, texts = inputs()
    x, y = image.embed(images), text.embed(texts)
    joint = joint_logit_covariance(image, images, text, texts).reshape(N * C, N * C)
    expected = prob_cosine(x, y).variance * x.expected_norm.square()[:, None] * y.expected_norm.square()
    assert_close(joint.diagonal().reshape(N, C), expected, 1e-11)


def test_damped_has_the_closed_form_of_the_method() -> None:
    """Kg (H R_g H^T) + Kt ((G R_t G^T) + Kg <R_g, R_t>), with inverses taken densely."""
    image, text = towers("damped", bias=False)
    images, texts = inputs()
    G, H = image.projection.embed(images), text.projection.embed(texts)

    def inverses(posterior: Posterior) -> list[torch.Tensor]:
        return [
            torch.linalg.inv(posterior.tau**0.5 * M + posterior.lam**0.5 * torch.eye(len(M)).double())
            for M in (posterior.factors.A, posterior.factors.B)
        ]

    (Ai, Rg), (At, Rt) = inverses(image), inverses(text)
    Kg, Kt = images.activations @ Ai @ images.activations.T, texts.activations @ At @ texts.activations.T
    expected = torch.einsum("nm,ij->nimj", Kg, H @ Rg @ H.T)
    expected += torch.einsum("ij,nm->nimj", Kt, G @ Rt @ G.T + Kg * (Rg * Rt).sum())
    assert_close(joint_logit_covariance(image, images, text, texts), expected, 1e-12)


def test_uses_the_full_covariance_whatever_embeddings_use() -> None:
    images, texts = inputs()
    full, diagonal = towers("damped", "full"), towers("damped", "diagonal")
    expected = joint_logit_covariance(full[0], images, full[1], texts)
    assert torch.equal(joint_logit_covariance(diagonal[0], images, diagonal[1], texts), expected)
