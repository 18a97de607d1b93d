"""Random views of an image for test-time augmentation: itself, then random crops, half of them mirrored.

The crops are those of ImageNet training (Inception's): an area of 8 to 100 % of the image, an aspect of 3:4 to 4:3,
scaled to a square of its shorter side with bicubic filtering. They are drawn from the image's key and a seed, so that
neither the order of the images nor the size of a batch changes them.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from PIL import Image

from bayesvlm.core.errors import BayesVLMError, check_count

_ASPECTS = (3 / 4, 4 / 3)
_ATTEMPTS = 10


@dataclass(frozen=True)
class Views:
    """How many views of an image, and which.

    Args:
        count: the views of an image, the first of them the image itself.
        smallest: the least share of the image's area that a crop shows.
        seed: of the crops.
    """

    count: int = 64
    smallest: float = 0.08
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("The number of views", self.count)
        if not 0 < self.smallest <= 1:
            raise BayesVLMError(f"smallest={self.smallest}; it is a share of the image's area, above 0 and at most 1.")

    def of(self, image: Image.Image, key: str) -> Iterator[Image.Image]:
        """The image and count - 1 random crops of it, square, of its shorter side; each is made as it is taken."""
        draw = random.Random(f"{self.seed}/{key}")
        yield image
        for _ in range(self.count - 1):
            yield self._view(image, draw)

    def _view(self, image: Image.Image, draw: random.Random) -> Image.Image:
        side = min(image.size)
        view = image.resize((side, side), Image.Resampling.BICUBIC, box=self._box(image.size, draw))
        return view.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if draw.random() < 0.5 else view

    def _box(self, size: tuple[int, int], draw: random.Random) -> tuple[float, float, float, float]:
        width, height = size
        for _ in range(_ATTEMPTS):
            area = width * height * draw.uniform(self.smallest, 1)
            aspect = math.exp(draw.uniform(*map(math.log, _ASPECTS)))
            across, down = math.sqrt(area * aspect), math.sqrt(area / aspect)
            if across <= width and down <= height:
                left, top = draw.uniform(0, width - across), draw.uniform(0, height - down)
                return left, top, left + across, top + down
        side = min(width, height)  # the image is so elongated that nothing fitted: its middle
        left, top = (width - side) / 2, (height - side) / 2
        return left, top, left + side, top + side
