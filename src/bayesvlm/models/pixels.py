"""Images as open_clip models take them, from Pillow alone.

open_clip writes what it does to an image at test time in a model's `preprocess_cfg`, and does it with torchvision. The
same few steps are done here, to the pixel, so that features do not depend on which torchvision is installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from bayesvlm.core.errors import check_choice
from bayesvlm.images.resizing import Resizing, Size, always, shortest_edge

ResizeMode = Literal["shortest", "longest", "squash"]
_SCALAR = (int, float)


@dataclass(frozen=True)
class Pixels:
    """Resize, crop or pad, scale to 0..1, subtract the mean, divide by the standard deviation.

    Args:
        size: (height, width) the model takes.
        mean, std: of each channel, after scaling to 0..1.
        interpolation: "bicubic" or "bilinear".
        resize_mode: "shortest" fits the short side and crops the long one, "longest" fits the long side and pads the
            short one, "squash" fits both.
        fill: the grey level of the padding, 0..255.
    """

    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: Literal["bicubic", "bilinear"] = "bicubic"
    resize_mode: ResizeMode = "shortest"
    fill: int = 0

    def __post_init__(self) -> None:
        check_choice("resize_mode", self.resize_mode, get_args(ResizeMode))

    @classmethod
    def from_open_clip(cls, configuration: Mapping[str, Any]) -> Pixels:
        """What a `preprocess_cfg` of open_clip says; one number stands for all channels, or for both sides."""
        size, mean, std = (configuration[name] for name in ("size", "mean", "std"))
        return cls(
            size=(size, size) if isinstance(size, int) else tuple(size),
            mean=(mean,) * 3 if isinstance(mean, _SCALAR) else tuple(mean),
            std=(std,) * 3 if isinstance(std, _SCALAR) else tuple(std),
            interpolation="bilinear" if configuration.get("interpolation") == "bilinear" else "bicubic",
            resize_mode=configuration.get("resize_mode") or "shortest",
            fill=int(configuration.get("fill_color") or 0),
        )

    def __call__(self, images: list[Image.Image]) -> Tensor:  # [N, 3, H, W], float32
        pixels = np.stack([np.asarray(self._fitted(image)) for image in images])
        scaled = torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(255)
        mean, std = (torch.tensor(values, dtype=torch.float32)[:, None, None] for values in (self.mean, self.std))
        return scaled.sub_(mean).div_(std).contiguous()

    def describe(self) -> dict[str, Any]:
        """These settings, as json."""
        return asdict(self)

    @property
    def resizing(self) -> Resizing:
        """What images are resized to, before they are cropped or padded."""
        height, width = self.size
        if self.resize_mode == "squash":
            return Resizing(always(width, height), self._filter)
        if self.resize_mode == "longest":
            return Resizing(partial(_inside, (width, height)), self._filter)
        if height == width:
            return Resizing(shortest_edge(height), self._filter)
        # open_clip is always bicubic here, whatever the configuration says
        return Resizing(partial(_around, (width, height)), Image.Resampling.BICUBIC)

    @property
    def _filter(self) -> Image.Resampling:
        return Image.Resampling.BILINEAR if self.interpolation == "bilinear" else Image.Resampling.BICUBIC

    def _fitted(self, image: Image.Image) -> Image.Image:
        """The image, exactly as large as the model takes it."""
        height, width = self.size
        resizing = self.resizing
        resized = image.resize(resizing.size(*image.size), resizing.resample)
        if self.resize_mode == "longest":
            return _padded(resized, width, height, self.fill)
        return _cropped(resized, width, height)


def _inside(box: Size, width: int, height: int) -> Size:
    """As large as fits into the box."""
    return _rounded(width, height, max(height / box[1], width / box[0]))


def _around(box: Size, width: int, height: int) -> Size:
    """As small as covers the box."""
    return _rounded(width, height, min(height / box[1], width / box[0]))


def _rounded(width: int, height: int, ratio: float) -> Size:
    return max(1, round(width / ratio)), max(1, round(height / ratio))


def _cropped(image: Image.Image, width: int, height: int) -> Image.Image:
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))


def _padded(image: Image.Image, width: int, height: int, fill: int) -> Image.Image:
    across, down = width - image.width, height - image.height
    border = (across // 2, down // 2, (across + 1) // 2, (down + 1) // 2)  # left, top, right, bottom
    return ImageOps.expand(image, border, (fill, fill, fill))
