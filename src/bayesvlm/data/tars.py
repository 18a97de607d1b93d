"""One tar shard in webdataset's layout: files that share a name up to its first dot are one sample."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from io import BufferedIOBase
from pathlib import Path
from typing import Any, cast

from bayesvlm.core.errors import BayesVLMError

_BROKEN = (tarfile.TarError, EOFError, OSError, zlib.error)
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
    from webdataset.tariterators import group_by_keys  # takes a second: only where shards are

    try:
        yield from group_by_keys(_files(shard))
    except _BROKEN as error:
        reason = str(error).partition(" @ ")[0] or type(error).__name__
        raise BrokenShardError(
            f"The shard {shard} cannot be read to its end ({reason}); copy or download it again."
        ) from error
    except ValueError as error:  # webdataset's word for two members of one name
        reason = str(error).partition(" dict_keys")[0]
        raise BayesVLMError(f"The shard {shard} is not made of samples: {reason}; make it again.") from error


def _files(shard: Path) -> Iterator[dict[str, Any]]:
    """The files of a shard; raises where they stop before the archive does, or the archive before its end.

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
                    yield {"fname": member.name, "data": _whole(content.read(), member), "__url__": str(shard)}
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
