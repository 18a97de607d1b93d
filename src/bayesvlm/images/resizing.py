"""Images made small as they are decoded: no larger than the model's own preprocessing would leave them.

A photograph of 12 megapixels takes 49 MB once it is decoded, and a model looks at 224 x 224 of its pixels. So the size
that preprocessing resizes to is known here, with its filter. An image resized to it by the same filter passes through
the model's own resizing unchanged, to the bit. Only a JPEG file is not even decoded whole: its decoder leaves out what
resizing would, down to twice the size that is needed, as `PIL.Image.Image.thumbnail` has it do.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

from PIL import Image

Size = tuple[int, int]  # (width, height), as Pillow has it

MARGIN = 2  # a JPEG decoder stops at no less than so many times the size that is needed


@dataclass(frozen=True)
class Resizing:
    """What a model's preprocessing resizes upright RGB images to.

    Args:
        size: from an image's (width, height) to those it is resized to; a size of that kind must map to itself.
        resample: the filter.
    """

    size: Callable[[int, int], Size]
    resample: Image.Resampling

    def draft(self, image: Image.Image) -> None:
        """Have the decoder of an opened JPEG leave out what resizing would, whichever way up the image is."""
        width, height = image.size
        upright, turned = self.size(width, height), self.size(height, width)
        needed = MARGIN * max(upright[0], turned[1]), MARGIN * max(upright[1], turned[0])
        if min(width // needed[0], height // needed[1]) >= 2:
            image.draft(None, needed)

    def shrunk(self, image: Image.Image, stored: Size | None = None) -> Image.Image:
        """The image resized, or as it is where that would make a side longer.

        Args:
            image: upright and RGB.
            stored: the size of its file, which a JPEG decoder may have left something out of.
        """
        width, height = stored or image.size
        if (width > height) != (image.width > image.height):  # its file lies on its side
            width, height = height, width
        size = self.size(width, height)
        if size == image.size or size[0] > image.width or size[1] > image.height:
            return image
        return image.resize(size, self.resample)


def shortest_edge(side: int) -> Callable[[int, int], Size]:
    """The shorter side becomes `side`, the other follows; what is cropped then is left to the preprocessing."""
    return partial(_shortest_edge, side)


def always(width: int, height: int) -> Callable[[int, int], Size]:
    """One size, whatever the image's."""
    return partial(_always, (width, height))


def processor_resizing(processor: Any) -> Resizing | None:
    """What an image processor of `transformers` resizes to; None where it does not, or in a way not known here."""
    said = processor.to_dict()
    if not said.get("do_resize", True) or said.get("resample") is None:
        return None
    resample = Image.Resampling(said["resample"])
    given = {name: value for name, value in (said.get("size") or {}).items() if value is not None}
    if given.keys() == {"shortest_edge"}:
        return Resizing(shortest_edge(given["shortest_edge"]), resample)
    if given.keys() == {"height", "width"}:
        return Resizing(always(given["width"], given["height"]), resample)
    if not given and "max_num_patches" in said:
        return Resizing(partial(_patches, processor), resample)
    return None


# What `size` is a partial of: functions of this module, so that an adapter pickles.


def _shortest_edge(side: int, width: int, height: int) -> Size:
    short = min(width, height)
    return int(side * width / short), int(side * height / short)


def _always(size: Size, width: int, height: int) -> Size:
    return size


def _patches(processor: Any, width: int, height: int) -> Size:
    """NaFlex: as many whole patches as the model takes, in the aspect ratio of the image."""
    fitted = sys.modules[type(processor).__module__].get_image_size_for_max_num_patches
    rows, columns = fitted(height, width, processor.patch_size, processor.max_num_patches)
    return columns, rows


class Allowance:
    """So many bytes for all threads together: one that asks for more than is left waits until others gave back.

    One that asks for more than there is gets everything, and so goes alone.

    Args:
        total: in bytes.
        context: of `multiprocessing`, for an allowance that worker processes share.
    """

    def __init__(self, total: int, context: Any = None) -> None:
        self.total = total
        self._left = SimpleNamespace(value=total) if context is None else context.Value("q", total, lock=False)
        self._changed = (context or threading).Condition()

    @contextmanager
    def hold(self, amount: int) -> Iterator[None]:
        """Have so many bytes for the time being."""
        amount = min(amount, self.total)
        with self._changed:
            self._changed.wait_for(lambda: self._left.value >= amount)
            self._left.value -= amount
        try:
            yield
        finally:
            with self._changed:
                self._left.value += amount
                self._changed.notify_all()
