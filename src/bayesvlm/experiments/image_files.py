"""Features of image files, a batch at a time: from the cache where the same contents were encoded before."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from torch import Tensor

from bayesvlm.core.features import Features
from bayesvlm.data.cache import FeatureCache
from bayesvlm.experiments.feature_store import FeatureStore, note_unreadable
from bayesvlm.images.files import ImageFile, SkippedImages
from bayesvlm.models.streaming import EncodedBatch, stream_pixels

_KEPT = 128  # files that are kept together in the cache: so many are lost at most when a run is interrupted
_FEW = 64  # files that are encoded sooner than the model's weights are hashed to look for them


@dataclass(frozen=True, eq=False)
class FileBatch:
    """Some files, one after another: those that could be read, with their features."""

    files: Sequence[Path]
    read: list[int]  # [n], which of them could be read
    features: Features  # [n]

    @property
    def seen(self) -> int:
        """How many files, with those that could not be read."""
        return len(self.files)

    @property
    def paths(self) -> list[Path]:
        """[n], of those that could be read."""
        return [self.files[place] for place in self.read]

    def after(self, count: int) -> FileBatch:
        """The same without the first so many files."""
        kept = [row for row, place in enumerate(self.read) if place >= count]
        read = [self.read[row] - count for row in kept]
        return FileBatch(self.files[count:], read, self.features[kept]) if count else self


def encode_files(
    store: FeatureStore, paths: Sequence[Path], skipped: SkippedImages, batch_size: int = 64, start: int = 0
) -> Iterator[FileBatch]:
    """The files in batches, in order; what cannot be read is skipped and noted.

    Features are kept in the cache of the store by what the files hold, so that the same files asked of other classes,
    or after an interruption, are not encoded again. A few files alone are not worth it.

    Args:
        batch_size: how many images go through the model at once.
        start: how many files to pass over. They are in no batch, but may be encoded with those that they are kept with.
    """
    cache = store.cache if len(paths) >= _FEW else None
    passed = start % _KEPT
    places = range(start - passed, len(paths), _KEPT)
    blocks = (_look_up(paths[place : place + _KEPT], store, cache, skipped) for place in places)
    stream = partial(store.stream, batch_size=batch_size, total=len(paths))
    for block in blocks:
        whole = _encoded(chain([block], blocks), cache, skipped, stream) if block.kept is None else [block.kept]
        for batch in whole:
            yield batch.after(passed)
            passed = 0


@dataclass(frozen=True, eq=False)
class _Block:
    """Files that are kept together in the cache."""

    paths: Sequence[Path]
    key: dict[str, Any] | None  # in the cache; None without one
    kept: FileBatch | None = None  # where it is there already


def _look_up(paths: Sequence[Path], store: FeatureStore, cache: FeatureCache | None, skipped: SkippedImages) -> _Block:
    if cache is None:
        return _Block(paths, None)
    key = {**store.image_identity, "files": [_content(path) for path in paths]}
    entry = cache.get(key)
    if entry is None:
        return _Block(paths, key)
    read: list[int] = entry.notes["read"]
    if not still_unreadable([path for place, path in enumerate(paths) if place not in read], store, skipped):
        return _Block(paths, key)
    return _Block(paths, key, FileBatch(paths, read, Features(**entry.tensors)))


def still_unreadable(paths: Sequence[Path], store: FeatureStore, skipped: SkippedImages) -> bool:
    """Whether none of these files, which could not be read once, can be read now; why not is noted."""
    for batch in stream_pixels(store.adapter.preprocessor, map(ImageFile, paths), workers=0):
        if batch.places:
            return False
        note_unreadable(batch, skipped)
    return True


def _encoded(
    blocks: Iterable[_Block],
    cache: FeatureCache | None,
    skipped: SkippedImages,
    stream: Callable[[Iterator[ImageFile]], Generator[EncodedBatch, None, None]],
) -> Iterator[FileBatch]:
    """Blocks through one stream, up to one that is kept already."""
    begun: deque[_Block] = deque()

    def files() -> Iterator[ImageFile]:
        for block in blocks:
            begun.append(block)
            if block.kept is not None:
                return
            yield from map(ImageFile, block.paths)

    rows = _Rows()
    with closing(stream(files())) as batches:
        for batch in batches:
            note_unreadable(batch, skipped)
            rows.add(batch)
            while begun and begun[0].kept is None and rows.seen >= len(begun[0].paths):
                block = begun.popleft()
                read, features = rows.take(len(block.paths))
                if cache is not None and block.key is not None and read:
                    cache.put(block.key, features.tensors(), {"read": read})
                yield FileBatch(block.paths, read, features)
    yield from (block.kept for block in begun if block.kept is not None)


class _Rows:
    """Features of files on their way from batches to blocks, whose sizes have nothing to do with each other."""

    def __init__(self) -> None:
        self.seen = 0  # files that are here, with those that could not be read
        self._first = 0  # the place of the first of them
        self._places: list[int] = []
        self._features: list[Features] = []

    def add(self, batch: EncodedBatch) -> None:
        self.seen += batch.seen
        self._places += batch.places
        self._features.append(batch.features.to("cpu"))

    def take(self, count: int) -> tuple[list[int], Features]:
        """Of the first so many files: which of them could be read, and their features."""
        read = [place - self._first for place in self._places if place < self._first + count]
        features = Features.concatenate(self._features)
        self._features, self._places = [features[len(read) :]], self._places[len(read) :]
        self._first, self.seen = self._first + count, self.seen - count
        return read, features[: len(read)].each(Tensor.clone)


def _content(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return "unreadable"
