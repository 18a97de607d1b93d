"""What the cosine's moments do when a picture and its caption are destroyed step by step (the paper's heat map)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.data.labelled import LabelledSet, set_prompts
from bayesvlm.images.files import read_stored
from bayesvlm.vlm import BayesVLM

LEVELS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
GREY = (128, 128, 128)


@dataclass(frozen=True)
class Corruption:
    """Mean over pairs of the moments of the cosine, by share of the caption and of the picture destroyed."""

    levels: tuple[float, ...]
    pairs: int
    mean: Tensor  # [text levels, image levels]
    std: Tensor  # [text levels, image levels]
    variance: Tensor  # [text levels, image levels]


def spread_pairs(data: LabelledSet, pairs: int = 100) -> tuple[list[Image.Image], list[str]]:
    """At most so many images, evenly spread over a set, each with the prompt of its class.

    Of a set that does not know its size it takes one pass more to count.
    """
    size = sum(1 for _ in data) if data.size is None else data.size
    rows = set(torch.linspace(0, size - 1, min(pairs, size), dtype=torch.float64).long().tolist())
    chosen = [sample for row, sample in enumerate(data) if row in rows]
    texts = list(set_prompts(data).texts)
    decoded = data.skipped.decode(chosen, read_stored)
    read = [(image, texts[sample.label]) for sample, image in decoded if image is not None]
    if not read:
        raise BayesVLMError(f"{data.name} has no image that can be read; look at its split and at what was skipped.")
    return [image for image, _ in read], [text for _, text in read]


def corrupt(vlm: BayesVLM, pictures: Sequence[Image.Image], captions: Sequence[str], seed: int = 0) -> Corruption:
    """Every combination of levels, on pictures and their captions, row i belongs to row i."""
    texts, images = [], []
    for level in LEVELS:
        generator = torch.Generator().manual_seed(seed)  # the same order at every level: more is destroyed, not other
        texts.append(vlm.text_features([crossed_out(text, level, generator) for text in captions], progress=False))
        generator = torch.Generator().manual_seed(seed)
        images.append(vlm.image_features([greyed(image, level, generator) for image in pictures], progress=False))
    mean = torch.empty(len(LEVELS), len(LEVELS))
    std, variance = torch.empty_like(mean), torch.empty_like(mean)
    for i, text in enumerate(texts):
        for j, image in enumerate(images):
            expected, spread = matched(vlm, image, text)
            mean[i, j], std[i, j], variance[i, j] = expected.mean(), spread.sqrt().mean(), spread.mean()
    return Corruption(LEVELS, len(captions), mean, std, variance)


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


def matched(vlm: BayesVLM, images: Features, texts: Features) -> tuple[Tensor, Tensor]:  # [N], [N]
    """Expected cosine and variance of each image with its own text."""
    moments = vlm.similarity(images, texts)
    return moments.mean.diagonal(), moments.variance.diagonal()
