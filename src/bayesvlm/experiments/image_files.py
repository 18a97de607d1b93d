"""Features of image files, a batch at a time: from the cache where the same contents were encoded before."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from PIL import Image

from bayesvlm.core.features import Features
from bayesvlm.data.cache import FeatureCache
from bayesvlm.experiments.encoding import Encoder
from bayesvlm.images.files import ImageFile, SkippedImages, decoded_batches, read_stored

BATCH = 128  # files that are encoded and kept together: so many are lost at most when a run is interrupted
_FEW = 64  # files that are encoded sooner than the model's weights are hashed to look for them


@dataclass(frozen=True, eq=False)
class FileBatch:
    """Some files, one after another: those that could be read, with their features."""

    paths: list[Path]
    features: Features | None  # [n]; None where no file could be read
    seen: int  # files, with those that could not be read


def encode_files(encoder: Encoder, paths: Sequence[Path], skipped: SkippedImages) -> Iterator[FileBatch]:
    """The files in batches, in order; what cannot be read is skipped and noted.

    Batches are kept in the encoder's cache by what the files hold, so that the same files asked of other classes, or
    after an interruption, are not encoded again. A few files alone are not worth it.
    """
    cache = encoder.cache if len(paths) >= _FEW else None
    for start in range(0, len(paths), BATCH):
        chunk = paths[start : start + BATCH]
        read, features = _encode(encoder, chunk, skipped) if cache is None else _kept(cache, encoder, chunk, skipped)
        yield FileBatch([chunk[place] for place in read], features, len(chunk))


def _encode(encoder: Encoder, chunk: Sequence[Path], skipped: SkippedImages) -> tuple[list[int], Features | None]:
    """Which of the files can be read, and their features."""
    files = [ImageFile(path) for path in chunk]
    place = {id(file): index for index, file in enumerate(files)}  # a path may be given twice
    read, parts = [], []
    for batch in decoded_batches(files, skipped, _reader(encoder), BATCH):
        if batch.images:
            read += [place[id(file)] for file in batch.items]
            parts.append(encoder.adapter.encode_images(batch.images, progress=False).to("cpu"))
    return read, Features.concatenate(parts) if parts else None


def _kept(
    cache: FeatureCache, encoder: Encoder, chunk: Sequence[Path], skipped: SkippedImages
) -> tuple[list[int], Features | None]:
    """The same from the cache, where it is put if it is not there."""
    key = {**encoder.identity, "files": [_content(path) for path in chunk]}
    if (entry := cache.get(key)) is not None:
        read = entry.notes["read"]
        others = [ImageFile(path) for place, path in enumerate(chunk) if place not in read]
        if all(image is None for _, image in skipped.decode(others, _reader(encoder))):  # which says why
            return read, Features(**entry.tensors)
    read, features = _encode(encoder, chunk, skipped)
    if features is not None:
        cache.put(key, features.tensors(), {"read": read})
    return read, features


def _reader(encoder: Encoder) -> Callable[[ImageFile], Image.Image]:
    return partial(read_stored, read=encoder.adapter.read_image)


def _content(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return "unreadable"
