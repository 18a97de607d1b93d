"""One tar shard in webdataset's layout: files that share a name up to its first dot are one sample."""

from __future__ import annotations

import gzip
import re
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from io import BufferedIOBase
from pathlib import Path
from typing import Any, cast

from bayesvlm.core.errors import BayesVLMError

_BROKEN = (tarfile.TarError, EOFError, OSError, zlib.error)
_SAMPLE_AND_SUFFIX = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")  # the suffix begins at the first dot after the folders
_RECORD = 20 * tarfile.BLOCKSIZE  # what archives are filled up to, by custom


class BrokenShardError(BayesVLMError):
    """A shard that is no archive, or ends too early: the samples before the damage are good, the others are lost."""


def read_samples(shard: Path) -> Iterator[Mapping[str, Any]]:
    """The samples of a shard as they were written: `__key__`, and the bytes of each file under its suffix.

    Args:
        shard: a .tar or .tar.gz file.

    Raises:
        BrokenShardError: after the last sample that is surely whole, where the shard cannot be read to its end.
        BayesVLMError: where two files of a sample have the same name.
    """
    try:
        yield from _grouped(_files(shard), shard)
    except _BROKEN as error:
        reason = str(error).partition(" @ ")[0] or type(error).__name__
        raise BrokenShardError(
            f"The shard {shard} cannot be read to its end ({reason}); copy or download it again."
        ) from error


def _grouped(files: Iterable[tuple[str, bytes]], shard: Path) -> Iterator[dict[str, Any]]:
    """Consecutive files of one name as a sample; a file without a suffix belongs to none."""
    sample: dict[str, Any] = {}
    for name, content in files:
        found = _SAMPLE_AND_SUFFIX.match(name)
        if found is None:
            continue
        key, suffix = found[1], found[2].lower()
        if sample and key != sample["__key__"]:
            yield sample
            sample = {}
        sample["__key__"] = key
        if suffix in sample:
            raise BayesVLMError(
                f"The shard {shard} is not made of samples: two files of {key} end in .{suffix}; make it again."
            )
        sample[suffix] = content
    if sample:
        yield sample


def _files(shard: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of a shard; raises where they stop before the archive does, or the archive before its end.

    tarfile itself takes a damaged header, or a file that is cut between two members, for the end. Raising here, and not
    after the last sample, keeps the sample that the damage went through from being taken for a whole one.
    """
    with _opened(shard) as raw:
        stream = _Watched(raw)
        with tarfile.open(fileobj=cast(Any, stream), mode="r:") as archive:
            for member in archive:
                if member.isreg():
                    content = archive.extractfile(member)
                    assert content is not None, "a regular file has content"
                    yield member.name, _whole(content.read(), member)
                archive.members = []  # type: ignore[attr-defined]  # it would keep every header it has seen
        _check_end(stream)


class _Watched:
    """A stream that remembers what was read last: where tarfile stopped, that is the header it stopped at."""

    def __init__(self, stream: BufferedIOBase) -> None:
        self.stream, self.last = stream, b""
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, size: int = -1) -> bytes:
        self.last = self.stream.read(size)
        return self.last


def _whole(content: bytes, member: tarfile.TarInfo) -> bytes:
    if len(content) != member.size:
        raise tarfile.ReadError(f"{member.name} is cut")
    return content


def _check_end(stream: _Watched) -> None:
    """An archive ends with two empty blocks, filled up to a whole record."""
    if len(stream.last) < tarfile.BLOCKSIZE:
        raise tarfile.ReadError("the empty blocks at the end of an archive are missing")
    rest = stream.last + stream.stream.read(_RECORD)
    if any(rest):
        raise tarfile.ReadError("damaged in the middle")
    if len(rest) < 2 * tarfile.BLOCKSIZE:
        raise tarfile.ReadError("the empty blocks at the end of an archive are missing")
    if stream.stream.read(1):
        raise tarfile.ReadError("filled up with zeros, as a download that never finished")


def _opened(shard: Path) -> BufferedIOBase:
    """Plain or compressed, whatever its name says."""
    with shard.open("rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    return gzip.open(shard, "rb") if compressed else shard.open("rb")
