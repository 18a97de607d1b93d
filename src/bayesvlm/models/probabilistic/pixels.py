"""Images as both families saw them: CLIP's preprocessing, with Pillow alone.

Their authors use the image processor of `openai/clip-vit-base-patch16`; its size is 224 whatever the model, so here
the size comes from config.json.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bayesvlm.images.resizing import shortest_edge
from bayesvlm.models.layout import CLIP_MEAN, CLIP_STD

RESAMPLE = Image.Resampling.BICUBIC


def to_pixels(images: Sequence[Image.Image], size: int) -> Tensor:  # [N, 3, size, size]
    """The shorter side to `size` (bicubic), the middle square, then CLIP's mean and standard deviation.

    Args:
        images: RGB, as `bayesvlm.images.decoding.to_rgb` makes them.
        size: `config.image_size` of the model.
    """
    squares = np.stack([np.asarray(_square(image, size)) for image in images])  # [N, size, size, 3]
    pixels = torch.from_numpy(squares).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (CLIP_MEAN, CLIP_STD))
    return ((pixels - mean) / std).contiguous()


def _square(image: Image.Image, size: int) -> Image.Image:
    width, height = shortest_edge(size)(*image.size)
    left, top = (width - size) // 2, (height - size) // 2
    return image.resize((width, height), RESAMPLE).crop((left, top, left + size, top + size))
