"""Gaussian embeddings: covariances written out, indexing, and what is stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesvlm.core.embeddings import GaussianEmbeddings, ItemCovariance, Shape, SharedCovariance
from bayesvlm.core.errors import BayesVLMError

from .references import assert_close, normal

d = 4
BASES: dict[str, Tensor | None] = {
    "identity": None,
    "one": torch.linalg.qr(normal(d, d, seed=0)).Q,
    "two": torch.linalg.qr(normal(d, d, seed=1)).Q,
}


def positive(*shape: int, seed: int) -> Tensor:
    return normal(*shape, seed=seed).abs() + 0.1


def matrix(spectrum: Tensor, basis: Tensor | None) -> Tensor:
    """Q diag(r) Q^T."""
    return torch.diag(spectrum) if basis is None else basis @ torch.diag(spectrum) @ basis.T


def shared(rows: int = 5, basis: str = "one", seed: int = 10) -> GaussianEmbeddings:
    """Embeddings with one shape."""
    shape = Shape(positive(d, seed=seed), BASES[basis])
    return GaussianEmbeddings(normal(rows, d, seed=seed + 1), SharedCovariance(positive(rows, seed=seed + 2), shape))


@pytest.mark.parametrize("left", BASES)
@pytest.mark.parametrize("right", BASES)
def test_inner_products_of_shapes_and_items(left: str, right: str) -> None:
    one, two = Shape(positive(d, seed=2), BASES[left]), Shape(positive(d, seed=3), BASES[right])
    expected = (matrix(one.spectrum, one.basis) @ matrix(two.spectrum, two.basis)).trace()
    assert_close(one.inner(two), expected, 1e-13)
    items = ItemCovariance(positive(3, d, seed=4), BASES[left]), ItemCovariance(positive(2, d, seed=5), BASES[right])
    table = torch.stack(
        [
            torch.stack([(matrix(v, BASES[left]) @ matrix(w, BASES[right])).trace() for w in items[1].variance])
            for v in items[0].variance
        ]
    )
    assert_close(items[0].inner(items[1]), table, 1e-13)


@pytest.mark.parametrize("basis", BASES)
def test_quadratic_forms_and_traces(basis: str) -> None:
    shape = Shape(positive(d, seed=6), BASES[basis])
    vectors = normal(3, d, seed=7)
    R = matrix(shape.spectrum, shape.basis)
    assert_close(shape.quadratic(vectors), torch.stack([v @ R @ v for v in vectors]), 1e-13)
    assert_close(shape.trace, R.trace(), 1e-13)
    item = ItemCovariance(positive(2, d, seed=8), BASES[basis])
    table = torch.stack([torch.stack([v @ matrix(s, BASES[basis]) @ v for v in vectors]) for s in item.variance])
    assert_close(item.quadratic(vectors), table, 1e-13)
    assert_close(item.trace(), item.variance.sum(dim=1), 1e-13)


def test_shared_covariance_written_out() -> None:
    embeddings = shared()
    assert isinstance(embeddings.covariance, SharedCovariance)
    item = embeddings.covariance.per_item()
    for scale, variance in zip(embeddings.covariance.scale, item.variance, strict=True):
        shape = embeddings.covariance.shape
        assert_close(matrix(variance, item.basis), scale * matrix(shape.spectrum, shape.basis), 1e-13)
    assert_close(item.trace(), embeddings.covariance.trace(), 1e-13)
    assert item.per_item() is item


def test_expected_norm_is_the_root_mean_square_length() -> None:
    embeddings = shared()
    expected = (embeddings.mean.norm(dim=1) ** 2 + embeddings.covariance.trace()).sqrt()
    assert_close(embeddings.expected_norm, expected, 1e-14)


def test_stored_scalars_are_used_for_the_very_same_shape_only() -> None:
    embeddings = shared()
    shape = Shape(positive(d, seed=20), BASES["two"])
    stored = embeddings.against(shape)
    assert_close(stored.quadratic(shape), shape.quadratic(embeddings.mean), 1e-14)
    fake = GaussianEmbeddings(embeddings.mean, embeddings.covariance, (shape, torch.full((5,), 7.0).double()))
    assert torch.equal(fake.quadratic(shape), torch.full((5,), 7.0).double())
    twin = Shape(shape.spectrum.clone(), shape.basis)  # equal, but another posterior's
    assert_close(fake.quadratic(twin), shape.quadratic(embeddings.mean), 1e-14)
    other = Shape(positive(d, seed=21), None)
    assert_close(fake.quadratic(other), other.quadratic(embeddings.mean), 1e-14)
    assert_close(fake.against(other).quadratic(other), other.quadratic(embeddings.mean), 1e-14)
    assert embeddings.stored is None  # `against` makes a new one


@pytest.mark.parametrize("kind", ["shared", "item"])
@pytest.mark.parametrize(
    ("index", "rows"),
    [
        (0, [0]),
        (-1, [4]),
        (-2, [3]),
        (slice(1, 4), [1, 2, 3]),
        ([3, 0], [3, 0]),
        ([], []),
        (torch.tensor([4, 4]), [4, 4]),
        (torch.tensor([True, False, True, False, False]), [0, 2]),
        (np.array([2]), [2]),
        (torch.tensor(2), [2]),
        (np.int64(2), [2]),
    ],
    ids=repr,
)
def test_indexing(kind: str, index: Any, rows: list[int]) -> None:
    base = shared()
    if kind == "item":
        base = GaussianEmbeddings(base.mean, base.covariance.per_item())
    base = base.against(Shape(positive(d, seed=22)))
    chosen = base[index]
    place = torch.tensor(rows, dtype=torch.long)
    assert torch.equal(chosen.mean, base.mean[place])
    assert len(chosen) == len(rows)
    assert torch.equal(chosen.covariance.per_item().variance, base.covariance.per_item().variance[place])
    assert chosen.stored is not None
    assert base.stored is not None
    assert torch.equal(chosen.stored[1], base.stored[1][place])
    assert chosen.stored[0] is base.stored[0]


@pytest.mark.parametrize("index", [5, -6, 100])
def test_a_row_that_is_not_there_is_an_error(index: int) -> None:
    """Also what ends a `for` loop over embeddings."""
    with pytest.raises(IndexError):
        shared()[index]


def test_from_variances() -> None:
    mean, variance = normal(3, d, seed=30), positive(3, d, seed=31)
    embeddings = GaussianEmbeddings.from_variances(mean, variance)
    assert isinstance(embeddings.covariance, ItemCovariance)
    assert torch.equal(embeddings.covariance.variance, variance)
    assert embeddings.covariance.basis is None
    with pytest.raises(BayesVLMError, match=r"\[3, 4\] and variance \[2, 4\]"):
        GaussianEmbeddings.from_variances(mean, variance[:2])
    with pytest.raises(BayesVLMError, match="same"):
        GaussianEmbeddings.from_variances(mean[0], variance[0])
    for bad in (-1.0, float("nan"), float("inf")):
        broken = variance.clone()
        broken[1, 2] = bad
        with pytest.raises(BayesVLMError, match="negative or infinite numbers or NaN"):
            GaussianEmbeddings.from_variances(mean, broken)
    assert len(GaussianEmbeddings.from_variances(mean, torch.zeros_like(mean))) == 3
