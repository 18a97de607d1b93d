r"""How an N x K contrast is cut into tiles that fit the memory allowed.

A row of the softmax needs its total before anything else about it is known, and the column sums `sum_i w_i pi_ik` need
the totals of all their rows: rescaling accumulators as totals grow (the flash-style way) cannot give them. So either a
tile holds *all* columns of its rows, and one product of N x K x d serves both passes; or the logits are computed twice,
four products instead of three. A tile of n whole rows takes `n K` entries, and from some n on products run at full
speed, which is why whole rows come first, then kept targets, and targets made anew for every tile last.
"""

from __future__ import annotations

from typing import NamedTuple

ROW_ARRAYS = 12  # arrays [rows of a tile, d] that a caller makes, at most at a time
_PITCH = 16  # entries: rows of a tile begin at multiples of 64 bytes, which matrix units and vector loads want


class Tiling(NamedTuple):
    """What fits.

    Attributes:
        kept: unit targets [K, d] are made once and stay; else every tile makes its own.
        rows, columns: of a tile, at most.
    """

    kept: bool
    rows: int
    columns: int

    @property
    def pitch(self) -> int:
        """Entries from one row of a tile to the next."""
        return pitch(self.columns)


def pitch(columns: int) -> int:
    """Entries from one row of a tile of so many columns to the next."""
    return -(-columns // _PITCH) * _PITCH


def tiling(
    sources: int,
    targets: int,
    width: int,
    *,
    itemsize: int,
    entry: int,
    memory: int,
    least_rows: int,
    kept: bool,
) -> Tiling:
    """The tiles for `sources` rows against `targets` columns.

    Args:
        sources, targets, width: N, K, d.
        itemsize: bytes of a number in the arrays [rows, d] and in the targets.
        entry: bytes that one entry of a tile takes, everything made of it included.
        memory: bytes in total.
        least_rows: of a tile of whole rows; with fewer, products run so slowly that a product more is cheaper.
        kept: whether unit targets are at hand already, and may stay.
    """
    unit_targets = targets * width * itemsize
    per_row = ROW_ARRAYS * width * itemsize
    whole = (memory - unit_targets) // (per_row + pitch(targets) * entry)
    if kept and whole >= min(sources, least_rows):
        return Tiling(True, _even(sources, max(1, whole), least_rows), targets)
    kept = kept and unit_targets <= memory // 2
    left = memory - unit_targets if kept else memory // 2
    rows = max(1, min(sources, left // (2 * max(per_row, _PITCH * entry))))
    columns = max(1, min(targets, left // (2 * rows * entry) // _PITCH * _PITCH))
    if not kept:  # the other half of the memory: unit targets of a tile, and what making them takes
        columns = max(1, min(columns, memory // (2 * per_row)))
    return Tiling(kept, rows, columns)


def _even(count: int, most: int, multiple: int) -> int:
    """Rows of a tile: about equally many in each, rather than full tiles and a sliver; at most `most`."""
    most = min(count, most // multiple * multiple or most)
    tiles = -(-count // most)
    even = -(-count // tiles)
    return min(most, -(-even // multiple) * multiple)
