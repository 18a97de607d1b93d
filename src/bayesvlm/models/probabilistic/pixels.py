"""Images as both families saw them: the preprocessing of CLIP.

Their authors use the image processor of `openai/clip-vit-base-patch16`; its size is 224 whatever the model, so here
the size comes from config.json. Always the processor that works with Pillow: the one for torchvision resizes slightly
differently, and machines with and without torchvision would have different pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from PIL import Image
from torch import Tensor

from bayesvlm.models.layout import CLIP_MEAN, CLIP_STD

RESAMPLE = Image.Resampling.BICUBIC


def to_pixels(images: Sequence[Image.Image], size: int) -> Tensor:  # [N, 3, size, size]
    """The shorter side to `size` (bicubic), the middle square, then CLIP's mean and standard deviation.

    Args:
        images: RGB, as `bayesvlm.images.decoding.to_rgb` makes them.
        size: `config.image_size` of the model.
    """
    # Said outright, because an image one or three pixels high is otherwise taken for channels-first.
    made = _processor(size)(list(images), return_tensors="pt", input_data_format="channels_last")
    pixels: Tensor = made["pixel_values"]
    return pixels


@cache
def _processor(size: int) -> Any:
    import transformers  # here, because it takes seconds

    # transformers 4 has one CLIPImageProcessor, which is that of Pillow.
    family: Any = getattr(transformers, "CLIPImageProcessorPil", None) or transformers.CLIPImageProcessor
    return family(
        size={"shortest_edge": size},
        crop_size={"height": size, "width": size},
        resample=RESAMPLE,
        image_mean=list(CLIP_MEAN),
        image_std=list(CLIP_STD),
        do_convert_rgb=False,
    )
