"""Small image-text pairs on disk, some of which cannot be read; every caption says what its image shows."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

BROKEN = "cannot be read"


def picture(number: int) -> bytes:
    """A small image that shows its number in the colour of its upper left quarter."""
    pixels = np.random.default_rng(number).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    pixels[:16, :16] = [number % 256, number // 256, 77]
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def caption(number: int) -> str:
    """What the image of this number shows."""
    return f"the picture {number}"


def members(numbers: range, broken: frozenset[int] = frozenset()) -> list[tuple[str, bytes]]:
    """Of a shard with these images, those of `broken` damaged."""
    found = []
    for number in numbers:
        found.append((f"{number:06}.png", BROKEN.encode() if number in broken else picture(number)))
        found.append((f"{number:06}.txt", caption(number).encode()))
    return found


def write_shard(path: Path, files: list[tuple[str, bytes]], mode: str = "w") -> Path:
    """A tar shard of files with these names and contents."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def write_shards(folder: Path, *sizes: int, broken: frozenset[int] = frozenset()) -> Path:
    """Shards of so many pairs each, numbered on from one to the next."""
    first = 0
    for number, size in enumerate(sizes):
        write_shard(folder / f"{number:05}.tar", members(range(first, first + size), broken))
        first += size
    return folder


def write_folder(folder: Path, count: int, broken: frozenset[int] = frozenset()) -> Path:
    """Image files with captions.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = ["image,caption"]
    for number in range(count):
        (folder / f"{number:06}.png").write_bytes(BROKEN.encode() if number in broken else picture(number))
        rows.append(f"{number:06}.png,{caption(number)}")
    (folder / "captions.csv").write_text("\n".join(rows) + "\n")
    return folder
