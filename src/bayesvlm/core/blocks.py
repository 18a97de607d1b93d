"""Rows a block at a time: memory is bounded however many rows there are."""

from __future__ import annotations

from collections.abc import Iterator

NUMBERS = 2**24
"""What a block holds where nothing else is said: 64 MiB in float32."""


def row_blocks(rows: int, columns: int, numbers: int = NUMBERS) -> Iterator[slice]:
    """Slices of rows that together cover all of them, one after another.

    Args:
        rows: how many there are.
        columns: numbers that each row takes.
        numbers: the most that a block holds; a single row may be larger.

    Example:
        >>> list(row_blocks(5, 10, numbers=25))
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    step = max(1, numbers // max(1, columns))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))
