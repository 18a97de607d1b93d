"""One tar shard in webdataset's layout: files that share a name up to its first dot are one sample."""

from __future__ import annotations

import gzip
import os
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from bayesvlm.core.errors import BayesVLMError

_BROKEN = (tarfile.TarError, EOFError, OSError, zlib.error)


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

    tarfile itself takes a damaged header, or an end in a header or between two members, for the end. Raising here,
    and not after the last sample, keeps the sample that the damage went through from being taken for a whole one.
    """
    from webdataset.tariterators import tar_file_iterator

    ends = shard.suffix == ".gz" or _ends_empty(shard)  # gzip raises by itself where the stream has no end
    with _opened(shard) as stream:
        for file in tar_file_iterator(stream):
            yield {**file, "__url__": str(shard)}
        if any(stream.read(1 << 20)):
            raise tarfile.ReadError("damaged in the middle")
    if not ends:
        raise tarfile.ReadError("the empty blocks at the end of an archive are missing")


def _opened(shard: Path) -> BufferedIOBase:
    return gzip.open(shard, "rb") if shard.suffix == ".gz" else shard.open("rb")


def _ends_empty(shard: Path) -> bool:
    with shard.open("rb") as stream:
        stream.seek(-min(1024, shard.stat().st_size), os.SEEK_END)
        return not any(stream.read())
