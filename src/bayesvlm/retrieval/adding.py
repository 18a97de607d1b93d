"""What is added to an index: items with their names, and their rows a commit at a time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesvlm.core.errors import BayesVLMError, check_count
from bayesvlm.core.estimation import Tower
from bayesvlm.core.features import Features
from bayesvlm.images.decoding import as_inputs
from bayesvlm.models.streaming import stream_features
from bayesvlm.plain import BATCH_SIZE
from bayesvlm.retrieval.columns import check_columns, to_arrow
from bayesvlm.retrieval.rows import Rows
from bayesvlm.vlm import BayesVLM

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK = 8192
"""Rows of one commit, at most."""
_PATIENCE = 30  # seconds of encoding that a commit is put off for, and that an interruption loses at most


@dataclass(frozen=True, eq=False)
class Items:
    """Items of one tower, each with what is kept beside its embedding."""

    given: Features | list[Any]
    ids: list[str]
    paths: list[str | None]
    columns: Mapping[str, pa.Array]

    @classmethod
    def of(
        cls,
        tower: Tower,
        given: Any,
        ids: Sequence[str | os.PathLike[str]] | None,
        paths: Sequence[str | Path | None] | None,
        columns: Mapping[str, Sequence[Any]] | None,
    ) -> Items:
        """Arguments as for `Index.add`."""
        listed = _listed(given, tower)
        if not len(listed):
            raise BayesVLMError("There are no items to add: the list is empty; pass at least one.")
        named, files = _names(listed, tower, ids, paths)
        return cls(listed, named, files, check_columns(columns, len(named)))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, places: Sequence[int]) -> Items:
        """Some of them."""
        given = self.given[list(places)] if isinstance(self.given, Features) else [self.given[n] for n in places]
        ids, paths = [self.ids[place] for place in places], [self.paths[place] for place in places]
        return Items(given, ids, paths, self._columns(places))

    def tables(
        self, vlm: BayesVLM, tower: Tower, batch_size: int | None, workers: int | None
    ) -> Iterator[tuple[pa.Table, dict[int, str]]]:
        """Rows to commit together, and why, by place, images could not be read that would be among them."""
        for places, features, reasons in self._encoded(vlm, tower, batch_size, workers):
            named = [self.ids[place] for place in places], [self.paths[place] for place in places]
            yield to_arrow(*named, Rows.of(vlm, features, tower, named[0]), self._columns(places)), reasons

    def _columns(self, places: Sequence[int]) -> dict[str, pa.Array]:
        return {name: values.take(list(places)) for name, values in self.columns.items()}

    def _encoded(
        self, vlm: BayesVLM, tower: Tower, batch_size: int | None, workers: int | None
    ) -> Iterator[tuple[list[int], Features, dict[int, str]]]:
        if isinstance(self.given, Features) or tower == "text":
            for start in range(0, len(self), CHUNK):
                part = self.given[start : start + CHUNK]
                found = part if isinstance(part, Features) else vlm.text_features(part, progress=False)
                yield list(range(start, start + len(found))), found, {}
            return
        size = BATCH_SIZE if batch_size is None else check_count("batch_size", batch_size)
        places: list[int] = []
        features: list[Features] = []
        reasons: dict[int, str] = {}
        begun = time.monotonic()
        for batch in stream_features(vlm.encoder("images"), self.given, batch_size=size, workers=workers):
            places += batch.places
            features.append(batch.features)
            reasons |= {place: str(why) for place, why in batch.unreadable.items()}
            if len(places) + size > CHUNK or time.monotonic() - begun > _PATIENCE:
                yield places, Features.concatenate(features), reasons
                places, features, reasons, begun = [], [], {}, time.monotonic()
        if features:
            yield places, Features.concatenate(features), reasons


def as_ids(ids: Iterable[str | os.PathLike[str]] | str | os.PathLike[str]) -> list[str]:
    """Texts that items can be called by; a path is one."""
    listed = [ids] if isinstance(ids, str | os.PathLike) or not isinstance(ids, Iterable) else list(ids)
    named = [os.fspath(each) if isinstance(each, os.PathLike) else each for each in listed]
    for each in named:
        if not isinstance(each, str) or not each:
            raise BayesVLMError(f"An id is {each!r}; ids are texts, and not empty.")
        _check_text("id", each)
    return named


def is_folder(item: Any) -> bool:
    """Whether it is the path of one."""
    return isinstance(item, str | os.PathLike) and os.path.isdir(item)


def _listed(given: Any, tower: Tower) -> Features | list[Any]:
    if isinstance(given, Features):
        return given
    if tower == "image":
        return list(as_inputs(given))
    texts = [given] if isinstance(given, str) else list(given)
    for place, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            shown = repr(text) if isinstance(text, str) else type(text).__name__
            raise BayesVLMError(f"Item {place} is {shown}; this is an index of texts, which say something each.")
    return texts


def _names(
    given: Features | list[Any],
    tower: Tower,
    ids: Sequence[str | os.PathLike[str]] | None,
    paths: Sequence[str | Path | None] | None,
) -> tuple[list[str], list[str | None]]:
    """What each item is called, and where its file lies."""
    count = len(given)
    own = None
    if not isinstance(given, Features) and all(isinstance(item, str | Path) for item in given):
        own = [str(item) for item in given]
    files: list[str | None] = [*own] if own is not None and tower == "image" else [None] * count
    if paths is not None:
        files = [None if path is None else str(path) for path in paths]
    files = [None if path is None else _whole(path) for path in files]
    if ids is None and own is None:
        raise BayesVLMError(f"ids are missing: these items have no names; pass ids=[...], {count} texts.")
    named = as_ids(own if ids is None else ids)  # type: ignore[arg-type]
    listings: tuple[tuple[str, Sequence[str | None]], ...] = (("ids", named), ("paths", files))
    for what, listed in listings:
        if len(listed) != count:
            raise BayesVLMError(f"There are {len(listed)} {what} for {count} items; give one per item.")
    for path in files:
        _check_text("path", path or "")
    check_distinct(named)
    return named, files


def _whole(path: str) -> str:
    """Of a file here from the root, which means the same file wherever one looks from; of others as it was given."""
    return os.path.abspath(path) if not os.path.isabs(path) and os.path.lexists(path) else path


def check_distinct(ids: Iterable[str]) -> None:
    """Refuse ids that are given twice."""
    seen: set[str] = set()
    for each in ids:
        if each in seen:
            raise BayesVLMError(f"The id {each!r} is given twice; every item needs one of its own.")
        seen.add(each)


def _check_text(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BayesVLMError(
            f"The {what} {text!r} is no text (a file name that is not UTF-8?); rename the file, or give another {what}."
        ) from None
