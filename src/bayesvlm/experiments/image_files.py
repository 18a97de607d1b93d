"""Features of image files, a batch at a time: from the cache where the same contents were encoded before."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bayesvlm.core.features import Features
from bayesvlm.data.images import SkippedImages
from bayesvlm.experiments.encoding import Encoder

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
        chunk = list(paths[start : start + BATCH])
        key = None if cache is None else {**encoder.identity, "files": [_content(path) for path in chunk]}
        kept = None if cache is None or key is None else cache.get(key)
        if kept is not None:
            read = set(kept.notes["read"])
            skipped.decode([path for place, path in enumerate(chunk) if place not in read])  # to say why
            yield FileBatch([chunk[place] for place in sorted(read)], Features(**kept.tensors), len(chunk))
            continue
        images = skipped.decode(chunk)
        places = [place for place, image in enumerate(images) if image is not None]
        features = None
        if places:
            features = encoder.adapter.encode_images([images[place] for place in places], progress=False).to("cpu")
            if cache is not None and key is not None:
                cache.put(key, features.tensors(), {"read": places})
        yield FileBatch([chunk[place] for place in places], features, len(chunk))


def _content(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return "unreadable"
