"""Which pairs reach a similarity, and stars of them, against brute force."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from bayesvlm.core import duplicates
from bayesvlm.core.duplicates import Neighbours, Reach, stars
from bayesvlm.core.embeddings import Shape
from bayesvlm.core.linearised import Directed, same_tower_cosines

from .references import generator, normal

d, p = 8, 12


def clusters(count: int, spread: float, seed: int = 0) -> Directed:
    """Items around a few directions, so that many pairs lie near any similarity."""
    phi = normal(count // 8, p, seed=seed).repeat_interleave(8, dim=0)
    scale = torch.rand(len(phi), 1, generator=generator(seed + 1), dtype=torch.float64)
    phi = phi + spread * scale * normal(len(phi), p, seed=seed + 2)
    W = normal(d, p, seed=seed + 3)
    return Directed(phi @ W.T, 0.3 * phi)


SHAPE = Shape(torch.rand(d, generator=generator(9), dtype=torch.float64), torch.linalg.qr(normal(d, d, seed=8)).Q)


def brute_force(items: Directed, reach: Reach) -> Tensor:  # [N, N]
    moments = same_tower_cosines(items, items, SHAPE)
    return moments.mean + reach.half_width * moments.variance.sqrt() >= reach.similarity


@pytest.mark.parametrize("half_width", [1.96, 0.0, -1.96])
@pytest.mark.parametrize("sparse", [0, 64, 10**9], ids=["one by one", "as they come", "in blocks"])
def test_pairs_that_reach_a_similarity(monkeypatch: pytest.MonkeyPatch, half_width: float, sparse: int) -> None:
    monkeypatch.setattr(duplicates, "_SPARSE", sparse)
    monkeypatch.setattr(duplicates, "_TILE", 700)
    monkeypatch.setattr(duplicates, "_GATHERED", 10 * d)
    items, reach = clusters(160, 0.8), Reach(0.9, half_width)
    expected = brute_force(items, reach)
    found = torch.zeros(160, 160, dtype=torch.bool)
    for rows, columns in Neighbours.of_items(items, SHAPE, reach).of(torch.arange(160), torch.arange(160)):
        assert not found[rows, columns].any(), "a pair is found once"
        found[rows, columns] = True
    assert 200 < int(expected.sum()) < 160**2 / 2
    assert torch.equal(found, expected)


@pytest.mark.parametrize("similarity", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("half_width", [0.7, 1.96, 4.0])
def test_no_pair_below_the_floor_reaches_it(similarity: float, half_width: float) -> None:
    items, reach = clusters(400, 1.5), Reach(similarity, half_width)
    moments = same_tower_cosines(items, items, SHAPE)
    length = items.mean.norm(dim=1)
    spread = SHAPE.spectrum.max().sqrt() * items.white.norm(dim=1) / length
    floor = torch.tensor([[reach.floor(float(a + b)) for a in spread[::8]] for b in spread[::8]])
    mean, std = moments.mean[::8, ::8], moments.variance.sqrt()[::8, ::8]
    below = mean < floor - 1e-5
    assert not (below & (mean + half_width * std >= similarity)).any()
    assert below.any(), "the floor says something"
    assert reach.floor(0.0) == pytest.approx(similarity, abs=1e-5)


def test_the_floor_is_that_of_the_bound() -> None:
    """At the floor the bound reaches the similarity; a little below it does not, anywhere."""
    reach = Reach(0.95, 1.96)
    floor = reach.floor(0.2)
    grid = torch.linspace(-1, 1, 20001, dtype=torch.float64)
    bound = ((1 - grid) * (2 * (1 + grid)).sqrt() + (1 + grid) * (2 * (1 - grid)).sqrt()) / 2
    reaches = grid + 1.96 * 0.2 * bound >= 0.95
    assert float(grid[reaches].min()) == pytest.approx(floor, abs=2e-4)
    assert reaches[grid > floor + 2e-4].all(), "one interval, from the floor to 1"


def greedy(reaches: Tensor) -> list[int]:
    """The rule in words: the first that is in no group takes every later one that is in none and that it reaches."""
    keeper = [-1] * len(reaches)
    for i in range(len(reaches)):
        if keeper[i] < 0:
            for j in range(i, len(reaches)):
                if keeper[j] < 0 and (reaches[i, j] or i == j):
                    keeper[j] = i
    return keeper


@pytest.mark.parametrize("rows", [1, 7, 1000])
@pytest.mark.parametrize("half_width", [1.96, -1.96])
def test_stars_are_the_greedy_rule(monkeypatch: pytest.MonkeyPatch, rows: int, half_width: float) -> None:
    monkeypatch.setattr(duplicates, "_ROWS", rows)
    items, reach = clusters(160, 0.8), Reach(0.9, half_width)
    order = torch.randperm(160, generator=generator(4))
    items = Directed(items.mean[order], items.white[order])
    told: list[int] = []
    found = stars(Neighbours.of_items(items, SHAPE, reach), told.append)
    assert found.tolist() == greedy(brute_force(items, reach))
    assert sum(told) == 160
    assert 20 < len(set(found.tolist())) < 160


def test_a_chain_is_no_group() -> None:
    """Each a near-copy of the next, the ends far apart: what is dropped is near what is kept."""
    angles = torch.arange(0, 1.0, 0.1, dtype=torch.float64)
    items = Directed(torch.stack([angles.cos(), angles.sin()], dim=1), torch.zeros(10, 3).double())
    reach = Reach(float(torch.tensor(0.15).cos()), 0.0)
    keeper = stars(Neighbours.of_items(items, Shape(torch.ones(2).double()), reach))
    assert keeper.tolist() == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_copies_are_one_group_whatever_the_rounding(dtype: Any) -> None:
    items = clusters(80, 0.0)
    noise = 1e-7 * normal(80, d, seed=5)
    items = Directed((items.mean * (1 + noise)).to(dtype), items.white.to(torch.float16))
    for half_width in (1.96, 0.0, -1.96):
        keeper = stars(Neighbours.of_items(items, SHAPE.to(dtype), Reach(0.999, half_width)))
        assert keeper.tolist() == [place // 8 * 8 for place in range(80)]


def test_nothing_and_one() -> None:
    none = Directed(torch.zeros(0, d).double(), torch.zeros(0, p).double())
    assert stars(Neighbours.of_items(none, SHAPE, Reach(0.9, 1.96))).tolist() == []
    one = clusters(8, 0.1)
    one = Directed(one.mean[:1], one.white[:1])
    assert stars(Neighbours.of_items(one, SHAPE, Reach(0.9, 1.96))).tolist() == [0]
