r"""Near-duplicates of one tower: which items reach a similarity with which, and groups of them.

A pair *reaches* a similarity s where an end of its credible interval does, `c + h std >= s`, with std the joint one of
`bayesvlm.core.linearised`. Most pairs are far from it, which a product of unit means tells: with R' the largest
eigenvalue of R, the triangle inequality for the matrix M whose norm is std gives

    std <= sqrt(R') (|w| + |z|) b(c),    b(c) = ((1-c) sqrt(2(1+c)) + (1+c) sqrt(2(1-c))) / 2

and b is concave, so that below one cosine, the *floor*, no pair reaches s. Moments are computed above it alone.

Groups are stars. Items come in an order of preference; the first that is in no group keeps itself, and takes every
later one that it reaches and that is in no group. So whatever is taken is a near-copy of what is kept, which chains of
pairs, each near the next, do not promise; and nothing needs to be remembered but which item belongs to which.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesvlm.core.blocks import row_blocks
from bayesvlm.core.embeddings import Shape
from bayesvlm.core.linearised import Directed, paired_cosines, same_tower_cosines

_ROWS = 1024  # that are compared with all others at once
_TILE = 2**24  # pairs whose cosines are held at once, 64 MiB
_GATHERED = 2**22  # numbers in the means of pairs that are looked at one by one
_SPARSE = 64  # one pair by itself costs as much as so many of a block
_ROUNDING = 1e-5  # of a cosine in float32, and of what is kept of whitened activations


@dataclass(frozen=True)
class Reach:
    """When a pair reaches a similarity.

    Args:
        similarity: s.
        half_width: h, how many standard deviations the interval's end lies from the mean: positive for the upper end,
            which leaves out no pair that could be as similar; negative for the lower one, which takes none that might
            not be; 0 for the mean.
    """

    similarity: float
    half_width: float

    def holds(self, mean: Tensor, variance: Tensor) -> Tensor:
        """For each pair, whether it does."""
        return mean + self.half_width * variance.clamp(min=0).sqrt() >= self.similarity

    def floor(self, spread: float) -> float:
        """The cosine below which no pair does, to 1e-6.

        Args:
            spread: sqrt(R') (|w| + |z|), or more.
        """
        if self.half_width <= 0:
            return self.similarity
        low, high = -1.0, 1.0
        while high - low > 1e-6:
            middle = (low + high) / 2
            if middle + self.half_width * spread * _bound(middle) >= self.similarity:
                high = middle
            else:
                low = middle
        return low


def _bound(c: float) -> float:
    """b(c)."""
    return ((1 - c) * math.sqrt(2 * (1 + c)) + (1 + c) * math.sqrt(2 * (1 - c))) / 2


class Neighbours:
    """Items of one tower, to be asked which of them reach which others.

    Args:
        mean: of the items, [N, d]; computed with on the device where it is.
        white: lengths of their whitened activations, [N], in the scale of the means.
        directed: makes the items at some places, in the same scale; most are never asked for.
        shape: R of their tower.
        reach: when a pair does.
    """

    def __init__(
        self,
        mean: Tensor,  # [N, d]
        white: Tensor,  # [N]
        directed: Callable[[Tensor], Directed],
        shape: Shape,
        reach: Reach,
    ) -> None:
        self._directed, self.shape, self.reach = directed, shape.to(mean.device), reach
        length = mean.float().norm(dim=1)
        self._unit = mean.float() / length[:, None]
        self._spread = float(shape.spectrum.max()) ** 0.5 * white.float() / length
        self._width = mean.shape[1]

    @classmethod
    def of_items(cls, items: Directed, shape: Shape, reach: Reach) -> Neighbours:
        """Of items that are all there."""

        def directed(places: Tensor) -> Directed:
            return Directed(items.mean[places].double(), items.white[places].double())

        return cls(items.mean, items.white.double().norm(dim=1), directed, shape, reach)

    def __len__(self) -> int:
        return len(self._unit)

    @property
    def device(self) -> torch.device:
        """Where they are compared."""
        device: torch.device = self._unit.device
        return device

    def of(self, rows: Tensor, columns: Tensor) -> Iterator[tuple[Tensor, Tensor]]:  # [n], [m] -> [k], [k]
        """Pairs of one of `rows` with one of `columns` that reach the similarity, a block of columns at a time."""
        left = self._unit[rows]
        most = float(self._spread[rows].max()) if len(rows) else 0.0
        for block in row_blocks(len(columns), max(1, len(rows)), _TILE):
            some = columns[block]
            floor = self.reach.floor(most + float(self._spread[some].max()))
            near = left @ self._unit[some].T >= floor - _ROUNDING
            yield self._checked(rows, some, near)

    def _checked(self, rows: Tensor, columns: Tensor, near: Tensor) -> tuple[Tensor, Tensor]:
        """Of the pairs that may reach the similarity, those that do."""
        first, second = near.nonzero(as_tuple=True)
        if len(first) * _SPARSE > near.numel():
            moments = same_tower_cosines(self._directed(rows), self._directed(columns), self.shape)
            first, second = (near & self.reach.holds(moments.mean, moments.variance)).nonzero(as_tuple=True)
            return rows[first], columns[second]
        first, second = rows[first], columns[second]
        kept = [torch.zeros(0, dtype=torch.bool, device=near.device)]
        for block in row_blocks(len(first), self._width, _GATHERED):
            pair = self._directed(first[block]), self._directed(second[block])
            kept.append(self.reach.holds(*paired_cosines(*pair, self.shape)))
        mask = torch.cat(kept)
        return first[mask], second[mask]


def stars(neighbours: Neighbours, advance: Callable[[int], object] = lambda count: None) -> Tensor:  # [N]
    """Of each item, which one is kept in its place: itself, or an earlier one that it is a near-copy of.

    Args:
        neighbours: of items in the order of preference.
        advance: told how many items are dealt with.
    """
    count = len(neighbours)
    device = neighbours.device
    keeper = torch.full((count,), -1, dtype=torch.long)
    for start in range(0, count, _ROWS):
        block = torch.arange(start, min(start + _ROWS, count))
        rows = block[keeper[block] < 0]
        columns = torch.arange(start, count)
        columns = columns[keeper[columns] < 0]
        pairs = [torch.stack(found).cpu() for found in neighbours.of(rows.to(device), columns.to(device))]
        first, second = torch.cat(pairs, dim=1) if pairs else torch.zeros(2, 0, dtype=torch.long)
        later = second > first
        first, second = first[later], second[later]
        order = torch.argsort(first, stable=True)
        first, second = first[order], second[order]
        ends = torch.searchsorted(first, rows, right=True)
        begins = torch.searchsorted(first, rows)
        for row, begin, end in zip(rows.tolist(), begins.tolist(), ends.tolist(), strict=True):
            if keeper[row] >= 0:
                continue
            taken = second[begin:end]
            keeper[taken[keeper[taken] < 0]] = row
            keeper[row] = row
        advance(len(block))
    return keeper
