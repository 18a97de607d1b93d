"""The posterior in its eigenbasis against the dense Kronecker covariance, inverted as one matrix."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bayesvlm.core.embeddings import GaussianEmbeddings, ItemCovariance, SharedCovariance
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.evidence import optimal_prior_precision
from bayesvlm.core.factors import KroneckerFactors, symmetric
from bayesvlm.core.features import Features
from bayesvlm.core.posterior import Posterior
from bayesvlm.core.projection import Projection

from .references import assert_close, dense_covariance, embedding_covariance, generator, normal, positive_definite

STRUCTURES: list[Any] = ["damped", "exact"]
COVARIANCES: list[Any] = ["diagonal", "full"]
d, p, TAU, LAM = 3, 4, 2.5, 0.6


def posterior(
    structure: Any = "damped", covariance: Any = "full", *, bias: bool = False, dtype: torch.dtype = torch.float64,
    lam: float = LAM, rank: int | None = None, tau: float = TAU,
) -> Posterior:  # fmt: skip
    """A small posterior over W [3, 4], the last column a bias or not."""
    weight = normal(d, p, seed=0).to(dtype)
    projection = Projection(weight[:, :-1], weight[:, -1]) if bias else Projection(weight)
    factors = KroneckerFactors(positive_definite(p, seed=1, rank=rank) * 3, positive_definite(d, seed=2) * 3, 9)
    return Posterior(projection, factors, tau, lam, structure, covariance)


def dense(given: Posterior) -> Tensor:  # [d p, d p]
    """Covariance of the weights, row by row, from the factors' definition."""
    A, B = given.factors.A_sum / math.sqrt(given.factors.n), given.factors.B_sum / math.sqrt(given.factors.n)
    return dense_covariance(A, B, given.tau, given.lam, given.structure)


def covariances(embeddings: GaussianEmbeddings) -> Tensor:  # [N, d, d]
    """The covariance matrices, written out."""
    item = embeddings.covariance.per_item()
    basis = torch.eye(embeddings.mean.shape[1]).to(item.variance) if item.basis is None else item.basis
    return torch.einsum("ak,nk,bk->nab", basis, item.variance, basis)


# -------------------------------------------------------------------------------------------- covariance of embeddings


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("covariance", COVARIANCES)
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("rank", [None, 2], ids=["regular", "singular"])
def test_embedding_covariance_equals_the_dense_one(structure: Any, covariance: Any, bias: bool, rank: Any) -> None:
    given = posterior(structure, covariance, bias=bias, rank=rank)
    features = Features(normal(5, p - bias, seed=3), normal(5, d, seed=4))
    phi = torch.cat([features.activations, torch.ones(5, 1).double()], dim=1) if bias else features.activations
    expected = embedding_covariance(dense(given), phi, d).diagonal(dim1=0, dim2=1).permute(2, 0, 1)
    if covariance == "diagonal":
        expected = torch.diag_embed(expected.diagonal(dim1=1, dim2=2))
    embeddings = given.embed(features)
    assert_close(covariances(embeddings), expected, 1e-10)
    assert_close(embeddings.covariance.trace(), expected.diagonal(dim1=1, dim2=2).sum(dim=1), 1e-10)
    assert features.residual is not None
    assert_close(embeddings.mean, phi @ given.projection.augmented.T + features.residual, 1e-14, "mean")


def test_kinds_of_covariance() -> None:
    features = Features(normal(5, p, seed=3))
    assert isinstance(posterior("damped").embed(features).covariance, SharedCovariance)
    assert isinstance(posterior("exact").embed(features).covariance, ItemCovariance)


def test_damped_covariance_is_one_number_times_one_shape() -> None:
    given = posterior("damped", "full")
    A, B = given.factors.A, given.factors.B
    At = math.sqrt(TAU) * A + math.sqrt(LAM) * torch.eye(p).double()
    Bt = math.sqrt(TAU) * B + math.sqrt(LAM) * torch.eye(d).double()
    phi = normal(5, p, seed=3)
    embedded = given.embed(Features(phi)).covariance
    assert isinstance(embedded, SharedCovariance)
    assert_close(embedded.scale, (phi @ torch.linalg.inv(At) * phi).sum(dim=1), 1e-12)
    basis = given.shape.basis
    assert basis is not None
    assert_close((basis * given.shape.spectrum) @ basis.T, torch.linalg.inv(Bt), 1e-12)
    diagonal = posterior("damped", "diagonal").shape
    assert diagonal.basis is None
    assert_close(diagonal.spectrum, torch.linalg.inv(Bt).diagonal(), 1e-12)


def test_the_shape_is_one_object_for_all_inputs() -> None:
    """Stored scalars are found by its identity."""
    given = posterior()
    first, second = (given.embed(Features(normal(2, p, seed=seed))).covariance for seed in (5, 6))
    assert isinstance(first, SharedCovariance)
    assert isinstance(second, SharedCovariance)
    assert first.shape is second.shape is given.shape


@pytest.mark.parametrize("structure", STRUCTURES)
def test_variances_are_the_eigenvalues_of_the_dense_covariance(structure: Any) -> None:
    given = posterior(structure)
    expected = torch.linalg.eigvalsh(dense(given))
    assert_close(given.variances.flatten().sort().values, expected, 1e-11)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("covariance", COVARIANCES)
def test_float32_embeddings_are_close_to_float64(structure: Any, covariance: Any) -> None:
    phi = normal(20, p, seed=7)
    wide = posterior(structure, covariance).embed(Features(phi))
    narrow = posterior(structure, covariance, dtype=torch.float32).embed(Features(phi))
    assert narrow.mean.dtype == torch.float32
    assert_close(covariances(narrow), covariances(wide), 1e-5)


def test_uncertainty_falls_with_lam_and_tau() -> None:
    features = Features(normal(5, p, seed=8))
    for structure in STRUCTURES:
        base = posterior(structure).embed(features).covariance.trace()
        assert bool((posterior(structure, lam=10.0).embed(features).covariance.trace() < base).all())
        assert bool((posterior(structure, tau=25.0).embed(features).covariance.trace() < base).all())


# --------------------------------------------------------------------------------------------------- parameter samples


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_samples_have_the_dense_covariance(structure: Any, bias: bool) -> None:
    """20,000 draws of 12 parameters: the expected relative error of a sample covariance is about 2.5 %."""
    given = posterior(structure, bias=bias)
    draws = torch.stack([drawn.augmented.flatten() for drawn in given.sample(20_000, generator(0))])
    assert_close(draws.mean(dim=0), given.projection.augmented.flatten(), 0.02, "mean")
    expected = dense(given)
    assert_close(torch.cov(draws.T), expected, 0.05, "covariance")
    other = dense(posterior("exact" if structure == "damped" else "damped", bias=bias))
    with pytest.raises(AssertionError):  # the tolerance tells the two structures apart
        assert_close(torch.cov(draws.T), other, 0.05)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_one_draw_is_shared_by_all_inputs(structure: Any) -> None:
    """Cov[g_n, g_m] across inputs, not only within one."""
    given = posterior(structure)
    phi = normal(3, p, seed=9)
    embedded = torch.stack([drawn.embed(Features(phi)).flatten() for drawn in given.sample(20_000, generator(1))])
    expected = embedding_covariance(dense(given), phi, d).permute(0, 2, 1, 3).reshape(3 * d, 3 * d)
    assert_close(torch.cov(embedded.T), expected, 0.05)
    across = expected.reshape(3, d, 3, d)[0, :, 1]
    assert float(across.norm()) > 0.05 * float(expected.norm())  # there is something to get wrong


def test_samples_repeat_with_the_generator_and_keep_the_projections_kind() -> None:
    given = posterior(bias=True, dtype=torch.float32)
    once, twice = (list(given.sample(3, generator(2))) for _ in range(2))
    for first, second in zip(once, twice, strict=True):
        assert torch.equal(first.augmented, second.augmented)
        assert first.bias is not None
        assert first.weight.dtype == torch.float32
        assert first.weight.shape == given.projection.weight.shape
    assert not torch.equal(once[0].weight, once[1].weight)
    assert not torch.equal(once[0].weight, next(given.sample(1, generator(3))).weight)


# -------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("name", ["tau", "lam"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_tau_and_lam_must_be_positive(name: str, value: float) -> None:
    with pytest.raises(BayesVLMError, match=f"{name}="):
        posterior(**{name: value})  # type: ignore[arg-type]


def test_names_and_sizes_are_checked() -> None:
    with pytest.raises(BayesVLMError, match="structure='dense'"):
        posterior("dense")
    with pytest.raises(BayesVLMError, match="covariance='low-rank'"):
        posterior("damped", "low-rank")
    with pytest.raises(BayesVLMError, match=r"\(4, 3\), this one has \(5, 3\)"):
        Posterior(Projection(normal(3, 4, seed=0), normal(3, seed=1)), posterior().factors, 1.0, 1.0)
    with pytest.raises(BayesVLMError, match="no covariance shape that all inputs share"):
        _ = posterior("exact").shape


def test_indefinite_factors_are_refused_when_used() -> None:
    factors = KroneckerFactors(torch.diag(torch.tensor([1.0, 1.0, 1.0, -1.0])), torch.eye(3), 1)
    with pytest.raises(BayesVLMError, match="Factor A is indefinite"):
        Posterior(posterior().projection, factors, 1.0, 1.0).embed(Features(normal(2, p, seed=0)))


# --------------------------------------------------------------------------------------------------- published factors

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = Path(
    os.environ.get("BAYESVLM_PUBLISHED_FACTORS", ROOT.parent / "shared/factors/CLIP-ViT-B-32-laion2B-s34B-b79K")
)
needs_published = pytest.mark.skipif(
    not (PUBLISHED / "A_img_analytic.pt").exists(), reason=f"no published factors in {PUBLISHED}"
)


def published(name: str) -> Tensor:
    """One of the four factors the authors publish, as stored."""
    return torch.load(PUBLISHED / f"{name}_analytic.pt", map_location="cpu", weights_only=True)


@needs_published
@pytest.mark.parametrize(
    ("name", "trace"), [("A_img", 564881.68), ("A_txt", 335626.20), ("B_img", 6128.294), ("B_txt", 9389.460)]
)
def test_published_traces(name: str, trace: float) -> None:
    assert float(published(name).double().trace()) == pytest.approx(trace, rel=1e-6)


@needs_published
def test_published_diagonal_overstates_the_variance_along_the_top_direction() -> None:
    """14.6 times at tau=1, lam=300 (7.1 times at the published lam of 1709; it grows as lam / tau falls)."""
    B = symmetric(published("B_img"), "B")
    top = torch.linalg.eigh(B).eigenvectors[:, -1:].T
    ratio = {}
    for lam in (300.0, 1708.9451904296875):
        factors = KroneckerFactors(torch.eye(2), B, 1)
        made = [
            Posterior(Projection(torch.ones(512, 2).double()), factors, 1.0, lam, "damped", kind).shape.quadratic(top)
            for kind in COVARIANCES
        ]
        ratio[lam] = float(made[0] / made[1])
    print("diagonal over full along B_img's top eigenvector:", ratio)
    assert ratio[300.0] == pytest.approx(14.6, abs=0.05)
    assert ratio[1708.9451904296875] == pytest.approx(7.1, abs=0.05)


@needs_published
@pytest.mark.parametrize(("tower", "lam", "expected"), [("img", 1708.945, 3.61), ("txt", 1255.334, 3.79)])
def test_published_exact_and_damped_traces_differ(tower: str, lam: float, expected: float) -> None:
    """About fourfold at tau=1 and the published lam: tr exact / tr damped."""
    A, B = symmetric(published(f"A_{tower}"), "A"), symmetric(published(f"B_{tower}"), "B")
    factors = KroneckerFactors(A, B, 1)
    projection = Projection(torch.ones(len(B), len(A)).double())
    traces = {kind: float(Posterior(projection, factors, 1.0, lam, kind).variances.sum()) for kind in STRUCTURES}
    ratio = traces["exact"] / traces["damped"]
    print(f"{tower}: exact / damped trace {ratio:.3f} at tau=1, lam={lam}")
    assert ratio == pytest.approx(expected, abs=0.01)


@needs_published
def test_published_factors_have_a_prior_precision() -> None:
    """Float32 noise (eigenvalues of B down to -5e-4) does not keep the evidence from its maximum."""
    for structure in STRUCTURES:
        lam = optimal_prior_precision(published("A_img"), published("B_img"), 200.0, 1.0, structure)
        assert 1e-3 < lam < 1e6
