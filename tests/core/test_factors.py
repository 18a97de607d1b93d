"""Kronecker factors: sums that add, and refuse what is no curvature."""

from __future__ import annotations

import math

import pytest
import torch

from bayesvlm.core.curvature import infonce_curvature
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.factors import ROUNDING, KroneckerFactors, spectrum, symmetric

from .references import assert_close, normal, positive_definite


def shard(phi: torch.Tensor, g: torch.Tensor, h: torch.Tensor) -> KroneckerFactors:
    """Factors of one contrast batch."""
    return KroneckerFactors(phi.T @ phi, infonce_curvature(g, h, 10.0), len(phi))


def test_A_and_B_carry_one_over_root_n() -> None:
    A_sum, B_sum = positive_definite(4, seed=0), positive_definite(3, seed=1)
    factors = KroneckerFactors(A_sum, B_sum, 49)
    assert_close(factors.A, A_sum / 7, 1e-15)
    assert_close(factors.B, B_sum / 7, 1e-15)
    assert factors.A.dtype == factors.B.dtype == torch.float64


def test_merging_shards_equals_the_whole() -> None:
    """Sums over the same contrast batches: what three machines found adds up to what one would have."""
    phi, g, h = normal(30, 5, seed=2), normal(30, 4, seed=3), normal(12, 4, seed=4)
    whole = shard(phi, g, h)
    merged = shard(phi[:7], g[:7], h).merge(shard(phi[7:20], g[7:20], h), shard(phi[20:], g[20:], h))
    assert merged.n == whole.n == 30
    assert_close(merged.A_sum, whole.A_sum, 1e-14)
    assert_close(merged.B_sum, whole.B_sum, 1e-12)
    assert_close(merged.A, whole.A, 1e-14)
    assert_close(merged.B, whole.B, 1e-12)


def test_merge_is_a_plain_sum_and_leaves_its_parts_alone() -> None:
    one = KroneckerFactors(positive_definite(4, seed=5), positive_definite(3, seed=6), 10)
    two = KroneckerFactors(positive_definite(4, seed=7), positive_definite(3, seed=8), 5)
    before = one.A_sum.clone()
    merged = one.merge(two)
    assert torch.equal(merged.A_sum, one.A_sum + two.A_sum)
    assert torch.equal(merged.B_sum, one.B_sum + two.B_sum)
    assert torch.equal(one.A_sum, before)
    assert merged.n == 15
    assert_close(merged.A, (math.sqrt(10) * one.A + math.sqrt(5) * two.A) / math.sqrt(15), 1e-14)
    assert one.merge().n == 10


def test_merge_refuses_other_sizes() -> None:
    one = KroneckerFactors(torch.eye(4), torch.eye(3), 1)
    with pytest.raises(BayesVLMError, match=r"\(4, 2\), \(4, 3\)"):
        one.merge(KroneckerFactors(torch.eye(4), torch.eye(2), 1))


def test_spectra_rebuild_the_factors() -> None:
    factors = KroneckerFactors(positive_definite(6, seed=9, rank=4), positive_definite(3, seed=10), 4)
    for name in ("A", "B"):
        values, vectors = getattr(factors, f"{name}_spectrum")
        assert_close((vectors * values) @ vectors.T, getattr(factors, name), 1e-12, name)
        assert float(values.min()) >= 0
        assert bool((values.diff() >= 0).all())


def test_a_copy_is_kept_so_the_callers_tensor_stays_his() -> None:
    A = positive_definite(3, seed=11)
    factors = KroneckerFactors(A, torch.eye(2), 1)
    kept = factors.A_sum.clone()
    A.zero_()
    assert torch.equal(factors.A_sum, kept)


def test_rounding_is_forgiven() -> None:
    """Asymmetry and negative eigenvalues of the size float32 and tf32 products leave."""
    A = positive_definite(5, seed=12, rank=3)
    size = float(torch.linalg.eigvalsh(A)[-1])
    crooked = A.clone()
    crooked[0, 1] += 1e-5 * size
    kept = symmetric(crooked, "A")
    assert torch.equal(kept, kept.T)
    assert float(spectrum(A - 1e-4 * size * torch.eye(5), "A").values[0]) == 0.0


def test_a_matrix_that_is_no_curvature_is_refused() -> None:
    A = positive_definite(4, seed=13)
    largest = float(A.abs().max())
    crooked = A.clone()
    crooked[0, 1] += 2 * ROUNDING * largest
    with pytest.raises(BayesVLMError, match="Factor A is not symmetric"):
        KroneckerFactors(crooked, torch.eye(2), 1)
    with pytest.raises(BayesVLMError, match="Factor B is indefinite"):
        _ = KroneckerFactors(A, torch.diag(torch.tensor([1.0, -0.01])), 1).B_spectrum
    with pytest.raises(BayesVLMError, match="indefinite"):
        spectrum(-torch.eye(2, dtype=torch.float64), "A")
    for bad in (A[:, :3], A[0], A[:0, :0], A.long()):
        with pytest.raises(BayesVLMError, match="square floating-point"):
            KroneckerFactors(bad, torch.eye(2), 1)
    for value in (float("nan"), float("inf")):
        broken = A.clone()
        broken[1, 1] = value
        with pytest.raises(BayesVLMError, match="NaN or Inf"):
            KroneckerFactors(broken, torch.eye(2), 1)
    for n in (0, -3):
        with pytest.raises(BayesVLMError, match=f"n={n}"):
            KroneckerFactors(A, torch.eye(2), n)


def test_zero_is_a_valid_factor() -> None:
    assert torch.equal(spectrum(torch.zeros(3, 3, dtype=torch.float64), "A").values, torch.zeros(3).double())


def test_to_keeps_everything() -> None:
    factors = KroneckerFactors(positive_definite(4, seed=14), positive_definite(3, seed=15), 6)
    moved = factors.to("cpu")
    assert moved.n == 6
    assert torch.equal(moved.A_sum, factors.A_sum)
    assert torch.equal(moved.B_sum, factors.B_sum)
