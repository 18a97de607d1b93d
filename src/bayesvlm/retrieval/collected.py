"""All items of an index, or of a list, with what their cosines are computed from: to compare each with each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch

from bayesvlm.core.blocks import row_blocks
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import Tower
from bayesvlm.core.features import Features
from bayesvlm.core.printing import described
from bayesvlm.images.decoding import as_inputs
from bayesvlm.models.adapter import as_texts
from bayesvlm.retrieval.columns import OWN, from_arrow
from bayesvlm.retrieval.filters import Where, as_sql
from bayesvlm.retrieval.index import Index
from bayesvlm.retrieval.rows import Rows, shape_of
from bayesvlm.vlm import BayesVLM


@dataclass(frozen=True, eq=False)
class Collected:
    """Items to be compared.

    Args:
        ids, paths: of each.
        rows: what is kept of each.
        order: their places, the preferred first.
    """

    ids: Sequence[str]
    paths: Sequence[str | None]
    rows: Rows
    order: Sequence[int]

    __repr__ = described

    def __len__(self) -> int:
        return len(self.ids)


def of_index(index: Index, where: Where | None, prefer: str | Sequence[float] | None) -> Collected:
    """The rows of an index, by id where nothing else is preferred; arguments as for `near_duplicates`."""
    if prefer is not None and not isinstance(prefer, str):
        raise BayesVLMError("prefer is a list of numbers; of an index it is the name of a column.")
    told: list[dict[str, Any]] = []
    rows = []
    for some, part in index_rows(index, where, [] if prefer is None else [prefer]):
        told += some
        rows.append(part)
    by_id = sorted(range(len(told)), key=lambda place: str(told[place]["id"]))
    values = [0.0 if prefer is None else _number(told[place][prefer], prefer) for place in by_id]
    order = [by_id[place] for place in preferred(values)]
    ids, paths = [row["id"] for row in told], [row["path"] for row in told]
    return Collected(ids, paths, together(rows, index.vlm, index.tower), order)


def index_rows(
    index: Index, where: Where | None = None, columns: Sequence[str] = ()
) -> Iterator[tuple[list[dict[str, Any]], Rows]]:
    """The rows of an index a batch at a time, in no order: what is told of each, and what its cosines are made of."""
    import pyarrow as pa

    there = index.types
    for column in columns:
        if column not in there:
            raise BayesVLMError(f"There is no column {column!r}; the index has {', '.join(sorted(there))}.")
    told = list(dict.fromkeys(["id", "path", *columns]))
    for batch in index._store.read(as_sql(where, there), list(dict.fromkeys([*told, *OWN]))):
        table = pa.Table.from_batches([batch])
        yield table.select(told).to_pylist(), from_arrow(table)


def of_items(
    vlm: BayesVLM,
    items: Any,
    ids: Sequence[str] | None,
    prefer: str | Sequence[float] | None,
    tower: Tower,
    progress: bool | None,
) -> Collected:
    """Images, texts or Features; arguments as for `near_duplicates`."""
    shape_of(vlm, tower)  # refuses what cannot be compared before it is encoded
    if items is None:
        raise BayesVLMError("There is nothing to compare: pass images, or Features, beside the model.")
    features, names = _features(vlm, items, tower, progress)
    count = len(features)
    paths: list[str | None] = [*names] if names is not None and tower == "image" else [None] * count
    named = list(ids) if ids is not None else names or [str(place) for place in range(count)]
    if len(named) != count:
        raise BayesVLMError(f"There are {len(named)} ids for {count} items; give one per item.")
    if prefer is not None and (isinstance(prefer, str) or len(prefer) != count):
        raise BayesVLMError(f"prefer must hold a number for each of the {count} items.")
    order = list(range(count)) if prefer is None else preferred([float(number) for number in prefer])
    rows = (
        Rows.of(vlm, features[block], tower, named[block]) for block in row_blocks(count, features.activations.shape[1])
    )
    return Collected(named, paths, together(rows, vlm, tower), order)


def preferred(numbers: Sequence[float | None]) -> list[int]:
    """Places in the order of preference: higher numbers first, equal ones as they come, what has none last."""
    values = [float("-inf") if number is None or number != number else number for number in numbers]
    return sorted(range(len(values)), key=lambda place: (-values[place], place))


def together(parts: Iterable[Rows], vlm: BayesVLM, tower: Tower) -> Rows:
    """Rows one after another."""
    listed = list(parts) or [_none(vlm, tower)]
    return Rows(*(torch.cat([getattr(part, field.name) for part in listed]) for field in fields(Rows)))


def _none(vlm: BayesVLM, tower: Tower) -> Rows:
    projection = vlm.image if tower == "image" else vlm.text
    nothing = torch.zeros(0)
    white = torch.zeros(0, projection.input_width, dtype=torch.half)
    return Rows(torch.zeros(0, projection.embedding_width), white, nothing, nothing)


def _features(vlm: BayesVLM, items: Any, tower: Tower, progress: bool | None) -> tuple[Features, list[str] | None]:
    """Of the items, and what they are called where they are paths or texts."""
    if isinstance(items, Features):
        return (vlm.image_features(items) if tower == "image" else vlm.text_features(items)), None
    if tower == "text":
        texts = as_texts(items)
        return vlm.text_features(texts, progress=progress), texts
    images = list(as_inputs(items))
    paths = all(isinstance(image, str | os.PathLike) for image in images)
    return vlm.image_features(images, progress=progress), [str(image) for image in images] if paths else None


def _number(value: Any, column: str) -> float | None:
    if value is not None and not isinstance(value, int | float):
        raise BayesVLMError(f"prefer={column!r} holds {str(value)[:40]!r}; it must be a column of numbers.")
    return value
