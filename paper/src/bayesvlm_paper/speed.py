"""How long a model takes to encode an image or a text on this machine: measured, or estimated from its operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from PIL import Image

from bayesvlm.experiments.feature_store import FeatureStore
from bayesvlm_paper.architectures import architecture, flops_per_image, flops_per_text, image_encoder
from bayesvlm_paper.timing import timed

REFERENCE = "CLIP-Base"
"""The architecture that is timed with random weights where a model is not here."""
_BATCH = 16  # inputs at once
_CAPTION = "a photo of a small red boat on a calm lake"


@dataclass(frozen=True)
class Speed:
    """Seconds that an image and a text take."""

    image: float
    text: float

    def __str__(self) -> str:
        return f"{_rate(self.image)} images, {_rate(self.text)} texts a second"


def _rate(seconds: float) -> str:
    return f"{1 / seconds:,.0f}" if seconds < 0.1 else f"{1 / seconds:.2g}"


@cache
def measured(encoder: FeatureStore) -> Speed:
    """Of a model that is loaded."""
    images, texts = [Image.new("RGB", (224, 224))] * _BATCH, [_CAPTION] * _BATCH
    adapter, here = encoder.adapter, torch.device("cpu")  # features come back to it: there is nothing to wait for
    return Speed(
        shortest(lambda: adapter.encode_images(images, batch_size=_BATCH, progress=False), here) / _BATCH,
        shortest(lambda: adapter.encode_texts(texts, progress=False), here) / _BATCH,
    )


@cache
def estimated(shape: str, device: torch.device) -> Speed:
    """Of one of the paper's architectures, texts at full length: its operations at the rate of `REFERENCE`."""
    speed = _flops_per_second(device)
    return Speed(flops_per_image(shape) / speed, flops_per_text(shape) / speed)


@cache
@torch.inference_mode()
def _flops_per_second(device: torch.device) -> float:
    """What the image tower of `REFERENCE` reaches here, with random weights."""
    encode = image_encoder(REFERENCE, device)
    pixels = torch.randn(_BATCH, *architecture(REFERENCE).pixels, device=device)
    return _BATCH * flops_per_image(REFERENCE) / shortest(lambda: encode(pixels), device, seconds=3.0)


def shortest(work: Callable[[], Any], device: torch.device, seconds: float = 0.0) -> float:
    """Seconds of the shortest of three runs, or of as many as `seconds` allow, after one to warm up."""
    work()
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        times.append(timed(work, device)[1])
    return min(times)
