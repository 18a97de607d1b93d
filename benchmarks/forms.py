"""The curvature's forms, chosen by hand for a comparison: plain passes on a GPU, and tf32 where there is none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from bayesvlm.core import contrast, passes
from bayesvlm.core.contrast import ContrastBatch, Precision
from bayesvlm.core.passes import Anchors, PlainPasses, Tile


def plain() -> Any:
    """Within this context the passes are not fused, wherever they run."""
    return mock.patch.object(contrast, "passes_for", PlainPasses)


@contextmanager
def emulated_tf32(cut: bool = False) -> Iterator[None]:
    """Within this context precision="tf32" runs on a CPU: operands of ten bits, products in float32.

    Args:
        cut: as matrix units treat operands that nobody rounded for them; else to nearest, as the library does.
    """

    def ten_bits(values: Tensor) -> Tensor:
        bits = values.view(torch.int32) + (0 if cut else 1 << 12)
        return bits.bitwise_and_(-(1 << 13)).view(torch.float32)

    class Rounded(PlainPasses):
        def softmax(
            self, tile: Tile, columns: slice, weight: Tensor, anchors: Anchors | None
        ) -> tuple[Anchors, Tensor]:
            anchors, operand = super().softmax(tile, columns, weight, anchors)
            return anchors, ten_bits(operand)

    with (
        mock.patch.object(contrast, "passes_for", Rounded),
        mock.patch.object(contrast, "round_to_tf32", ten_bits),
        mock.patch.object(passes, "round_to_tf32", ten_bits),
        mock.patch.object(contrast, "_resolve_precision", lambda precision, *_: precision),
    ):
        yield


def products_alone(
    source: Tensor, target: Tensor, precision: Precision, ways: int | None = None, halves: bool = True
) -> Any:
    """A call that does only what a curvature's three products do, in the same tiles, on noise.

    Args:
        source, target, precision: as of `infonce_curvature`.
        halves: tf32's ten bits are read from half precision, as they are at the scale of CLIP; else from float32.
        ways: parts into which the second product's long sum over K is cut by hand, to keep more of a GPU busy than its
            [2n, d] result has blocks; None leaves that to the library. K must be a multiple; not for bf16.
    """
    batch = ContrastBatch(source, target, precision, None, merged=True, halves=halves)
    batch._workspace.view(batch.passes.operand).normal_()
    rows = [ghat for ghat, _ in batch.row_tiles()]

    def run() -> None:
        with batch.products():
            for ghat in rows:
                for _, hhat, tile in batch.column_tiles(ghat):
                    operand = tile.operand.flatten(0, 1)
                    if ways is None:
                        batch.product(operand, hhat)
                    else:
                        parts = operand.unflatten(1, (ways, -1)).transpose(0, 1)
                        torch.bmm(parts, hhat.unflatten(0, (ways, -1))).sum(dim=0)

    return run
