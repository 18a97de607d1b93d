"""A small fitted model from projections, and labelled images of its classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesvlm import BayesVLM, Features

D, P, C = 8, 12, 5


def draw(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def fitted(loss: Any = "infonce", **settings: Any) -> BayesVLM:
    """Both towers share a projection, so that images that are like a text score highly."""
    generator = torch.Generator().manual_seed(5)
    weight = draw(generator, D, P)
    vlm = BayesVLM.from_projections(weight, weight, 2.3, -4.0 if loss == "sigmoid" else None, loss=loss)
    vlm.fit([(Features(draw(generator, 200, P)), Features(draw(generator, 200, P)))], progress=False)
    return vlm.replace(tau=0.1, **settings)


def known_classes() -> Features:
    return Features(draw(torch.Generator().manual_seed(6), C, P))


def known_images(count: int, seed: int = 0, noise: float = 0.8) -> tuple[Features, Tensor]:
    """Images, each of a class and noise, and which class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(C, (count,), generator=generator)
    return Features(known_classes().activations[labels] + noise * draw(generator, count, P)), labels


def unknown_images(count: int, seed: int = 0) -> Features:
    """Images of nothing that is known."""
    return Features(draw(torch.Generator().manual_seed(1000 + seed), count, P))
