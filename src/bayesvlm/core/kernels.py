r"""The element-wise passes of `bayesvlm.core.passes` as kernels of Triton.

An N x K tile at CLIP's sizes leaves every cache, so passes cost what they move. One kernel reads the logits and finds
each row's anchor and total; another reads them again and writes both operands of the second product, in the type that
product takes, while it adds up the columns: two reads and two writes beside the products, where the plain form takes
about ten. Two accumulators of [rows, 512] float32 do not fit a multiprocessor, which is why the products stay apart.

Half precision has the ten bits of tf32, and matrix units multiply it twice as fast, but its range is small. Shares that
are counted in a power of two of their row's total fit that range whatever the softmax is: the same rounding, then, at
half of the time and of the traffic.

Nothing is added up atomically: a block of rows and columns has a slot of its own in float64, and blocks that share one
run in different launches, so that a result can be had again to the bit.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesvlm.core.passes import Anchors, Tile

_LANES = 4096  # columns that a program of the first pass looks at together
_COLUMNS = 512  # of a block of the second pass
_ROWS = 64  # of the same block: one partial column sum for as many rows
_STEP = 2  # rows of it in registers at a time
_ANY = ["rows", "columns", "first_column", "slot_pitch"]  # one compilation for all of them


@triton.jit(do_not_specialize=_ANY)
def _anchor_kernel(
    logit_ptr,
    copies_ptr,
    anchor_logit_ptr,
    anchor_target_ptr,
    rest_ptr,
    columns,
    pitch,
    first_column,
    has_copies: tl.constexpr,
    lanes: tl.constexpr,
):
    """A row per program. Every lane keeps its own best target and what it saw besides; lanes meet at the end."""
    row = tl.program_id(0)
    start = logit_ptr + row.to(tl.int64) * pitch
    lane = tl.arange(0, lanes)
    best = tl.full([lanes], -3e38, tl.float32)
    best_copies = tl.zeros([lanes], tl.float32)  # log m of the best: never added to a logit, which would cost it digits
    where = tl.full([lanes], 2147483647, tl.int32)
    rest = tl.zeros([lanes], tl.float32)
    for first in range(0, columns, lanes):
        column = first + lane
        inside = column < columns  # reads go on to the pitch: a multiple of 16, which makes them 16 bytes wide
        value = tl.load(start + column, mask=column < pitch, other=0.0)
        gap = value - best
        if has_copies:
            copies = tl.load(copies_ptr + first_column + column, mask=inside, other=0.0)
            gap += copies - best_copies
        wins = inside & (gap > 0)
        share = tl.where(inside, tl.exp(-tl.abs(gap)), 0.0)  # of the lesser in the greater
        rest = tl.where(wins, (rest + 1) * share, rest + share)
        best = tl.where(wins, value, best)
        where = tl.where(wins, column, where)
        if has_copies:
            best_copies = tl.where(wins, copies, best_copies)
    height = best + best_copies
    target = tl.min(tl.where(height == tl.max(height, axis=0), where, 2147483647), axis=0)
    anchor = tl.load(start + target)
    height = best - anchor
    if has_copies:
        height += best_copies - tl.load(copies_ptr + first_column + target)
    total = tl.sum(tl.exp(height) * tl.where(where == target, rest, rest + 1), axis=0)
    tl.store(rest_ptr + row, total)
    tl.store(anchor_target_ptr + row, (target + first_column).to(tl.int64))
    tl.store(anchor_logit_ptr + row, anchor)


@triton.jit
def _row_unit(rest):
    """A power of two: 2^8 over the total of a row without its anchor, rounded down; 2^100 at most.

    No share of the row is over 2^9 then, and none times its distance from the anchor over 65,504: shares whose
    distance is over 104 are zero in float32.
    """
    exponent = (rest.to(tl.int32, bitcast=True) >> 23) & 255
    return (tl.minimum(262 - exponent, 227) << 23).to(tl.float32, bitcast=True)


@triton.jit
def _round(value, operand: tl.constexpr):
    """To the ten bits of tf32, to nearest: the matrix units would cut."""
    if operand == "tf32":
        bits = value.to(tl.int32, bitcast=True)
        value = ((bits + 4096) & -8192).to(tl.float32, bitcast=True)
    return value


@triton.jit(do_not_specialize=_ANY)
def _softmax_kernel(
    logit_ptr,
    copies_ptr,
    anchor_logit_ptr,
    anchor_target_ptr,
    anchor_copies_ptr,
    rest_ptr,
    weight_ptr,
    drift_ptr,
    share_ptr,
    slots_ptr,
    rows,
    columns,
    pitch,
    first_column,
    slot_pitch,
    has_copies: tl.constexpr,
    operand: tl.constexpr,
    block_rows: tl.constexpr,
    step: tl.constexpr,
    block_columns: tl.constexpr,
):
    """Shares and `share * (logit - anchor's)` of a block of rows and columns, and what it adds to the column sums."""
    column = tl.program_id(0) * block_columns + tl.arange(0, block_columns)
    inside = column < columns
    sums = tl.zeros([step, block_columns], tl.float32)
    if has_copies:
        copies = tl.load(copies_ptr + first_column + column, mask=inside, other=0.0)
    for first in range(0, block_rows, step):
        row = tl.program_id(1) * block_rows + first + tl.arange(0, step)
        there = row < rows
        anchor = tl.load(anchor_logit_ptr + row, mask=there, other=0.0)
        target = tl.load(anchor_target_ptr + row, mask=there, other=-1).to(tl.int32) - first_column
        rest = tl.load(rest_ptr + row, mask=there, other=0.0)
        weight = tl.load(weight_ptr + row, mask=there, other=0.0) / (1 + rest)
        at = row.to(tl.int64)[:, None] * pitch + column[None, :]
        reached = there[:, None] & (column < pitch)[None, :]
        moved = tl.load(logit_ptr + at, mask=reached, other=0.0) - anchor[:, None]
        exponent = moved
        if has_copies:
            own = tl.load(anchor_copies_ptr + row, mask=there, other=0.0)
            exponent += copies[None, :] - own[:, None]
        counted = there[:, None] & inside[None, :] & (column[None, :] != target[:, None])
        share = tl.where(counted, tl.exp(exponent), 0.0)
        sums += weight[:, None] * share
        if operand == "half":
            share *= _row_unit(rest)[:, None]
        tl.store(drift_ptr + at, _round(moved * share, operand).to(drift_ptr.dtype.element_ty), mask=reached)
        tl.store(share_ptr + at, _round(share, operand).to(share_ptr.dtype.element_ty), mask=reached)
    slot = slots_ptr + tl.program_id(1).to(tl.int64) * slot_pitch + first_column + column
    tl.store(slot, tl.load(slot, mask=inside, other=0.0) + tl.sum(sums, axis=0).to(tl.float64), mask=inside)


@triton.jit(do_not_specialize=_ANY)
def _crossed_kernel(
    moments_ptr,
    ghat_ptr,
    anchor_ptr,
    rest_ptr,
    weight_ptr,
    left_ptr,
    right_ptr,
    rows,
    width,
    scale,
    operand: tl.constexpr,
    rounded: tl.constexpr,
    lanes: tl.constexpr,
):
    """A row per program: its two rows of both operands of the product that is taken off."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, lanes)
    inside = lane < width
    own, other = row * width + lane, (row + rows) * width + lane
    rest, weight = tl.load(rest_ptr + row), tl.load(weight_ptr + row)
    drift = tl.load(moments_ptr + own, mask=inside, other=0.0)
    mean = tl.load(moments_ptr + other, mask=inside, other=0.0)
    if operand == "half":  # a power of two: nothing is rounded
        drift /= _row_unit(rest)
        mean /= _row_unit(rest)
    drift /= 1 + rest
    mean /= 1 + rest
    ghat = tl.load(ghat_ptr + own, mask=inside, other=0.0)
    anchor = tl.load(anchor_ptr + own, mask=inside, other=0.0)
    v = mean - rest / (1 + rest) * anchor
    u = drift / scale - tl.sum(v * ghat, axis=0) * (anchor + v)
    half = tl.sum(ghat * u, axis=0) / 2
    tl.store(left_ptr + own, _round(weight * v, rounded), mask=inside)
    tl.store(left_ptr + other, _round(weight * ghat, rounded), mask=inside)
    tl.store(right_ptr + own, _round(anchor + v / 2, rounded), mask=inside)
    tl.store(right_ptr + other, _round(u - half * ghat, rounded), mask=inside)


@triton.jit(do_not_specialize=_ANY)
def _sigmoid_kernel(
    cosine_ptr,
    weight_ptr,
    product_ptr,
    slots_ptr,
    slope,
    offset,
    rows,
    columns,
    pitch,
    first_column,
    slot_pitch,
    operand: tl.constexpr,
    block_rows: tl.constexpr,
    step: tl.constexpr,
    block_columns: tl.constexpr,
):
    """`cosine / cosh^2` of a block of rows and columns, and what `1 / cosh^2` adds to the column sums."""
    column = tl.program_id(0) * block_columns + tl.arange(0, block_columns)
    inside = column < columns
    sums = tl.zeros([step, block_columns], tl.float32)
    for first in range(0, block_rows, step):
        row = tl.program_id(1) * block_rows + first + tl.arange(0, step)
        there = row < rows
        weight = tl.load(weight_ptr + row, mask=there, other=0.0)
        at = row.to(tl.int64)[:, None] * pitch + column[None, :]
        reached = there[:, None] & (column < pitch)[None, :]
        cosine = tl.load(cosine_ptr + at, mask=reached, other=0.0)
        fall = tl.exp(-2 * tl.abs(slope * cosine + offset))
        spread = tl.where(
            there[:, None] & inside[None, :], 4 * fall / ((1 + fall) * (1 + fall)), 0.0
        )  # 1 / cosh^2, without overflow
        sums += weight[:, None] * spread
        tl.store(product_ptr + at, _round(cosine * spread, operand).to(product_ptr.dtype.element_ty), mask=reached)
    slot = slots_ptr + tl.program_id(1).to(tl.int64) * slot_pitch + first_column + column
    tl.store(slot, tl.load(slot, mask=inside, other=0.0) + tl.sum(sums, axis=0).to(tl.float64), mask=inside)


class FusedPasses:
    """`bayesvlm.core.passes.Passes` in one launch each: float32 logits in, operands in the product's type out."""

    entry_bytes = 9  # logits and shares in float32, or logits in float32 and both operands in 16 bits; and the slots

    def __init__(
        self, columns: int, device: torch.device, precision: str, log_copies: Tensor | None, halves: bool = False
    ) -> None:
        self._kind = "half" if halves and precision == "tf32" else precision
        self.operand = {"bf16": torch.bfloat16, "half": torch.float16}.get(self._kind, torch.float32)
        self.log_copies = log_copies
        self._slots = torch.zeros(0, columns, dtype=torch.float64, device=device)  # column sums by block of rows

    def anchors(self, tile: Tile, columns: slice) -> Anchors:
        rows, width = tile.logit.shape
        logit, rest = tile.logit.new_empty(2, rows)
        target = torch.empty(rows, dtype=torch.long, device=logit.device)
        lanes = min(_LANES, max(16, triton.next_power_of_2(width)))
        with torch.cuda.device_of(tile.logit):  # kernels start on the current device
            _anchor_kernel[(rows,)](
                tile.logit,
                self._copies(tile),
                logit,
                target,
                rest,
                width,
                tile.logit.stride(0),
                columns.start,
                has_copies=self.log_copies is not None,
                lanes=lanes,
                num_warps=16 if lanes >= 4096 else 4,
            )
        copies = torch.zeros_like(logit) if self.log_copies is None else self.log_copies[target]
        return Anchors(logit, target, copies, rest)

    def softmax(self, tile: Tile, columns: slice, weight: Tensor, anchors: Anchors | None) -> tuple[Anchors, Tensor]:
        anchors = self.anchors(tile, columns) if anchors is None else anchors
        rows, width = tile.logit.shape
        drift, share = tile.operand
        with torch.cuda.device_of(tile.logit):  # kernels start on the current device
            _softmax_kernel[self._grid(tile)](
                tile.logit,
                self._copies(tile),
                anchors.logit,
                anchors.target,
                anchors.copies,
                anchors.rest,
                weight,
                drift,
                share,
                self._slots_for(rows),
                rows,
                width,
                tile.logit.stride(0),
                columns.start,
                self._slots.stride(0),
                has_copies=self.log_copies is not None,
                operand=self._kind,
                block_rows=_ROWS,
                step=_STEP,
                block_columns=_COLUMNS,
                num_warps=4,
            )
        return anchors, tile.operand

    def crossed(
        self, ghat: Tensor, h_anchor: Tensor, anchors: Anchors, weight: Tensor, moments: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        rows, width = ghat.shape
        left, right = ghat.new_empty(2, 2 * rows, width)
        lanes = triton.next_power_of_2(width)
        with torch.cuda.device_of(ghat):
            _crossed_kernel[(rows,)](
                moments,
                ghat,
                h_anchor,
                anchors.rest,
                weight,
                left,
                right,
                rows,
                width,
                scale,
                operand=self._kind,
                rounded="tf32" if self._kind in ("tf32", "half") else "float32",
                lanes=lanes,
                num_warps=4 if lanes <= 2048 else 8,
            )
        return left, right

    def sigmoid(self, tile: Tile, columns: slice, weight: Tensor, slope: float, offset: float) -> Tensor:
        rows, width = tile.logit.shape
        with torch.cuda.device_of(tile.logit):  # kernels start on the current device
            _sigmoid_kernel[self._grid(tile)](
                tile.logit,
                weight,
                tile.operand[0],
                self._slots_for(rows),
                slope,
                offset,
                rows,
                width,
                tile.logit.stride(0),
                columns.start,
                self._slots.stride(0),
                operand=self._kind,
                block_rows=_ROWS,
                step=_STEP,
                block_columns=_COLUMNS,
                num_warps=4,
            )
        return tile.operand[0]

    def column_sums(self) -> Tensor:
        return self._slots.sum(dim=0)

    def _copies(self, tile: Tile) -> Tensor:
        return tile.logit if self.log_copies is None else self.log_copies  # never read where there are none

    def _grid(self, tile: Tile) -> tuple[int, int]:
        rows, width = tile.logit.shape
        return triton.cdiv(width, _COLUMNS), triton.cdiv(rows, _ROWS)

    def _slots_for(self, rows: int) -> Tensor:
        """Slots for a tile of so many rows; the first tile is the largest."""
        missing = triton.cdiv(rows, _ROWS) - len(self._slots)
        if missing > 0:
            self._slots = torch.cat([self._slots, self._slots.new_zeros(missing, self._slots.shape[1])])
        return self._slots
