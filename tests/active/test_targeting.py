"""Distinct nearest neighbours against a search by hand, under both distances."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from core.references import assert_close, normal
from scipy.linalg import sqrtm

from bayesvlm.active import targeting
from bayesvlm.active.targeting import nearest_distinct, nearness
from bayesvlm.core.cosine import prob_cosine
from bayesvlm.core.embeddings import GaussianEmbeddings, ItemCovariance, Shape, SharedCovariance
from bayesvlm.core.errors import BayesVLMError


def gaussians(count: int, seed: int, kind: str = "diagonal") -> GaussianEmbeddings:
    mean, scale = normal(count, 4, seed=seed), normal(count, 4, seed=seed + 100).square() + 0.1
    if kind == "shared":
        return GaussianEmbeddings(mean, SharedCovariance(scale[:, 0], Shape(torch.tensor([1.0, 2, 3, 4]).double())))
    if kind == "turned":
        return GaussianEmbeddings(mean, ItemCovariance(scale, torch.linalg.qr(normal(4, 4, seed=7)).Q))
    return GaussianEmbeddings.from_variances(mean, scale)


def by_hand(near: torch.Tensor, order: list[int], count: int) -> list[int]:
    chosen: list[int] = []
    while len(chosen) < count:
        for row in order:
            if len(chosen) < count:
                ranked = sorted(range(near.shape[1]), key=lambda item: -float(near[row, item]))
                chosen.append(next(item for item in ranked if item not in chosen))
    return chosen


@pytest.mark.parametrize("metric", ["cosine", "wasserstein"])
@pytest.mark.parametrize("kind", ["diagonal", "shared", "turned"])
@pytest.mark.parametrize("chunk", [1, 3, 256])
@pytest.mark.parametrize("count", [1, 5, 6, 17, 30])
def test_each_takes_the_nearest_that_is_left(
    monkeypatch: pytest.MonkeyPatch, metric: str, kind: str, chunk: int, count: int
) -> None:
    monkeypatch.setattr(targeting, "CHUNK", chunk)
    pool, target, order = gaussians(30, 0, kind), gaussians(6, 1, kind), torch.tensor([4, 0, 5, 2, 1, 3])
    found = nearest_distinct(pool, target, order, count, metric)  # type: ignore[arg-type]
    near = nearness(target, pool, metric)  # type: ignore[arg-type]
    assert found.tolist() == by_hand(near, order.tolist(), count)
    assert len(set(found.tolist())) == count


def test_the_wasserstein_distance_is_that_of_the_diagonals() -> None:
    pool, target = gaussians(5, 0, "turned"), gaussians(3, 1)
    near = nearness(target, pool, "wasserstein")
    basis = pool.covariance.per_item().basis
    assert basis is not None
    for row in range(3):
        for item in range(5):
            S1 = np.diag(target.covariance.per_item().variance[row])
            full = basis @ torch.diag(pool.covariance.per_item().variance[item]) @ basis.T
            S2 = np.diag(full.diagonal())
            root = sqrtm(S1)
            trace = np.trace(S1 + S2 - 2 * sqrtm(root @ S2 @ root)).real
            gap = float((target.mean[row] - pool.mean[item]).square().sum())
            assert -float(near[row, item]) == pytest.approx(gap + trace, rel=1e-9)


def test_the_cosine_is_the_expected_one() -> None:
    pool, target = gaussians(5, 0), gaussians(3, 1)
    assert_close(nearness(target, pool, "cosine"), prob_cosine(target, pool).mean, 0)


def test_copies_in_the_pool_are_different_items() -> None:
    one = gaussians(1, 0)
    pool = GaussianEmbeddings.from_variances(one.mean.repeat(4, 1), one.covariance.per_item().variance.repeat(4, 1))
    assert sorted(nearest_distinct(pool, one, torch.tensor([0]), 4).tolist()) == [0, 1, 2, 3]


def test_what_is_refused() -> None:
    pool, target = gaussians(5, 0), gaussians(3, 1)
    with pytest.raises(BayesVLMError, match="6 different items were asked of a pool of 5"):
        nearest_distinct(pool, target, torch.arange(3), 6)
    with pytest.raises(BayesVLMError, match="no target to choose for"):
        nearest_distinct(pool, target, torch.arange(0), 2)
    with pytest.raises(BayesVLMError, match="metric='euclid' is not known; use 'cosine' or 'wasserstein'"):
        nearest_distinct(pool, target, torch.arange(3), 2, "euclid")  # type: ignore[arg-type]
