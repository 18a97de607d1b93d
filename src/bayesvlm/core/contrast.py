"""A contrast batch in tiles that fit the memory allowed: unit sources, distinct unit targets, one precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from bayesvlm.core.copies import first_copies
from bayesvlm.core.errors import BayesVLMError, check_choice
from bayesvlm.core.passes import Passes, Tile, passes_for, round_to_tf32
from bayesvlm.core.tiling import pitch, tiling

Precision = Literal["float32", "float64", "tf32", "bf16"]
PRECISIONS = get_args(Precision)
# Bytes of working memory beyond inputs and result. The libraries' own 32 MiB and arrays of [K] and [d, d] come on top:
# on a GPU everything together stays under 1 GiB.
DEFAULT_MEMORY = {"cpu": 512 * 2**20, "cuda": 896 * 2**20}
# Rows of a tile from which on three products of so few rows take less than four of many
_LEAST_ROWS = {"cpu": 32, "cuda": 128}
_PART = {"cpu": 2**22, "cuda": 2**24}  # entries converted at a time: a float64 copy of all would not fit the memory


class _Tf32Setting(NamedTuple):
    name: str
    on: object
    off: object


# torch 2.9 renamed the switch and refuses to have both names used in one process
_TF32_SETTING = (
    _Tf32Setting("fp32_precision", "tf32", "ieee")
    if hasattr(torch.backends.cuda.matmul, "fp32_precision")
    else _Tf32Setting("allow_tf32", True, False)
)


class ContrastBatch:
    """Unit sources and unit targets, in tiles that fit the memory allowed.

    Args:
        source, target: raw embeddings [N, d] and [K, d].
        precision: of products; None takes float64 for float64 inputs, else float32.
        memory: bytes, for everything kept here and for what a caller makes of a tile's rows; None is DEFAULT_MEMORY.
        merged: equal targets are kept once, with the logarithm of their number, and all targets are shifted by their
            mean: for losses that only need covariances of targets.
        halves: what is multiplied stays within the range of half precision, as far as the passes see to it.
    """

    def __init__(
        self,
        source: Tensor,
        target: Tensor,
        precision: Precision | None,
        memory: int | None,
        *,
        merged: bool,
        halves: bool = False,
    ) -> None:
        self.source, self.target = source, target
        self.source_norm, self.target_norm = _norms(source, "source"), _norms(target, "target")
        if source.shape[1] != target.shape[1] or source.device != target.device:
            raise BayesVLMError(
                f"source is {list(source.shape)} on {source.device} and target {list(target.shape)} on "
                f"{target.device}; both must be [rows, d] with the same d, on one device."
            )
        self.precision = _resolve_precision(precision, source, target)
        self.dtype = torch.float64 if self.precision == "float64" else torch.float32
        self.device, self.width = source.device, int(source.shape[1])
        kind = self.device.type
        memory = _of(DEFAULT_MEMORY, kind) if memory is None else memory
        self.part = max(1, min(_of(_PART, kind), memory // 32) // self.width)
        self.kept: Tensor | None = None  # [K, d] unit targets, made once, where they fit
        self.shift: Tensor | None = None  # [d]
        if len(target) * self.width * self.dtype.itemsize <= memory * 5 // 8:
            self.kept = torch.empty(len(target), self.width, dtype=self.dtype, device=self.device)
            for rows in self.spans(len(target), self.part):
                self._unit(target[rows], self.target_norm[rows], self.kept[rows])
        self.distinct: Tensor | None = None  # [K'], the targets to contrast with, None for all
        self.log_copies: Tensor | None = None  # [K'], log of how many equal targets each stands for
        if merged:
            self._merge_copies(max(1, memory // 4 // (8 * self.width)))
        self.target_count = len(target) if self.distinct is None else len(self.distinct)
        self.smallest_norm = float(self.source_norm.min())
        passes = passes_for(self.target_count, self.dtype, self.device, self.precision, self.log_copies, halves)
        self.passes: Passes = passes
        self.tiling = tiling(
            len(source),
            self.target_count,
            self.width,
            itemsize=self.dtype.itemsize,
            entry=passes.entry_bytes,
            memory=memory,
            least_rows=_of(_LEAST_ROWS, kind),
            kept=self.kept is not None,
        )
        if not self.tiling.kept:
            self.kept = None
        if merged:  # what follows only needs covariances, which ignore a shift
            self.shift = self._mean_target()
        self._round_kept()
        entries = self.tiling.rows * self.tiling.pitch
        self._workspace = torch.empty(2 * entries * self.dtype.itemsize, dtype=torch.uint8, device=self.device)

    @property
    def _narrow(self) -> torch.dtype:
        """Of the operands of large products: 16 bits where a product of those is what `precision` names."""
        return torch.bfloat16 if self.precision == "bf16" else self.passes.operand

    @property
    def whole(self) -> bool:
        """Whether a tile holds all columns of its rows."""
        return self.tiling.columns == self.target_count

    @staticmethod
    def spans(count: int, size: int) -> Iterator[slice]:
        for start in range(0, count, size):
            yield slice(start, min(start + size, count))

    def row_tiles(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(ghat [n, d], weights 1/|g|^2 [n]); the weights in units of the largest, which `_Sums` puts back."""
        for span in self.spans(len(self.source), self.tiling.rows):
            norm = self.source_norm[span]
            yield self._unit(self.source[span], norm), (self.smallest_norm / norm).square().to(self.dtype)

    def column_tiles(self, left: Tensor) -> Iterator[tuple[slice, Tensor, Tile]]:
        """(columns, hhat [k, d], tile); the tile's logits are `left hhat^T`, all of it is the caller's to overwrite.

        The tiles are reused: allocating afresh would cost as much as the arithmetic.
        """
        left = self.rounded(left)
        for columns in self.spans(self.target_count, self.tiling.columns):
            hhat = self.targets(columns)
            tile = self._tile(len(left), len(hhat))
            self._multiply(left, hhat.T, tile.logit)
            yield columns, hhat, tile

    def targets(self, rows: slice | Tensor) -> Tensor:  # [k, d]
        """Unit targets, shifted, as products take them; from the kept copy where there is one."""
        if self.kept is not None:
            return self.kept[rows]
        hhat = self._target(rows)
        return self.rounded(hhat if self.shift is None else hhat.sub_(self.shift))

    def release(self) -> None:
        """Give the tiles' memory back: what follows needs some of its own."""
        self._workspace = self._workspace.new_empty(0)

    def product(self, left: Tensor, right: Tensor) -> Tensor:  # [n, k], [k, d] -> [n, d]
        out = torch.empty(len(left), right.shape[1], dtype=self.dtype, device=self.device)
        return self._multiply(left.to(right.dtype), right, out)

    def rounded(self, operand: Tensor) -> Tensor:
        """An operand as the product will read it, rounded to nearest.

        Matrix units of a GPU read ten bits of a float32 operand as tf32 and ignore the rest: what nobody rounds is cut.
        Cosines then are too small by 7e-4 of themselves, which a saturated softmax turns into an error of 3 per cent.
        """
        if self._narrow != self.dtype:
            return operand.to(self._narrow)
        return round_to_tf32(operand) if self.precision == "tf32" else operand

    @contextmanager
    def products(self) -> Iterator[None]:
        """CUDA products in exactly the precision asked for, whatever the caller's global setting is."""
        if self.device.type != "cuda":
            yield
            return
        setting, matmul = _TF32_SETTING, torch.backends.cuda.matmul
        before = getattr(matmul, setting.name)
        setattr(matmul, setting.name, setting.on if self.precision == "tf32" else setting.off)
        try:
            yield
        finally:
            setattr(matmul, setting.name, before)

    def _multiply(self, left: Tensor, right: Tensor, out: Tensor) -> Tensor:
        """`left right`, both of one type, added up in `out`'s."""
        if left.dtype == out.dtype:
            return torch.mm(left, right, out=out)
        if self.device.type == "cuda":
            return torch.mm(left, right, out_dtype=out.dtype, out=out)
        if left.dtype == torch.float16:  # which a processor would add up in half precision, too
            return torch.mm(left.to(out.dtype), right.to(out.dtype), out=out)
        return out.copy_(left @ right)

    def _tile(self, rows: int, columns: int) -> Tile:
        """Logits [n, k] and what the second product takes [2, n, k]: the same memory, where the types allow it."""
        step = pitch(columns)
        entries, size = rows * step, self.dtype.itemsize
        both = self._workspace[: 2 * entries * size].view(self.dtype).view(2, rows, step)[:, :, :columns]
        if self.passes.operand == self.dtype:
            return Tile(both[0], both)
        narrow = self._workspace[entries * size : entries * (size + 2 * self.passes.operand.itemsize)]
        return Tile(both[0], narrow.view(self.passes.operand).view(2, rows, step)[:, :, :columns])

    def _merge_copies(self, block: int) -> None:
        first = first_copies(self._target, len(self.target), block)
        if first is None:
            return
        distinct, copies = torch.unique(first, return_counts=True)
        if len(distinct) == len(first):
            return
        self.log_copies = copies.to(self.dtype).log()
        if self.kept is not None:  # in place: `distinct` ascends, so no row is overwritten before it is read
            for rows in self.spans(len(distinct), self.part):
                self.kept[rows] = self.kept[distinct[rows]]
            self.kept = self.kept[: len(distinct)]
        self.distinct = distinct

    def _round_kept(self) -> None:
        """Shift the kept targets and round them as products read them: the same targets in every formula, then."""
        if self.kept is None:
            return
        kept = self.kept if self._narrow == self.dtype else self.kept.new_empty(self.kept.shape, dtype=self._narrow)
        for rows in self.spans(self.target_count, self.part):
            hhat = self.kept[rows]
            kept[rows] = self.rounded(hhat if self.shift is None else hhat.sub_(self.shift))
        self.kept = kept

    def _target(self, rows: slice | Tensor) -> Tensor:  # [k, d]
        """Unit targets as they are."""
        if self.kept is not None:
            return self.kept[rows]
        rows = rows if self.distinct is None else self.distinct[rows]
        return self._unit(self.target[rows], self.target_norm[rows])

    def _mean_target(self) -> Tensor:  # [d]
        total = torch.zeros(self.width, dtype=torch.float64, device=self.device)
        for rows in self.spans(self.target_count, self.part):
            total += self._target(rows).sum(dim=0)
        return (total / self.target_count).to(self.dtype)

    def _unit(self, rows: Tensor, norm: Tensor, out: Tensor | None = None) -> Tensor:  # [n, d], [n] -> [n, d]
        """Unit vectors: divided in float64 (half-precision and extreme norms are safe), kept in the products' dtype."""
        out = torch.empty(rows.shape, dtype=self.dtype, device=self.device) if out is None else out
        return torch.div(rows, norm[:, None], out=out)


def _of(table: dict[str, int], kind: str) -> int:
    """What holds for this kind of device; for kinds not tried what holds for a processor."""
    return table.get(kind, table["cpu"])


def _resolve_precision(precision: Precision | None, source: Tensor, target: Tensor) -> Precision:
    if precision is None:
        return "float64" if torch.float64 in (source.dtype, target.dtype) else "float32"
    check_choice("precision", precision, PRECISIONS)
    if precision == "tf32" and source.device.type != "cuda":
        raise BayesVLMError(
            f"precision='tf32' needs a CUDA device, the embeddings are on {source.device}; use 'float32'."
        )
    return precision


def _norms(rows: Tensor, name: str) -> Tensor:  # [n, d] -> [n]
    """Norms in float64 of what must be embeddings with a direction."""
    if rows.ndim != 2 or not rows.is_floating_point() or rows.numel() == 0:
        raise BayesVLMError(
            f"{name} must be a non-empty floating-point matrix [rows, d], got {rows.dtype} of shape {list(rows.shape)}."
        )
    # rows are widened before they are summed: a part at a time, then
    parts = torch.split(rows, max(1, _of(_PART, rows.device.type) // rows.shape[1]))
    norm = torch.cat([torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in parts])
    usable = torch.isfinite(norm) & (norm > 0)
    if not bool(usable.all()):
        bad = torch.nonzero(~usable).flatten().tolist()
        raise BayesVLMError(
            f"{name} rows {bad[:10]}{' and more' if len(bad) > 10 else ''} are zero, NaN or Inf; "
            "an embedding needs a direction to be normalised."
        )
    return norm
