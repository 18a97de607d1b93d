"""Image-text pairs in webdataset shards, laid out as img2dataset writes them (LAION, CC12M).

00000.tar, 00001.tar ... or .tar.gz     KEY.jpg (or .png, .webp), KEY.txt, the caption, and KEY.json
00000_stats.json                        how many samples the shard has; other files beside the shards are left alone
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from glob import glob, has_magic
from pathlib import Path

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.pairs.batches import Pair, StoredPairs
from bayesvlm.data.pairs.shard_files import ShardIdentity, read_shard, told_samples
from bayesvlm.images.files import SkippedImages

_SHARDS = (".tar", ".tar.gz")
_BRACES = re.compile(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}")  # {00000..00099} or {train,val}


def find_shards(folder: Path) -> list[Path]:
    """The shards of a folder in the order of their numbers; hidden files left out."""
    found = [path for pattern in ("*.tar", "*.tar.gz") for path in folder.glob(pattern) if path.is_file()]
    return sorted((path for path in found if not path.name.startswith(".")), key=_number)


def is_shard(path: Path) -> bool:
    """Whether a file is called .tar or .tar.gz."""
    return path.name.lower().endswith(_SHARDS)


def is_shard_pattern(name: str) -> bool:
    """Whether a name stands for several shards, as webdataset writes them: `{00000..00099}.tar`, `*.tar`."""
    return name.lower().endswith(_SHARDS) and any(sign in name for sign in "*?[{")


def expand_shards(pattern: Path) -> list[Path]:
    """The files that a pattern stands for: those between braces whether they are there or not, in the order written."""
    found: list[Path] = []
    for name in without_braces(str(pattern)):
        matches = [Path(match) for match in glob(name)] if has_magic(name) else [Path(name)]
        found += sorted(matches, key=_number)
    return found


def without_braces(name: str) -> Iterator[str]:
    """Every name that one with braces stands for.

    >>> list(without_braces("{008..010}.tar")), list(without_braces("{train,val}/0.tar"))
    (['008.tar', '009.tar', '010.tar'], ['train/0.tar', 'val/0.tar'])
    """
    found = _BRACES.search(name)
    if found is None:
        yield name
        return
    first, last, listed = found.groups()
    if listed is None:
        choices = [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    else:
        choices = listed.split(",")
    for choice in choices:
        yield from without_braces(f"{name[: found.start()]}{choice}{name[found.end() :]}")


@dataclass(frozen=True)
class PairShards(StoredPairs):
    """A set of pairs (`data.pairs.PairSet`), shard after shard.

    A sample without an image or without a caption is skipped and noted. So is the rest of a shard that cannot be read
    to its end; the samples before the damage count, and reading goes on with the next shard.

    Args:
        folder: where the shards lie.
        shards: their files, in order.
        batch_size: pairs in a batch.
        skipped: where samples and shards that cannot be read are counted.
    """

    folder: Path
    shards: tuple[Path, ...]
    batch_size: int = 64
    skipped: SkippedImages = field(default_factory=SkippedImages)

    @classmethod
    def open(cls, folder: str | Path, batch_size: int = 64, strict: bool = False) -> PairShards:
        """List the shards of a folder.

        Args:
            folder: a folder with .tar or .tar.gz files.
            batch_size: pairs in a batch.
            strict: a shard, sample or image that cannot be read is an error, not skipped.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise BayesVLMError(f"{folder} is not a folder; give the folder with the tar shards.")
        shards = find_shards(folder)
        if not shards:
            raise BayesVLMError(f"{folder} holds no tar shards; expected files such as 00000.tar in it.")
        return cls.of(shards, batch_size, strict)

    @classmethod
    def of(cls, shards: Sequence[Path], batch_size: int = 64, strict: bool = False) -> PairShards:
        """These shards, in this order; see `open`."""
        return cls(shards[0].parent, tuple(shards), batch_size, SkippedImages(strict))

    @property
    def size(self) -> int | None:
        """The number of samples, where img2dataset's statistics lie beside every shard."""
        counts = [told_samples(shard) for shard in self.shards]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def fingerprint(self) -> str:
        """A hash of the shards' names, sizes, first and last 64 KiB: terabytes are not read twice to begin a fit.

        What is changed in the middle of a shard goes unnoticed.
        """
        digest = hashlib.sha256()
        for shard in self.shards:
            ShardIdentity.of(shard, digest)
        return digest.hexdigest()

    def stored(self) -> Iterator[Pair]:
        """The pairs one after another, nothing decoded; what has no image or no caption is noted as skipped."""
        found = False
        for shard in self.shards:
            for pair in read_shard(shard):
                if isinstance(pair.image, BayesVLMError):
                    self.skipped.note(pair.name, pair.image)
                else:
                    found = True
                    yield pair
        if not found:
            raise self.no_pairs()

    def no_pairs(self) -> BayesVLMError:
        """What to say where they hold no pair."""
        return BayesVLMError(
            f"{self.folder}: none of its {len(self.shards)} shard(s) holds a sample with an image and a caption; "
            "expected KEY.jpg with KEY.txt, or with a caption in KEY.json."
        )


def _number(path: Path) -> list[tuple[int, str]]:
    """A key that sorts 10.tar after 9.tar."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path.name)]
