"""Splits of the world as image-text pairs: every drawing with its caption."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from bayesvlm.data.pairs.batches import ListedPairs, Pair
from bayesvlm.images.files import SkippedImages
from bayesvlm_world.splits import Split


@dataclass(frozen=True)
class WorldPairs(ListedPairs):
    """A set of pairs (`data.PairSet`): images of splits of the world with their captions, split after split."""

    splits: tuple[Split, ...]
    batch_size: int = 64
    skipped: SkippedImages = field(default_factory=lambda: SkippedImages(strict=True))  # every image can be read

    @property
    def size(self) -> int:
        """The number of pairs."""
        return sum(map(len, self.splits))

    @property
    def title(self) -> str:
        """The names of the splits."""
        return "+".join(split.name for split in self.splits)

    def pair(self, row: int) -> Pair:
        """One of the pairs, not decoded."""
        for split in self.splits:
            if row < len(split):
                return Pair(split.keys[row], split.images[row], split.captions[row])
            row -= len(split)
        raise IndexError(row)

    def fingerprint(self) -> str:
        """A hash of the images and captions."""
        return _fingerprint(self.splits)

    def lists(self) -> list[tuple[str, str, int]]:
        """(name, fingerprint, size) of every split."""
        return [(split.name, _fingerprint([split]), len(split)) for split in self.splits]


def _fingerprint(splits: Sequence[Split]) -> str:
    digest = hashlib.sha256()
    for split in splits:
        digest.update(split.fingerprint().encode())
        digest.update("\0".join(split.captions).encode())
    return digest.hexdigest()
