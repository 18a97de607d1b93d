"""Equal rows among unit vectors: found once, counted, and contrasted once (captions repeat)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

_SAME = {torch.float32: 1e-5, torch.float64: 1e-13}  # unit targets as near as this are copies: encoders round, too
_ROUNDS = 8  # of telling neighbours in one cell apart
_CELL = 0.02  # width of a cell of the grid


def first_copies(
    unit: Callable[[slice | Tensor], Tensor],  # [n] -> [n, d]
    count: int,
    block: int,
) -> Tensor | None:  # [K]
    """For every row the first one equal to it up to rounding; None where no two rows are.

    Args:
        unit: gives the unit vectors of the rows asked for.
        count: how many rows there are, K.
        block: rows to ask for at a time.
    """
    starts = range(0, count, block)
    cells = torch.cat([_grid_cells(unit(slice(start, min(start + block, count)))) for start in starts])
    ordered = cells.sort().values
    if not bool((ordered[1:] == ordered[:-1]).any()):
        return None  # the usual case, and cheap
    index = torch.arange(count, device=cells.device)
    first = _first_of_cell(cells)
    suspects = torch.nonzero(first != index).flatten()
    for _ in range(_ROUNDS):
        if not len(suspects):
            break
        apart = torch.cat([_apart(unit(rows), unit(first[rows])) for rows in torch.split(suspects, block)])
        suspects = suspects[apart]  # equal to one another, perhaps, but not to the first of their cell
        first[suspects] = suspects[_first_of_cell(cells[suspects])]
        suspects = suspects[first[suspects] != suspects]
    first[suspects] = suspects  # a model whose targets all but coincide: they stay as they are
    return first


def _apart(own: Tensor, other: Tensor) -> Tensor:  # [n, d], [n, d] -> [n]
    """Whether unit vectors differ by more than rounding."""
    distance: Tensor = torch.linalg.vector_norm(own - other, dim=1)
    return distance > _SAME[own.dtype]


def _grid_cells(rows: Tensor) -> Tensor:  # [n, d] -> [n]
    """A number for each row's cell in a grid over eight random directions; equal rows share a cell."""
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(rows.shape[1], 8, generator=generator, dtype=torch.float64).to(rows)
    offsets = torch.rand(8, generator=generator, dtype=torch.float64).to(rows)
    odd = 2 * torch.randint(2**62, (8,), generator=generator).to(rows.device) + 1
    return ((rows @ directions / _CELL + offsets).floor().long() * odd).sum(dim=1)


def _first_of_cell(cells: Tensor) -> Tensor:  # [K] -> [K]
    _, cell = torch.unique(cells, return_inverse=True)
    index = torch.arange(len(cells), device=cells.device)
    first = torch.full((len(cells),), len(cells), device=cells.device)
    return first.scatter_reduce_(0, cell, index, "amin")[cell]
