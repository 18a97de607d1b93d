"""Image-text pairs by name: splits of the embedded world, several joined by +, or whatever `open_pairs` finds."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.labelled.registry import data_root
from bayesvlm.data.pairs import PairSet
from bayesvlm.data.pairs.batches import Pair, PairBatches, decoded_pairs
from bayesvlm.data.pairs.sources import open_pairs
from bayesvlm.images.decoding import to_rgb
from bayesvlm.images.files import ReadImage, SkippedImages
from bayesvlm_world import SPLITS, Split, load

_BATCH = 64


@dataclass(frozen=True)
class WorldPairs:
    """Images of splits of the world with their captions, one split after the other."""

    splits: tuple[Split, ...]

    @property
    def skipped(self) -> SkippedImages:
        """Nothing: every image of the world can be read."""
        return SkippedImages(strict=True)

    @property
    def size(self) -> int:
        return sum(map(len, self.splits))

    def __iter__(self) -> PairBatches:
        return self.decoded(to_rgb)

    def decoded(self, read: ReadImage) -> PairBatches:
        """The batches, their images as `read` decodes them."""
        samples = chain.from_iterable(zip(s.keys, s.images, s.captions, strict=True) for s in self.splits)
        return decoded_pairs((Pair(*sample) for sample in samples), _BATCH, self.skipped, read)

    def fingerprint(self) -> str:
        """A hash of the images and captions."""
        digest = hashlib.sha256()
        for split in self.splits:
            digest.update(split.fingerprint().encode())
            digest.update("\0".join(split.captions).encode())
        return digest.hexdigest()


def named_pairs(name: str, root: str | Path | None = None) -> PairSet:
    """Splits of the world ("train", "emojione-colour+openmoji-colour"); a folder, also below `root`; a Hub id.

    NAME:SPLIT chooses a split of a data set, in a folder or on the Hub.

    Args:
        root: the folder of the known data sets; None takes $BAYESVLM_DATA, or ./data where that is not set.
    """
    parts = name.split("+")
    if all(part in SPLITS for part in parts):
        if Path(name).is_dir():
            raise BayesVLMError(
                f"{name!r} is a split of the embedded world and a folder here; write ./{name} for the folder, or run "
                "the command where there is no such folder."
            )
        return WorldPairs(tuple(map(load, parts)))
    if folder := _folder(name, root):
        return open_pairs(folder)
    source, _, split = name.partition(":")
    if split:
        return open_pairs(_folder(source, root) or source, split=split)
    raise BayesVLMError(
        f"There are no pairs {name!r}: it is no split of the embedded world, no folder here or in {data_root(root)}, "
        "and no OWNER/NAME:SPLIT of the Hub; put shards or images with captions there, or name others."
    )


def _folder(name: str, root: str | Path | None) -> Path | None:
    """The folder of that name, here or below the root."""
    here = Path(name).expanduser()
    return next((folder for folder in (here, data_root(root) / here) if name and folder.is_dir()), None)
