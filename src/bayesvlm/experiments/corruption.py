"""What the cosine's moments do when a picture and its caption are destroyed step by step (the paper's heat map)."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from bayesvlm.core.features import Features
from bayesvlm.vlm import BayesVLM
from bayesvlm.world import Split

LEVELS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
GREY = (128, 128, 128)


@dataclass(frozen=True)
class Corruption:
    """Mean over pairs of the moments of the cosine, by share of the caption and of the picture destroyed."""

    levels: tuple[float, ...]
    pairs: int
    mean: Tensor  # [text levels, image levels]
    std: Tensor  # [text levels, image levels]


def corrupt(vlm: BayesVLM, split: Split, pairs: int = 100, seed: int = 0) -> Corruption:
    """Every combination of levels, on so many pairs spread over the split."""
    rows = torch.linspace(0, len(split) - 1, min(pairs, len(split))).long().tolist()
    pictures = [Image.open(BytesIO(split.images[row])).convert("RGB") for row in rows]
    captions = [split.classes[split.labels[row]] for row in rows]
    texts, images = [], []
    for level in LEVELS:
        generator = torch.Generator().manual_seed(seed)  # the same order at every level: more is destroyed, not other
        texts.append(vlm.text_features([crossed_out(text, level, generator) for text in captions], progress=False))
        generator = torch.Generator().manual_seed(seed)
        images.append(vlm.image_features([greyed(image, level, generator) for image in pictures], progress=False))
    mean = torch.empty(len(LEVELS), len(LEVELS))
    std = torch.empty_like(mean)
    for i, text in enumerate(texts):
        for j, image in enumerate(images):
            mean[i, j], std[i, j] = _matched(vlm, image, text)
    return Corruption(LEVELS, len(rows), mean, std)


def crossed_out(text: str, share: float, generator: torch.Generator) -> str:
    """That share of the letters replaced by x, in random places.

    >>> crossed_out("grinning cat", 1.0, torch.Generator())
    'xxxxxxxx xxx'
    """
    places = [index for index, letter in enumerate(text) if not letter.isspace()]
    order = torch.randperm(len(places), generator=generator).tolist()
    gone = {places[index] for index in order[: round(share * len(places))]}
    return "".join("x" if index in gone else letter for index, letter in enumerate(text))


def greyed(image: Image.Image, share: float, generator: torch.Generator, squares: int = 8) -> Image.Image:
    """That share of a chequerboard's squares painted grey, in random places."""
    order = torch.randperm(squares * squares, generator=generator).tolist()
    painted = image.copy()
    draw = ImageDraw.Draw(painted)
    width, height = image.width / squares, image.height / squares
    for place in order[: round(share * len(order))]:
        left, top = place % squares * width, place // squares * height
        draw.rectangle((left, top, max(left, left + width - 1), max(top, top + height - 1)), fill=GREY)
    return painted


def _matched(vlm: BayesVLM, images: Features, texts: Features) -> tuple[float, float]:
    """The average expected cosine, and the average standard deviation, of each image with its own text."""
    moments = vlm.similarity(images, texts)
    return float(moments.mean.diagonal().mean()), float(moments.variance.diagonal().sqrt().mean())
