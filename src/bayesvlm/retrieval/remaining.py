"""Whether the items that a calibration saw are still there: a few of them, drawn at random, are looked for again."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping

from bayesvlm.retrieval.filters import by_ids
from bayesvlm.retrieval.store import Store

SAMPLE = 200
"""Items that a calibration remembers, at most."""
_KEPT = "alpha"  # of each, which another image in its place has another of
_SAME = 1e-3  # relative: what another processor, or other company in a batch, may change of it


def sample(store: Store, seed: int = 0) -> dict[str, float]:
    """Some rows of an index, by id, each with a number that another image in its place would not have."""
    with store.reading():
        table = store.reader
        count = int(table.count_rows())
        places = random.Random(seed).sample(range(count), min(SAMPLE, count))
        found = store.own(table.take_offsets(sorted(places)).select(["id", _KEPT]).to_arrow())
    return dict(zip(found["id"].to_pylist(), found[_KEPT].to_pylist(), strict=True))


def remaining(store: Store, seen: Mapping[str, float]) -> float:
    """Which share of such rows is there as it was; they are looked for once in every state of the index."""
    if not seen:
        return 1.0
    return store.once(seen, lambda: _share(store, seen))


def _share(store: Store, seen: Mapping[str, float]) -> float:
    rows = (row for some in by_ids(seen) for batch in store.read(some, ["id", _KEPT]) for row in batch.to_pylist())
    return sum(math.isclose(row[_KEPT], seen[row["id"]], rel_tol=_SAME) for row in rows) / len(seen)
