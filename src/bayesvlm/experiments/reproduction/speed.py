"""How long a model takes to encode an image or a text here: tried, or told from its operations."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from PIL import Image

from bayesvlm.experiments.architectures import flops_per_image, flops_per_text
from bayesvlm.experiments.encoding import Encoder

_EFFICIENCY = 0.4  # of a matrix product's speed that an encoder reaches
_TRIED = 16  # inputs at once
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
def tried(encoder: Encoder) -> Speed:
    """Of a model that is loaded."""
    images, texts = [Image.new("RGB", (224, 224))] * _TRIED, [_CAPTION] * _TRIED
    adapter = encoder.adapter
    return Speed(
        _timed(lambda: adapter.encode_images(images, batch_size=_TRIED, progress=False)) / _TRIED,
        _timed(lambda: adapter.encode_texts(texts, progress=False)) / _TRIED,
    )


@cache
def told(shape: str, device: torch.device) -> Speed:
    """Of one of the paper's architectures, texts at full length."""
    speed = _EFFICIENCY * _flops_a_second(device)
    return Speed(flops_per_image(shape) / speed, flops_per_text(shape) / speed)


@cache
def _flops_a_second(device: torch.device) -> float:
    side = 2048 if device.type == "cuda" else 1024
    left = torch.randn(side, side, device=device)

    def product() -> None:
        _ = left @ left
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return 2 * side**3 / _timed(product)


def _timed(work: Callable[[], Any]) -> float:
    """The shortest of three runs, after one to warm up."""
    work()
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best
