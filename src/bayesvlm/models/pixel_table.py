"""An image processor's arithmetic as a table: what it makes of each of the 256 levels of a channel.

Images arrive at the size that a processor would resize them to (`bayesvlm.images.resizing`), so all that is left to it
is to cut out the middle and to map each 8-bit level to a float. Looked up, that takes a fraction of the time and gives
the same floats to the bit. The table is read off the processor itself, and compared with it before it is relied on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from bayesvlm.images.decoding import PIXEL_VALUES
from bayesvlm.images.resizing import Resizing, Size
from bayesvlm.models.preprocessing import PixelTensors

_LEVELS = 256
_LONGER = (0, 1, 2, 3, 7)  # pixels: halves of them are rounded in each way that processors have


@dataclass(frozen=True)
class PixelTable:
    """The pixels of images that need no resizing.

    Args:
        levels: [3, 256], float32.
        size: of what is cut out of the middle.
        resizing: what the processor resizes to.
    """

    levels: NDArray[np.float32]
    size: Size
    resizing: Resizing

    def fits(self, image: Image.Image) -> bool:
        """Whether an image is as the processor would resize it, and no smaller than what is cut out."""
        large_enough = image.width >= self.size[0] and image.height >= self.size[1]
        return image.mode == "RGB" and large_enough and self.resizing.size(*image.size) == image.size

    def pixels(self, images: list[Image.Image]) -> Tensor:  # [N, 3, H, W]
        """Of images that fit."""
        width, height = self.size
        found = np.empty((len(images), 3, height, width), dtype=np.float32)
        for image, made in zip(images, found, strict=True):
            left, top = (image.width - width) // 2, (image.height - height) // 2
            middle = np.asarray(image)[top : top + height, left : left + width]
            for channel in range(3):
                np.take(self.levels[channel], middle[:, :, channel], out=made[channel], mode="clip")
        return torch.from_numpy(found)


def table_of(to_pixels: Callable[[list[Image.Image]], PixelTensors], resizing: Resizing | None) -> PixelTable | None:
    """The table of a processor, or None where a table does not give what it gives.

    Args:
        to_pixels: the processor, from RGB images.
        resizing: what it resizes to.
    """
    if resizing is None:
        return None
    example = to_pixels([Image.new("RGB", resizing.size(64, 64))])
    shape = example[PIXEL_VALUES].shape
    if example.keys() != {PIXEL_VALUES} or len(shape) != 4 or shape[1] != 3 or shape[2] * shape[3] < _LEVELS:
        return None
    height, width = shape[2:]
    every_level = np.resize(np.arange(_LEVELS, dtype=np.uint8), (height, width, 1)).repeat(3, axis=2)
    made = to_pixels([Image.fromarray(every_level)])[PIXEL_VALUES]
    table = PixelTable(made.reshape(3, -1)[:, :_LEVELS].numpy().copy(), (width, height), resizing)
    noise = np.random.default_rng(0).integers(
        0, _LEVELS, (height + max(_LONGER), width + max(_LONGER), 3), dtype=np.uint8
    )
    for longer in _LONGER:
        for image in map(Image.fromarray, (noise[:height, : width + longer], noise[: height + longer, :width])):
            if table.fits(image):
                expected = to_pixels([image])[PIXEL_VALUES]
                if expected.dtype != torch.float32 or not torch.equal(table.pixels([image]), expected):
                    return None
    return table
