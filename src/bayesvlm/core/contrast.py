"""A contrast batch in tiles that fit the memory allowed: unit sources, distinct unit targets, one precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError, check_choice

Precision = Literal["float32", "float64", "tf32", "bf16"]
PRECISIONS = get_args(Precision)
DEFAULT_MEMORY = 512 * 2**20  # bytes of working memory beyond inputs and result
_SAME = {torch.float32: 1e-5, torch.float64: 1e-13}  # unit targets as near as this are copies: encoders round, too
_ROUNDS = 8  # of telling neighbours in one cell apart


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
        memory: bytes, for everything kept here and for what a caller makes of a block of rows.
        merged: equal targets are kept once, with the logarithm of their number, and all targets are shifted by their
            mean: for losses that only need covariances of targets.
    """

    def __init__(
        self, source: Tensor, target: Tensor, precision: Precision | None, memory: int, *, merged: bool
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
        self.distinct: Tensor | None = None  # [K'], the targets to contrast with, None for all
        self.log_copies: Tensor | None = None  # [K'], log of how many equal targets each stands for
        if merged:
            self._merge_copies(max(1, memory // 4 // (8 * self.width)))
        self.target_count = len(target) if self.distinct is None else len(self.distinct)
        self.smallest_norm = float(self.source_norm.min())
        itemsize = 8 if self.dtype == torch.float64 else 4
        # Of the memory: at most a quarter for the unit targets, a quarter for everything of size [block of rows, d]
        # (about twelve arrays), what is left for the two [n, k] tiles.
        quarter = memory // 4
        block = max(1, quarter // (self.width * 12 * itemsize))
        size = self.target_count * self.width * itemsize
        kept = size <= quarter
        self.column_tile = self.target_count if kept else min(self.target_count, block)
        left = 3 * quarter - (size if kept else quarter)
        per_row = 2 * self.column_tile * (itemsize + (2 if self.precision == "bf16" else 0))
        self.row_tile = max(1, min(len(source), block, left // per_row))
        self.block = block // self.row_tile * self.row_tile  # whole tiles
        self.kept: Tensor | None = None
        self.shift: Tensor | None = None
        if kept:
            self.kept = self.targets(slice(None))
        if merged:  # what follows only needs covariances, which ignore a shift
            self.shift = self._mean_target()
            if self.kept is not None:
                self.kept.sub_(self.shift)
        self.workspace = torch.empty(2 * self.row_tile * self.column_tile, dtype=self.dtype, device=self.device)

    @property
    def single_tile(self) -> bool:
        return self.column_tile == self.target_count

    @staticmethod
    def spans(count: int, size: int) -> Iterator[slice]:
        for start in range(0, count, size):
            yield slice(start, min(start + size, count))

    def row_blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(ghat [n, d], weights 1/|g|^2 [n]); the weights in units of the largest, which `_Sums` puts back."""
        for span in self.spans(len(self.source), self.block):
            norm = self.source_norm[span]
            yield self._unit(self.source[span], norm), (self.smallest_norm / norm).square().to(self.dtype)

    def row_tiles(self, count: int) -> Iterator[slice]:
        """The rows of a block, a tile at a time."""
        return self.spans(count, self.row_tile)

    def column_tiles(self, ghat: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """(columns, hhat [k, d], tiles [2, n, k]); the first tile is ghat hhat^T, both are the caller's to overwrite.

        The tiles are reused: allocating afresh would cost as much as the arithmetic.
        """
        for columns in self.spans(self.target_count, self.column_tile):
            hhat = self.targets(columns)
            tiles = self.workspace[: 2 * len(ghat) * len(hhat)].view(2, len(ghat), len(hhat))
            if self.precision == "bf16":
                tiles[0] = self.product(ghat, hhat.T)
            else:
                torch.mm(ghat, hhat.T, out=tiles[0])
            yield columns, hhat, tiles

    def targets(self, rows: slice | Tensor) -> Tensor:  # [k, d]
        """Unit targets, shifted; from the kept copy where there is one."""
        if self.kept is not None:
            return self.kept[rows]
        if self.distinct is not None:
            rows = self.distinct[rows]
        hhat = self._unit(self.target[rows], self.target_norm[rows])
        return hhat if self.shift is None else hhat.sub_(self.shift)

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        if self.precision != "bf16":
            return left @ right
        if self.device.type == "cuda":  # bfloat16 in, float32 out
            return torch.mm(left.bfloat16(), right.bfloat16(), out_dtype=torch.float32)
        return (left.bfloat16() @ right.bfloat16()).to(self.dtype)

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

    def _merge_copies(self, block: int) -> None:
        """Find equal targets: same cell of a coarse random grid, and really as near as rounding allows."""
        cells = self._grid_cells(block)
        ordered = cells.sort().values
        if not bool((ordered[1:] == ordered[:-1]).any()):
            return  # the usual case, and cheap
        index = torch.arange(len(cells), device=self.device)
        first = _first_copies(cells)
        suspects = torch.nonzero(first != index).flatten()
        for _ in range(_ROUNDS):
            if not len(suspects):
                break
            apart = torch.cat([self._apart(rows, first[rows]) for rows in torch.split(suspects, block)])
            suspects = suspects[apart]  # equal to one another, perhaps, but not to the first of their cell
            first[suspects] = suspects[_first_copies(cells[suspects])]
            suspects = suspects[first[suspects] != suspects]
        first[suspects] = suspects  # a model whose targets all but coincide: they stay as they are
        distinct, copies = torch.unique(first, return_counts=True)
        if len(distinct) < len(first):
            self.distinct, self.log_copies = distinct, copies.to(self.dtype).log()

    def _apart(self, rows: Tensor, others: Tensor) -> Tensor:  # [n], [n] -> [n]
        """Whether unit targets differ by more than rounding."""
        own, other = (self._unit(self.target[each], self.target_norm[each]) for each in (rows, others))
        distance: Tensor = torch.linalg.vector_norm(own - other, dim=1)
        return distance > _SAME[self.dtype]

    def _grid_cells(self, block: int) -> Tensor:  # [K]
        """A number for each target's cell in a grid over eight random directions; equal targets share a cell."""
        generator = torch.Generator().manual_seed(0)
        directions = torch.randn(self.width, 8, generator=generator, dtype=torch.float64).to(self.device, self.dtype)
        offsets = torch.rand(8, generator=generator, dtype=torch.float64).to(self.device, self.dtype)
        odd = 2 * torch.randint(2**62, (8,), generator=generator).to(self.device) + 1
        cells = torch.empty(len(self.target), dtype=torch.long, device=self.device)
        for rows in self.spans(len(self.target), block):
            places = self._unit(self.target[rows], self.target_norm[rows]) @ directions
            cells[rows] = ((places / 0.02 + offsets).floor().long() * odd).sum(dim=1)
        return cells

    def _mean_target(self) -> Tensor:  # [d]
        if self.kept is not None:
            return self.kept.mean(dim=0)
        total = torch.zeros(self.width, dtype=self.dtype, device=self.device)
        for rows in self.spans(self.target_count, self.block):
            total += self.targets(rows).sum(dim=0)
        return total / self.target_count

    def _unit(self, rows: Tensor, norm: Tensor) -> Tensor:  # [n, d], [n] -> [n, d]
        """Unit vectors: divided in float64 (half-precision and extreme norms are safe), kept in the products' dtype."""
        return torch.div(rows, norm[:, None], out=torch.empty(rows.shape, dtype=self.dtype, device=self.device))


def _first_copies(cells: Tensor) -> Tensor:  # [K] -> [K]
    """For every target the index of the first one in its cell."""
    _, cell = torch.unique(cells, return_inverse=True)
    index = torch.arange(len(cells), device=cells.device)
    first = torch.full((len(cells),), len(cells), device=cells.device)
    return first.scatter_reduce_(0, cell, index, "amin")[cell]


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
    # on a CPU half precision is widened before it is summed: a part at a time, then
    parts = [rows] if rows.is_cuda else torch.split(rows, max(1, 2**22 // rows.shape[1]))
    norm = torch.cat([torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in parts])
    usable = torch.isfinite(norm) & (norm > 0)
    if not bool(usable.all()):
        bad = torch.nonzero(~usable).flatten().tolist()
        raise BayesVLMError(
            f"{name} rows {bad[:10]}{' and more' if len(bad) > 10 else ''} are zero, NaN or Inf; "
            "an embedding needs a direction to be normalised."
        )
    return norm
