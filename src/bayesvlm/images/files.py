"""Image files: finding them, decoding them a batch at a time, and keeping count of the ones that cannot be read."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from PIL import Image

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.images.decoding import ImageLike, to_rgb
from bayesvlm.images.workers import ahead

SUFFIXES = frozenset({
    ".apng", ".avif", ".avifs", ".bmp", ".dib", ".gif", ".heic", ".heics", ".heif", ".heifs", ".hif", ".j2k", ".jfif",
    ".jp2", ".jpe", ".jpeg", ".jpf", ".jpg", ".jpx", ".mpo", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".qoi", ".tga",
    ".tif", ".tiff", ".webp",
})  # fmt: skip
"""Of the files that Pillow reads; those of HEIF with the extra `heif`."""
_OTHERS = frozenset({
    ".3fr", ".ai", ".arw", ".cr2", ".cr3", ".crw", ".dng", ".eps", ".erf", ".exr", ".hdr", ".jxl", ".jxr", ".kdc",
    ".mrw", ".nef", ".nrw", ".orf", ".pef", ".psd", ".raf", ".rw2", ".rwl", ".sr2", ".srf", ".srw", ".svg", ".svgz",
    ".x3f", ".xcf",
})  # fmt: skip
"""Of images that it does not read, or not without other programs: of cameras, of drawing programs, JPEG XL."""
_ESCAPED = re.compile(rb"\\x([89a-f][0-9a-f])")
_AHEAD = 8  # images that may be decoded ahead of who takes them
_BATCH_BYTES = 128 * 2**20  # of decoded images in a batch

Result = TypeVar("Result")
ReadImage = Callable[[ImageLike, str], Any]
"""Makes something of an image, mostly an RGB one; calls it by the name that is given where it cannot."""


@runtime_checkable
class Stored(Protocol):
    """An image as it is stored, or why there is none, and what to call it when it cannot be read."""

    @property
    def name(self) -> str: ...

    @property
    def image(self) -> ImageLike | BayesVLMError: ...


Item = TypeVar("Item", bound=Stored)


@dataclass(frozen=True)
class ImageFile:
    """One image file."""

    image: Path

    @property
    def name(self) -> str:
        return str(self.image)


def find_images(folder: Path, skipped: SkippedImages | None = None) -> list[Path]:
    """All image files below a folder, sorted; hidden files and folders left out.

    Args:
        folder: where to look.
        skipped: where images of a kind that cannot be read are noted, links that lead nowhere or to a folder, and
            folders that cannot be listed.
    """
    if not os.path.isdir(folder):  # `Path.is_dir` would raise where a disk does not answer
        raise BayesVLMError(f"{folder} is not a folder; give one with image files in it.")
    found = []
    for path in _listed(folder, skipped):
        try:
            why = _why_not(path)
            wanted = why is None and path.suffix.lower() in SUFFIXES and path.is_file()
        except OSError as error:
            why, wanted = _unseen(path, error), False
        if why is not None and skipped is not None:
            skipped.leave_out(path, why)
        elif wanted:
            found.append(path)
    return found


def _listed(folder: Path, skipped: SkippedImages | None) -> list[Path]:
    """All that lies below a folder, sorted, without what is hidden; folders that cannot be listed are noted."""

    def note(error: OSError) -> None:
        if skipped is not None:
            skipped.close(Path(error.filename or folder), f"cannot be listed ({error.strerror or error})")

    found = []
    for place, folders, files in os.walk(folder, onerror=note):
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(place, name) for name in (*folders, *files) if not name.startswith(".")]
    return sorted(found)


def _unseen(path: Path, error: OSError) -> str | None:
    """What to say of an image that the operating system says nothing of; nothing of what is none by its name."""
    if path.suffix.lower() not in SUFFIXES | _OTHERS:
        return None
    return f"cannot be looked at ({error.strerror or error}); check its disk and who may read it."


def find_all_images(given: Iterable[Path], skipped: SkippedImages) -> list[Path]:
    """The files that are given, and the images in the folders that are; what else lies there is noted as skipped."""
    return [path for place in given for path in (find_images(place, skipped) if place.is_dir() else [place])]


def shown_path(path: Path) -> str:
    r"""A path as text that any file can hold: bytes of its name that are no UTF-8 as backslashes and digits.

    >>> print(shown_path(Path(os.fsdecode(b"photos/\xff.png"))))
    photos/\xff.png
    """
    return str(path).encode(errors="surrogateescape").decode(errors="backslashreplace")


def path_shown(text: str) -> Path:
    """The path that `shown_path` wrote so: what is there under these letters, else under the bytes they stand for."""
    path = Path(text)
    raw = os.fsencode(text)
    if os.path.lexists(path) or not _ESCAPED.search(raw):
        return path
    raw = _ESCAPED.sub(lambda found: bytes([int(found[1], 16)]), raw)
    other = Path(os.fsdecode(raw))
    return other if os.path.lexists(other) else path


def names_a_file(text: str) -> bool:
    """Whether there is a file under these words, which may be no path at all."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # longer than a name may be, or with a zero in it
        return False


def dangling(path: Path) -> bool:
    """Whether a path is a link to what does not exist."""
    return path.is_symlink() and not path.exists()


def leads_nowhere(path: Path) -> str:
    """What to say of a link that dangles."""
    return f"is a link to {path.readlink()}, which does not exist; mend or remove it."


def _why_not(path: Path) -> str | None:
    """Why what might be an image, or a folder of them, is none to be read."""
    kind = path.suffix.lower()
    if dangling(path) and (not kind or kind in SUFFIXES | _OTHERS):
        return leads_nowhere(path)
    if path.is_symlink() and path.is_dir():
        return "is a link to a folder, which is not followed; give that folder itself."
    if kind in _OTHERS and path.is_file():
        return f"is a {kind} file, which Pillow does not read; convert it to PNG or JPEG."
    return None


@dataclass
class SkippedImages:
    """Images, or whole shards, that could not be read: skipped and remembered, or with `strict` an error at once.

    Args:
        strict: raise the first reason.
        reasons: by name, why it was skipped.
        unlisted: of these names, those of files that were left out when a folder was listed.
        more: how many others were skipped, that are not remembered by name.
        closed: of these names, those of folders that could not be listed: who knows what is in them.
    """

    strict: bool = False
    reasons: dict[str, str] = field(default_factory=dict)
    unlisted: set[str] = field(default_factory=set)
    more: int = 0
    closed: set[str] = field(default_factory=set)

    def decode(self, items: Iterable[Item], read: Callable[[Item], Result]) -> Iterator[tuple[Item, Result | None]]:
        """Every item with what `read` makes of it, in order; None where it cannot be read, which is noted.

        Images are read by a few threads, a few images ahead of who takes them.
        """
        for item, reading in ahead(items, lambda item, pool: (item, pool.submit(read, item)), _AHEAD):
            yield item, self._result(item, reading)

    def note(self, name: str, error: BayesVLMError) -> None:
        """Remember what was skipped and why; with `strict`, raise it."""
        if self.strict:
            raise error
        self.reasons[name] = str(error)

    def count(self, name: str, error: BayesVLMError, most: int) -> None:
        """The same in memory that does not grow: beyond so many names, or of one name, others are counted only."""
        if len(self.reasons) < most and name not in self.reasons:
            self.note(name, error)
        else:
            self.more += 1

    def leave_out(self, path: Path, why: str) -> None:
        """Remember a file of a folder that is not listed, and why; with `strict`, raise it."""
        self.note(str(path), BayesVLMError(f"{path} {why}"))
        self.unlisted.add(str(path))

    def close(self, folder: Path, why: str) -> None:
        """Remember a folder that cannot be listed, and why; with `strict`, raise it."""
        self.note(str(folder), BayesVLMError(f"{folder} {why}; check its disk and who may read it."))
        self.closed.add(str(folder))

    def __len__(self) -> int:
        return len(self.reasons) + self.more

    def __str__(self) -> str:
        return describe_skipped(self.reasons, self.more)

    @property
    def beside(self) -> str:
        """For a sentence that finds no images: what was left out, in brackets, or nothing."""
        reason = next(iter(self.reasons.values()), "").rstrip(".")
        more = f", and {len(self) - 1} more" if len(self) > 1 else ""
        return f" ({reason}{more})" if reason else ""

    def _result(self, item: Stored, reading: Future[Result]) -> Result | None:
        try:
            return reading.result()
        except BayesVLMError as error:
            self.note(item.name, error)
            return None


def read_stored(item: Stored, read: ReadImage = to_rgb) -> Any:
    """What `read` makes of an image, called by its name, or by its path, where it cannot be read."""
    if isinstance(item.image, BayesVLMError):
        raise item.image
    return read(item.image, "image" if isinstance(item.image, Path) else item.name)


@dataclass(frozen=True)
class DecodedBatch(Generic[Item, Result]):
    """Items whose images could be decoded, and what they were decoded to."""

    items: list[Item]
    images: list[Result]
    read: int  # items taken, with those that could not be decoded


def decoded_batches(
    items: Iterable[Item], skipped: SkippedImages, read: Callable[[Item], Result], batch_size: int
) -> Iterator[DecodedBatch[Item, Result]]:
    """Batches of items with their images; what cannot be read is left out and noted.

    Args:
        items: images as they are stored.
        skipped: where those that cannot be read are noted.
        read: decodes one; called by several threads.
        batch_size: the most items of a batch; large images end it sooner.
    """
    taken: list[Item] = []
    images: list[Result] = []
    count = size = 0
    for item, image in skipped.decode(items, read):
        count += 1
        if image is not None:
            taken.append(item)
            images.append(image)
            size += _bytes(image)
        if count == batch_size or size >= _BATCH_BYTES:
            yield DecodedBatch(taken, images, count)
            taken, images, count, size = [], [], 0, 0
    if count:
        yield DecodedBatch(taken, images, count)


def _bytes(image: Any) -> int:
    """What an image takes in Pillow, or as tensors."""
    if isinstance(image, Image.Image):
        return 4 * image.width * image.height
    return sum(tensor.nbytes for tensor in image.values())


def describe_skipped(reasons: Mapping[str, str], unnamed: int = 0) -> str:
    """How many could not be used, and why the first ten could not."""
    shown = [reason.rstrip(".") for _, reason in sorted(reasons.items())[:10]]
    more = len(reasons) - len(shown) + unnamed
    rest = f"\n  and {more} more" if more else ""
    return f"skipped {len(reasons) + unnamed} that cannot be used:\n  " + "\n  ".join(shown) + rest
