"""Which ids an index has already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_LOOKED_AT = 2**18  # rows at a time


@dataclass
class Known:
    """Which of some ids are in the table, as of a version of it; `Store.append` keeps it up to date."""

    ids: set[str]
    version: int


def among(batches: Iterable[pa.RecordBatch], ids: Sequence[str]) -> set[str]:
    """Which of these ids are in the batches: a few large ones at a time, as the ids are hashed for each time."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted, there = pa.array(ids, pa.string()), set()
    waiting: list[pa.Array] = []

    def look() -> None:
        if waiting:
            column = pa.chunked_array(waiting)
            there.update(column.filter(pc.is_in(column, value_set=wanted)).to_pylist())
            waiting.clear()

    for batch in batches:
        waiting.append(batch["id"])
        if sum(map(len, waiting)) >= _LOOKED_AT:
            look()
    look()
    return there
