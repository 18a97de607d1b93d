"""Splits of the world as image-text pairs: every drawing with its caption."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

from bayesvlm.data.pairs.batches import Pair, StoredPairs
from bayesvlm.images.files import SkippedImages
from bayesvlm_world.splits import Split


@dataclass(frozen=True)
class WorldPairs(StoredPairs):
    """A set of pairs (`data.PairSet`): images of splits of the world with their captions, split after split."""

    splits: tuple[Split, ...]
    batch_size: int = 64
    skipped: SkippedImages = field(default_factory=lambda: SkippedImages(strict=True))  # every image can be read

    @property
    def size(self) -> int:
        """The number of pairs."""
        return sum(map(len, self.splits))

    def stored(self) -> Iterator[Pair]:
        """The pairs one after another, nothing decoded."""
        samples = chain.from_iterable(zip(s.keys, s.images, s.captions, strict=True) for s in self.splits)
        return (Pair(*sample) for sample in samples)

    def fingerprint(self) -> str:
        """A hash of the images and captions."""
        digest = hashlib.sha256()
        for split in self.splits:
            digest.update(split.fingerprint().encode())
            digest.update("\0".join(split.captions).encode())
        return digest.hexdigest()
