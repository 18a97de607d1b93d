"""A model for scikit-learn's checks, whose tables have any width and whose labels are any text."""

from __future__ import annotations

import zlib
from typing import Any

import torch

from bayesvlm import BayesVLM, Features
from bayesvlm.prompts import ClassPrompts

WIDTH, TEXT_WIDTH, EMBEDDING = 24, 12, 8


def rows(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class AnyWidthVLM(BayesVLM):
    """Activations of any width are mapped to those it takes; a text has activations of its own, drawn from its letters.

    Everything else is a BayesVLM made from projections.
    """

    @classmethod
    def fitted_on_noise(cls) -> AnyWidthVLM:
        vlm = cls.from_projections(rows(0, EMBEDDING, WIDTH), rows(1, EMBEDDING, TEXT_WIDTH), 2.0)
        return vlm.fit([(Features(rows(2, 200, WIDTH)), Features(rows(3, 200, TEXT_WIDTH)))])

    def image_features(self, inputs: Any, **options: Any) -> Features:
        phi = super().image_features(inputs, **options).activations.double()
        return Features(phi @ rows(phi.shape[1], phi.shape[1], WIDTH) + 0.1)

    def class_features(self, classes: Any, templates: Any = None, **options: Any) -> Features:
        if isinstance(classes, Features):
            return super().class_features(classes, templates, **options)
        asked = ClassPrompts.of(classes, templates)
        return Features(torch.cat([rows(zlib.crc32(text.encode()), 1, TEXT_WIDTH) for text in asked.texts]))
