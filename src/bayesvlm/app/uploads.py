"""What somebody hands the page, made safe: a file into an upright RGB picture of bounded size, a text into a list."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from PIL import Image

from bayesvlm.app.markup import png
from bayesvlm.core.errors import BayesVLMError, first_line
from bayesvlm.images.decoding import open_file, room, to_rgb

MEGABYTES = 20
LARGEST = MEGABYTES * 2**20
"""Bytes of an uploaded file."""
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "HEIF")
"""What is decoded; Pillow knows many more, whose decoders hardly anybody looks at."""
MOST_PIXELS = 64_000_000
"""Of a file. Telephones have 48 or 50 million; decoding this many takes some hundred megabytes, however small the file
(an AVIF file 560, a PNG file with transparency 510, a plain JPEG file 20, as it is not decoded whole)."""
MOST_PIXELS_OF = {"WEBP": 40_000_000}
"""Less where decoding takes more: 16 bytes a pixel."""
ELONGATED = 200
"""How many times as long as it is wide a picture may be."""
_BYTES_PER_PIXEL = {"WEBP": 16}
_BYTES_PER_OTHER_PIXEL = 10
"""What decoding takes at most: the pixels, a copy with transparency multiplied in, and what the decoder keeps."""
SIDE = 512
"""Pixels of the longer side of a picture that is kept; models look at fewer."""
MOST_CLASSES = 1000
"""As many as ImageNet has; all of them are encoded, and others wait for the processor meanwhile."""
LONGEST = 200
"""Letters of a name or a query."""
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\x7f")


@dataclass(frozen=True)
class Picture:
    """A picture as the page keeps it for one visitor: a PNG file's bytes, and what to call it."""

    title: str
    packed: bytes

    @property
    def image(self) -> Image.Image:
        """Decoded."""
        return to_rgb(self.packed, self.title)


def picture_of(packed: bytes, title: str) -> Picture:
    """An image file, decoded once and shrunk to `SIDE` before anything else is done with it.

    Raises:
        BayesVLMError: for what is no image, is damaged or has more pixels than `MOST_PIXELS`.
    """
    with open_file(BytesIO(packed), title, FORMATS) as opened:
        width, height = opened.size
        kind = opened.format or ""
        most = MOST_PIXELS_OF.get(kind, MOST_PIXELS)
        if width * height > most:
            raise BayesVLMError(
                f"{title} has {width} x {height} pixels, {width * height / 1e6:.0f} million; the page takes up to "
                f"{most / 1e6:.0f} million, so make it smaller."
            )
        if max(width, height) > ELONGATED * min(width, height):
            raise BayesVLMError(
                f"{title} is {width} x {height} pixels; a picture may be at most {ELONGATED} times as long as it is "
                "wide, so crop it first."
            )
        with room(_BYTES_PER_PIXEL.get(kind, _BYTES_PER_OTHER_PIXEL) * width * height):
            try:
                small = _shrunk(opened)
            except Exception as error:  # decoders raise nearly every type on damaged files
                raise BayesVLMError(
                    f"{title} is damaged or truncated ({first_line(error)}); fetch it again or leave it out."
                ) from error
        return Picture(title, png(to_rgb(small, title)))


def _shrunk(image: Image.Image) -> Image.Image:
    """An image of at most `SIDE`, in a colour mode that can be resized without loss; a JPEG is not decoded whole."""
    if max(image.size) <= SIDE:
        image.load()
        return image
    if image.mode == "1":
        image = image.convert("L")
    elif image.mode.startswith("I;16"):
        image = image.convert("I")
    elif image.has_transparency_data and image.mode not in ("RGBA", "LA"):
        image = image.convert("RGBA")
    elif image.mode == "P":
        image = image.convert("RGB")
    exact = image.mode in ("I", "F")  # whose range ends where it must: the better filter goes a little beyond
    image.thumbnail((SIDE, SIDE), Image.Resampling.BILINEAR if exact else Image.Resampling.LANCZOS)
    return image


def uploaded(path: str) -> Picture:
    """An uploaded file.

    It is not deleted here: another visitor's is the same file, if its content is the same. The page clears old ones.
    """
    file = Path(path)
    name = _shown(file.name)
    try:
        size = file.stat().st_size
        if size > LARGEST:
            raise BayesVLMError(
                f"{name} has {size / 2**20:.0f} MB; the page takes files of up to {MEGABYTES} MB, so make it smaller."
            )
        return picture_of(file.read_bytes(), name)
    except OSError as error:
        raise BayesVLMError(f"{name} cannot be read ({error.strerror}); upload it again.") from None


def class_list(text: str) -> tuple[str, ...]:
    """Names apart by commas or lines, in their order.

    >>> class_list("cat, dog\\n pizza,")
    ('cat', 'dog', 'pizza')
    """
    names = tuple(name for part in re.split(r"[,\n]", text or "") if (name := _clean(part)))
    if len(names) < 2:
        given = f"is only one name, {names[0]!r}" if names else "are no names"
        raise BayesVLMError(f"There {given}; type two or more, apart by commas, such as: cat, dog, pizza.")
    if len(names) > MOST_CLASSES:
        raise BayesVLMError(f"There are {len(names)} classes; the page takes up to {MOST_CLASSES}, so leave some out.")
    for name in names:
        checked_text(name, "a class")
    return names


def checked_text(text: str, what: str) -> str:
    """A text that is not empty and not too long."""
    found = _clean(text or "")
    if not found:
        raise BayesVLMError(f"There is no text for {what}; type a few words.")
    if len(found) > LONGEST:
        raise BayesVLMError(
            f"The text for {what} has {len(found)} letters; the page takes up to {LONGEST}, so shorten it."
        )
    return found


def _clean(text: str) -> str:
    """A text in single spaces, without what would turn the direction of the text around it or is no letter at all."""
    return " ".join("".join(" " if letter in _TURNING or ord(letter) < 32 else letter for letter in text).split())


def _shown(name: str) -> str:
    """A file's name to print: without what a terminal or a page would stumble over."""
    clean = "".join(letter if letter.isprintable() else "?" for letter in os.path.basename(name))
    return clean if len(clean) <= 60 else f"{clean[:40]}...{clean[-15:]}"
