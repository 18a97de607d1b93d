"""One tar shard in webdataset's layout: files that share a name up to its first dot are one sample."""

from __future__ import annotations

import gzip
import re
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Any, NamedTuple, Self, cast

from bayesvlm.core.errors import BayesVLMError

_BROKEN = (tarfile.TarError, EOFError, OSError, zlib.error)
_SAMPLE_AND_SUFFIX = re.compile(r"^((?:.*/|)[^.]+)[.]([^/]*)$")  # the suffix begins at the first dot after the folders
_RECORD = 20 * tarfile.BLOCKSIZE  # what archives are filled up to, by custom


class BrokenShardError(BayesVLMError):
    """A shard that is no archive, or ends too early: the samples before the damage are good, the others are lost."""


class Place(NamedTuple):
    """Where a file's contents lie in its shard."""

    offset: int
    size: int


def read_samples(shard: Path, start: int = 0) -> Iterator[Mapping[str, Any]]:
    """The samples of a shard as they were written: `__key__`, and the bytes of each file under its suffix.

    Args:
        shard: a .tar or .tar.gz file.
        start: the samples before this one have empty files: of a .tar they are passed over, unread.

    Raises:
        BrokenShardError: after the last sample that is surely whole, where the shard cannot be read to its end.
        BayesVLMError: where two files of a sample have the same name.
    """
    with _broken_as_such(shard), _opened(shard) as raw:
        yield from _grouped(raw, shard, lambda number, archive, member: _content(archive, member, number >= start))


def find_samples(shard: Path, raw: IO[bytes] | None = None) -> Iterator[Mapping[str, Any]]:
    """The samples of a shard, unread: in the place of each file's bytes where they lie (a `Place`).

    Args:
        shard: a .tar or .tar.gz file; the places are in what it holds, uncompressed.
        raw: the same, opened and uncompressed; None opens it.

    Raises:
        BayesVLMError: as `read_samples` does.
    """
    with _broken_as_such(shard), nullcontext(raw) if raw is not None else _opened(shard) as stream:
        yield from _grouped(stream, shard, lambda number, archive, member: Place(member.offset_data, member.size))


def uncompressed(shard: Path) -> IO[bytes]:
    """A shard to read here and there: itself, or what it holds in a temporary file, for as long as it is opened."""
    raw = _opened(shard)
    if not isinstance(raw, gzip.GzipFile):
        return cast(IO[bytes], raw)
    plain = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    with raw, suppress(*_BROKEN):  # whoever looks for samples in it meets the end
        shutil.copyfileobj(raw, plain)
    plain.seek(0)
    return plain


@contextmanager
def _broken_as_such(shard: Path) -> Iterator[None]:
    try:
        yield
    except _BROKEN as error:
        reason = str(error).partition(" @ ")[0] or type(error).__name__
        raise BrokenShardError(
            f"The shard {shard} cannot be read to its end ({reason}); copy or download it again."
        ) from error


def _grouped(
    raw: Any, shard: Path, take: Callable[[int, tarfile.TarFile, tarfile.TarInfo], Any]
) -> Iterator[dict[str, Any]]:
    """Consecutive files of one name as a sample; a file without a suffix belongs to none.

    Args:
        take: from the number of the sample and one of its files to what is kept of the file.

    Raises where the files stop before the archive does, or the archive before its end: tarfile itself takes a damaged
    header, or a file that is cut between two members, for the end. Raising here, and not after the last sample, keeps
    the sample that the damage went through from being taken for a whole one.
    """
    stream, number = _Watched(raw), 0
    sample: dict[str, Any] = {}
    with tarfile.open(fileobj=cast(Any, stream), mode="r:", tarinfo=_Header) as archive:
        for member in archive:
            archive.members = []  # type: ignore[attr-defined]  # it would keep every header it has seen
            found = _SAMPLE_AND_SUFFIX.match(member.name) if member.isreg() else None
            if found is None:
                continue
            key, suffix = found[1], found[2].lower()
            if sample and key != sample["__key__"]:
                yield sample
                number, sample = number + 1, {}
            sample["__key__"] = key
            if suffix in sample:
                raise BayesVLMError(
                    f"The shard {shard} is not made of samples: two files of {key} end in .{suffix}; make it again."
                )
            sample[suffix] = take(number, archive, member)
    _check_end(stream)
    if sample:
        yield sample


class _Header(tarfile.TarInfo):
    """A header of which only the name and the size are read, where it is an ordinary file's: owners and dates would
    take most of the time (13.4 against 5.2 microseconds per header, Python 3.11)."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        plain = len(buf) == tarfile.BLOCKSIZE and buf[257:263] == b"ustar\0" and buf[156:157] == tarfile.REGTYPE
        if plain and buf[345] == 0 and buf[124] < 0x80:  # no folders apart from the name, no size beyond eight digits
            with suppress(ValueError):
                if sum(buf) - sum(buf[148:156]) + 8 * ord(" ") == _octal(buf[148:156]):
                    found = cls(buf[:100].partition(b"\0")[0].decode(encoding, errors))
                    found.size = _octal(buf[124:136])
                    return found
        return super().frombuf(buf, encoding, errors)


def _octal(field: bytes | bytearray) -> int:
    return int(field.strip(b" \0") or b"0", 8)


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo, wanted: bool) -> bytes:
    if not wanted:
        return b""
    file = archive.extractfile(member)
    assert file is not None, "a regular file has content"
    content = file.read()
    if len(content) != member.size:
        raise tarfile.ReadError(f"{member.name} is cut")
    return content


class _Watched:
    """A stream that remembers what was read last: where tarfile stopped, that is the header it stopped at."""

    def __init__(self, stream: BufferedIOBase) -> None:
        self.stream, self.last = stream, b""
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, size: int = -1) -> bytes:
        self.last = self.stream.read(size)
        return self.last


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
