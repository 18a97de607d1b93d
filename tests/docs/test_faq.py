"""What docs/faq.md says of embeddings that were stored after the projection."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize

from bayesvlm import BayesVLM, Features


@pytest.fixture
def draw() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def fitted(image_weight: torch.Tensor, text_weight: torch.Tensor, draw: torch.Generator) -> BayesVLM:
    vlm = BayesVLM.from_projections(image_weight, text_weight, 2.0)
    widths = image_weight.shape[1], text_weight.shape[1]
    images, texts = (Features(torch.randn(400, p, generator=draw) + 0.4) for p in widths)
    return vlm.fit([(images, texts)], progress=False)


def test_of_a_square_projection_normalised_embeddings_are_enough(draw: torch.Generator) -> None:
    image_weight, text_weight = torch.randn(2, 8, 8, generator=draw)
    vlm = fitted(image_weight, text_weight, draw)
    images, texts = torch.randn(2, 6, 8, generator=draw)
    back = [
        Features(torch.linalg.solve(weight, normalize(inputs @ weight.T, dim=1).T).T)
        for weight, inputs in ((image_weight, images), (text_weight, texts))
    ]
    before, after = vlm.similarity(Features(images), Features(texts)), vlm.similarity(*back)
    torch.testing.assert_close(after.mean, before.mean, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(after.variance, before.variance, rtol=1e-3, atol=1e-6)
    probs = vlm.classify(Features(images), Features(texts)).probs
    torch.testing.assert_close(vlm.classify(*back).probs, probs, rtol=1e-3, atol=1e-4)


def test_of_a_narrowing_one_the_least_solution_is_too_sure(draw: torch.Generator) -> None:
    image_weight, text_weight = torch.randn(8, 16, generator=draw), torch.randn(8, 8, generator=draw)
    vlm = fitted(image_weight, text_weight, draw)
    images, texts = torch.randn(40, 16, generator=draw), Features(torch.randn(6, 8, generator=draw))
    least = images @ image_weight.T @ torch.linalg.pinv(image_weight).T
    before, after = vlm.embed_images(Features(images)), vlm.embed_images(Features(least))
    torch.testing.assert_close(after.mean, before.mean, rtol=1e-3, atol=1e-3)
    ratio = vlm.similarity(Features(images), texts).variance / vlm.similarity(Features(least), texts).variance
    assert ratio.median() > 1.2
