"""Single shards of image-text pairs: what is in them, sample after sample; how many; what tells one from another."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.pairs.batches import Pair
from bayesvlm.data.tars import Place, find_samples, read_samples, uncompressed
from bayesvlm.images.files import SUFFIXES

PASSED = Pair("", b"", "")
"""In the place of a pair that is not wanted."""
_EDGE = 1 << 16  # bytes from the beginning and the end of a shard that its fingerprint is made of
_DIGITS = 16  # of a hash: enough to tell millions of shards apart


def read_shard(shard: Path, start: int = 0) -> Iterator[Pair]:
    """Every sample of a shard, and what is wrong with the shard where it cannot be read to its end, as one more.

    Args:
        start: samples before this one are `PASSED`; unread, where the shard is not compressed.
    """
    place = 0
    try:
        for sample in read_samples(shard, start):
            yield _pair(sample, shard) if place >= start else PASSED
            place += 1
    except BayesVLMError as error:
        yield Pair(str(shard), error, "") if place >= start else PASSED


def read_shuffled(shards: Sequence[Path], order: Callable[[int], Iterable[int]]) -> Iterator[Pair]:
    """The same of several shards in another order: in memory is where their samples lie, not what they hold.

    A compressed shard is laid out in a temporary file first.

    Args:
        order: from how many samples there are to their places, in the order that is wanted.
    """
    with ExitStack() as opened:
        files: list[IO[bytes] | None] = []
        found: list[tuple[int, Mapping[str, Any] | BayesVLMError]] = []
        for number, shard in enumerate(shards):
            files.append(None)
            try:
                files[number] = file = opened.enter_context(uncompressed(shard))
                for sample in find_samples(shard, file):
                    found.append((number, sample))
            except BayesVLMError as error:
                found.append((number, error))
            except OSError as error:
                found.append((number, BayesVLMError(f"The shard {shard} cannot be read: {error.strerror}.")))
        for place in order(len(found)):
            number, known = found[place]
            if isinstance(known, BayesVLMError):
                yield Pair(str(shards[number]), known, "")
            else:
                yield _pair({name: _at(files[number], where) for name, where in known.items()}, shards[number])


def count_samples(shard: Path) -> int:
    """How many samples a shard has: as the statistics beside it tell, else counted without reading what they hold."""
    told = told_samples(shard)
    if told is not None:
        return told
    count = 0
    try:
        for _ in find_samples(shard):
            count += 1
    except BayesVLMError:  # which is said when it is read
        pass
    return count


def told_samples(shard: Path) -> int | None:
    """The number of samples that img2dataset's statistics beside a shard tell."""
    try:
        written = json.loads((shard.parent / f"{shard.name.partition('.tar')[0]}_stats.json").read_bytes())
    except (OSError, ValueError):
        return None
    count = written.get("successes") if isinstance(written, dict) else None
    return count if isinstance(count, int) and count >= 0 else None


@dataclass(frozen=True)
class ShardIdentity:
    """What tells a shard from others, wherever a copy of it lies and whatever the copy is called.

    Args:
        name: of the file.
        content: a hash of its size, its first and its last 64 KiB.
        first: a hash of the first file in it, which stays the same when a shard grows.
    """

    name: str
    content: str
    first: str

    @classmethod
    def of(cls, shard: Path, digest: hashlib._Hash) -> ShardIdentity:
        """That of a file.

        Args:
            digest: of all shards, to which name, size and edges of this one are added: nothing is read twice.
        """
        try:
            size = shard.stat().st_size
            with shard.open("rb") as file:
                start = file.read(_EDGE)
                file.seek(-min(_EDGE, size), os.SEEK_END)
                end = file.read()
        except OSError as error:
            raise BayesVLMError(
                f"The shard {shard} cannot be read: {error.strerror}; fetch it, or leave it out."
            ) from None
        digest.update(json.dumps([shard.name, size]).encode() + start + end)
        try:
            header = tarfile.TarInfo.frombuf(start[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape")
            first = start[: tarfile.BLOCKSIZE + header.size]
        except tarfile.TarError:  # compressed, or no archive
            first = start
        return cls(shard.name, _hash(str(size).encode() + start + end), _hash(first))


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:_DIGITS]


def _at(file: IO[bytes] | None, where: Any) -> Any:
    """What lies there; the key of a sample is what it is."""
    if not isinstance(where, Place):
        return where
    assert file is not None, "a sample was found in it"
    file.seek(where.offset)
    return file.read(where.size)


def _pair(sample: Mapping[str, Any], shard: Path) -> Pair:
    """A sample as a pair, with the reason in the place of the image where it is none."""
    name = f"{shard}: {sample['__key__']}"
    image = next((content for suffix, content in sample.items() if f".{suffix}" in SUFFIXES), None)
    try:
        caption = _caption(sample)
    except ValueError as error:  # not UTF-8, or not json
        return Pair(name, BayesVLMError(f"{name} has a caption that cannot be read ({error})."), "")
    if image is None or caption is None:
        missing = "image" if image is None else "caption"
        return Pair(name, BayesVLMError(f"{name} has no {missing}."), "")
    return Pair(name, image, caption)


def _caption(sample: Mapping[str, Any]) -> str | None:
    """What .txt says, else the caption in .json; None where neither says anything."""
    text: str = sample.get("txt", b"").decode("utf-8-sig").strip()
    if not text and "json" in sample:
        record = json.loads(sample["json"])
        caption = record.get("caption") if isinstance(record, dict) else None
        text = caption.strip() if isinstance(caption, str) else ""
    return text or None
