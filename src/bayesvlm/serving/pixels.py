"""What an image processor does, in a few numbers that fit into a file's metadata, and done with Pillow and numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.images.decoding import PIXEL_VALUES
from bayesvlm.images.resizing import Resizing, always, shortest_edge

if TYPE_CHECKING:
    from bayesvlm.models import Adapter

Size = tuple[int, int]  # (width, height), as Pillow has it

_TRIED = ((64, 64), (90, 31), (33, 250), (400, 301))  # sizes of images that a recipe is tried on
_TOLERANCE = 1e-5  # of a pixel value, which is of the order of 1


@dataclass(frozen=True)
class PixelRecipe:
    """Resize, cut out the middle, scale, subtract the mean, divide by the standard deviation.

    Args:
        edge: what the shorter side is resized to; None: the image is resized to `crop`.
        crop: (width, height) of what the model takes.
        resample: Pillow's number of the filter.
        rescale: 8-bit levels are multiplied by this.
        mean, std: of each channel.
    """

    edge: int | None
    crop: Size
    resample: int
    rescale: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @classmethod
    def of(cls, adapter: Adapter) -> Self:
        """What the image processor of a model does, tried against it on a few images."""
        height, width = adapter.preprocessor.blank[PIXEL_VALUES].shape[2:]
        said = adapter.preprocessing()["pixels"]
        size = {name: value for name, value in (said.get("size") or {}).items() if value is not None}
        resizes = said.get("do_resize", True) and said.get("resample") is not None
        if not resizes or size.keys() not in ({"shortest_edge"}, {"height", "width"}):
            raise _unknown(adapter, f"resizes to {size or 'nothing'}")
        recipe = cls(
            size.get("shortest_edge"),
            (width, height),
            int(said["resample"]),
            float(said["rescale_factor"]) if said.get("do_rescale", True) else 1.0,
            tuple(said["image_mean"]) if said.get("do_normalize", True) else (0.0, 0.0, 0.0),
            tuple(said["image_std"]) if said.get("do_normalize", True) else (1.0, 1.0, 1.0),
        )
        if recipe.difference(adapter) > _TOLERANCE:
            raise _unknown(adapter, "does more than resize, crop, scale and normalise")
        return recipe

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Self:
        """Read back what `to_json` wrote; KeyError, TypeError or ValueError where it is something else."""
        size, crop = said["size"], said["crop_size"]
        edge = size.get("shortest_edge")
        mean, std = (tuple(map(float, said[name])) for name in ("image_mean", "image_std"))
        if len(mean) != 3 or len(std) != 3 or 0 in std:
            raise ValueError("image_mean and image_std are of three channels, and no std is zero")
        return cls(
            None if edge is None else int(edge),
            (int(crop["width"]), int(crop["height"])),
            int(said["resample"]),
            float(said["rescale_factor"]),
            mean,
            std,
        )

    def to_json(self) -> dict[str, Any]:
        """In the words of a preprocessor_config.json of transformers."""
        width, height = self.crop
        whole = {"width": width, "height": height}
        return {
            "do_convert_rgb": True,
            "size": whole if self.edge is None else {"shortest_edge": self.edge},
            "resample": self.resample,
            "interpolation": Image.Resampling(self.resample).name.lower(),
            "crop_size": whole,
            "rescale_factor": self.rescale,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }

    @property
    def resizing(self) -> Resizing:
        """What images are resized to before the middle is cut out."""
        size = always(*self.crop) if self.edge is None else shortest_edge(self.edge)
        return Resizing(size, Image.Resampling(self.resample))

    def __call__(self, images: Sequence[Image.Image]) -> NDArray[np.float32]:  # [N, 3, H, W]
        """The pixel values of upright RGB images."""
        return np.stack([self._one(image) for image in images])

    def difference(self, adapter: Adapter) -> float:
        """The largest difference of a pixel value to those of the model's own processor, on noise of several shapes."""
        generator = np.random.default_rng(0)
        images = [Image.fromarray(generator.integers(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in _TRIED]
        expected = adapter.preprocessor.to_pixels(images)[PIXEL_VALUES].numpy()
        found = self(images)
        return float(np.abs(found - expected).max()) if found.shape == expected.shape else float("inf")

    def _one(self, image: Image.Image) -> NDArray[np.float32]:  # [3, H, W]
        width, height = self.crop
        resizing = self.resizing
        resized = image.resize(resizing.size(*image.size), resizing.resample)
        left, top = (resized.width - width) // 2, (resized.height - height) // 2
        levels = np.asarray(resized.crop((left, top, left + width, top + height)), dtype=np.float32)
        mean, std = (np.asarray(each, dtype=np.float32) for each in (self.mean, self.std))
        pixels: NDArray[np.float32] = (levels * np.float32(self.rescale) - mean) / std
        return pixels.transpose(2, 0, 1)


def _unknown(adapter: Adapter, what: str) -> BayesVLMError:
    return BayesVLMError(
        f"The image processor of {adapter.name!r} {what}, which an exported file has no words for; export the head "
        "alone (head_only=True, --head-only) and keep the encoder you have."
    )
