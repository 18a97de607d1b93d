"""What is done to an image before an encoder sees it, apart from the encoder: so that other processes can do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.images.decoding import ImageLike, to_rgb
from bayesvlm.images.resizing import Resizing

PixelTensors = dict[str, Tensor]
"""What an encoder takes for a batch of images, by name, [N, ...] each; "pixel_values" is always among them."""


@dataclass(frozen=True)
class Preprocessor:
    """From whatever a user calls an image to the tensors an encoder takes.

    It holds no weights and pickles in a few hundred bytes, so that worker processes can have a copy.

    Args:
        to_pixels: from upright RGB images to tensors; what it makes of an image does not depend on its neighbours.
        resizing: what `to_pixels` resizes images to, where that is known: larger ones are shrunk as they are read.
    """

    to_pixels: Callable[[list[Image.Image]], PixelTensors]
    resizing: Resizing | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A pickle holds no pixels."""
        return {name: value for name, value in self.__dict__.items() if name != "blank"}

    def read(self, image: ImageLike, label: str = "the image") -> Image.Image:
        """One image in upright RGB, no larger than the model's own resizing leaves it; see `to_rgb`."""
        return to_rgb(image, label, self.resizing)

    def shrunk(self, image: Image.Image) -> Image.Image:
        """An image that is upright RGB already, no larger than the model's own resizing leaves it."""
        return image if self.resizing is None else self.resizing.shrunk(image)

    def prepared(self, image: ImageLike, label: str = "the image") -> PixelTensors:
        """One image as the encoder takes it, [1, ...] each."""
        return self.to_pixels([self.read(image, label)])

    @cached_property
    def blank(self) -> PixelTensors:
        """What an encoder takes for one black image, [1, ...] each."""
        return self.to_pixels([Image.new("RGB", (32, 32))])

    @property
    def bytes(self) -> int:
        """What an image takes once it is ready."""
        return sum(value.nbytes for value in self.blank.values())

    def ready(self, given: Mapping[str, Any], label: str) -> PixelTensors:
        """The pixels that a processor made elsewhere, of one image or a batch, as this model's encoder takes them.

        Args:
            given: with "pixel_values", [N, ...] or [...]; what the encoder has no name for is left out.
            label: what to call them in an error.

        Raises:
            BayesVLMError: where something is missing, or has another shape than this model's own preprocessing gives.
        """
        found: PixelTensors = {}
        for name, example in self.blank.items():
            shape = tuple(example.shape[1:])
            if name not in given:
                raise BayesVLMError(f"{label} has no {name!r}, which this model takes beside the pixels; add it.")
            try:
                value = torch.as_tensor(given[name])
            except (TypeError, ValueError, RuntimeError):
                value = torch.empty(0)
            value = value[None] if tuple(value.shape) == shape else value
            if tuple(value.shape[1:]) != shape or len(value) == 0:
                expected = ", ".join(map(str, ("N", *shape)))
                raise BayesVLMError(
                    f"{label} has {name} of shape {list(value.shape)}, and this model takes [{expected}]; make them "
                    "with the model's own image processor, or pass the images themselves."
                )
            found[name] = value
        if len({len(value) for value in found.values()}) > 1:
            raise BayesVLMError(
                f"{label} has { {name: len(value) for name, value in found.items()} } rows; equally many are needed."
            )
        return found


def pixel_values(make: Callable[[list[Image.Image]], Tensor]) -> Callable[[list[Image.Image]], PixelTensors]:
    """A function that gives one tensor, [N, 3, H, W], as one that gives it by its name."""
    return partial(_pixel_values, make)


def _pixel_values(make: Callable[[list[Image.Image]], Tensor], images: list[Image.Image]) -> PixelTensors:
    return {"pixel_values": make(images)}
