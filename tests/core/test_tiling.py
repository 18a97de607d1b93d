"""Tiles: what they hold, and that everything made of them fits the memory they were cut for."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesvlm.core.contrast import DEFAULT_MEMORY, ContrastBatch
from bayesvlm.core.curvature import infonce_curvature
from bayesvlm.core.passes import round_to_tf32
from bayesvlm.core.tiling import ROW_ARRAYS, Tiling, pitch, tiling

from .references import normal

MIB = 2**20


def on_a_gpu(sources: int, targets: int, width: int) -> Tiling:
    memory = DEFAULT_MEMORY["cuda"]
    return tiling(sources, targets, width, itemsize=4, entry=9, memory=memory, least_rows=128, kept=True)


@pytest.mark.parametrize("width", [256, 512, 1024])
@pytest.mark.parametrize("count", [2048, 32_768, 131_072])
def test_on_a_gpu_every_contrast_of_the_benchmarks_holds_whole_rows(count: int, width: int) -> None:
    tiles = on_a_gpu(count, count, width)
    assert tiles.kept
    assert tiles.columns == count
    assert tiles.rows >= 128
    assert tiles.rows % 128 == 0
    assert count * width * 4 + tiles.rows * (count * 9 + ROW_ARRAYS * width * 4) <= DEFAULT_MEMORY["cuda"]


def test_beyond_that_logits_are_computed_twice() -> None:
    tiles = on_a_gpu(10**6, 10**6, 512)
    assert tiles.columns < 10**6
    assert tiles.rows >= 1024  # many: a product of few rows is slow


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.integers(1, 10**6), st.integers(1, 10**7), st.sampled_from([1, 64, 512, 4096]), st.integers(0, 2000),
    st.sampled_from([32, 128]), st.booleans(),
)  # fmt: skip
def test_tiles_fit(sources: int, targets: int, width: int, mib: int, least: int, kept: bool) -> None:
    memory = mib * MIB
    tiles = tiling(sources, targets, width, itemsize=4, entry=8, memory=memory, least_rows=least, kept=kept)
    assert 1 <= tiles.rows <= sources
    assert 1 <= tiles.columns <= targets
    assert kept or not tiles.kept
    taken = tiles.rows * (tiles.pitch * 8 + ROW_ARRAYS * width * 4)
    taken += targets * width * 4 if tiles.kept else tiles.columns * ROW_ARRAYS * width * 4
    smallest = pitch(1) * 8 + 2 * ROW_ARRAYS * width * 4  # of one row and one target: less than that nothing takes
    assert taken <= max(memory, smallest)


def test_rows_are_dealt_evenly() -> None:
    """No full tiles and a sliver: 1,000 rows of which 960 fit are two tiles of about 500."""
    left = 960 * (ROW_ARRAYS * 4 * 8 + 1024 * 8)
    tiles = tiling(1000, 1024, 8, itemsize=4, entry=8, memory=1024 * 8 * 4 + left, least_rows=32, kept=True)
    assert (tiles.rows, tiles.columns) == (512, 1024)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("columns", [15, 16, 17, 40])
def test_logits_and_operands_share_the_memory_of_a_tile(precision: str, columns: int) -> None:
    source, target = normal(7, 4, seed=0).float(), normal(columns, 4, seed=1).float()
    batch = ContrastBatch(source, target, precision, None, merged=False)  # type: ignore[arg-type]
    left = source / source.norm(dim=1, keepdim=True)
    ((span, hhat, tile),) = batch.column_tiles(left)
    assert span == slice(0, columns)
    assert tile.operand.shape == (2, 7, columns)
    assert tile.logit.stride(0) == tile.operand.stride(1) == pitch(columns)
    tile.operand.flatten(0, 1)[:] = 1.0
    assert tile.logit.sum() == 7 * columns, "in place"
    assert hhat.dtype == (torch.bfloat16 if precision == "bf16" else torch.float32)


def test_rounding_to_tf32() -> None:
    """To nearest at ten bits: numbers of ten bits stay, one half of the last is rounded away from zero."""
    last = 2.0**-10
    values = torch.tensor([0.0, 1.0, -1.0, 1 + last, 1 + 0.49 * last, 1 + 0.5 * last, -(1 + 1.51 * last), 3e38, 1e-30])
    found = round_to_tf32(values)
    assert found[:7].tolist() == [0.0, 1.0, -1.0, 1 + last, 1.0, 1 + last, -(1 + 2 * last)]
    assert torch.isfinite(found).all()
    noise = normal(10_000, seed=2).float()
    error = (round_to_tf32(noise) - noise) / noise
    assert float(error.abs().max()) <= last / 2
    assert abs(float(error.mean())) <= last / 100, "no bias, which cutting would have"


@pytest.mark.parametrize(("copies", "memory", "products"), [(False, None, 1), (True, None, 1), (True, 60_000, 2)])
def test_logits_are_computed_once_where_rows_fit(
    copies: bool, memory: int | None, products: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With copies among the targets too, whose anchors want a total of their own."""
    source, target = normal(40, 8, seed=3), normal(900, 8, seed=4)
    target = torch.cat([target, target[:50]]) if copies else target
    computed, make = [], ContrastBatch.column_tiles

    def counted(batch: ContrastBatch, left: torch.Tensor) -> object:
        for columns, hhat, tile in make(batch, left):
            computed.append(tile.logit.numel())
            yield columns, hhat, tile

    monkeypatch.setattr(ContrastBatch, "column_tiles", counted)
    infonce_curvature(source, target, 10.0, memory=memory)
    assert sum(computed) == products * 40 * 900
