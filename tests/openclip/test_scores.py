"""Familiarity against pytorch-ood, which needs torchvision and so this environment."""

from __future__ import annotations

import torch
from pytorch_ood.detector import MCM, EnergyBased, Entropy, MaxSoftmax
from torch import Tensor, nn

from bayesvlm import BayesVLM, Features
from bayesvlm.safety import familiarities, scores

D, P, C = 16, 24, 10


def draw(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_formulas_are_those_of_pytorch_ood() -> None:
    logits = 3 * draw(100, C, seed=0)
    probs = torch.softmax(logits, dim=1)
    identity = nn.Identity()
    torch.testing.assert_close(scores.msp(probs), -MaxSoftmax(identity).predict(logits), atol=1e-6, rtol=0)
    torch.testing.assert_close(scores.entropy(probs), -Entropy(identity).predict(logits), atol=1e-6, rtol=0)
    for t in (1.0, 2.5):
        theirs = -EnergyBased(identity, t=t).predict(logits)
        torch.testing.assert_close(scores.energy(logits, t), theirs, atol=1e-6, rtol=0)


def test_scores_of_a_model_are_those_of_pytorch_ood() -> None:
    vlm = BayesVLM.from_projections(draw(D, P, seed=1), draw(D, P, seed=2), 2.0)
    images, texts = Features(draw(50, P, seed=3)), Features(draw(C, P, seed=4))
    found = familiarities(vlm, images, texts, ["msp", "entropy", "mcm", "energy"], predictive="plain")
    logits = vlm.logits(images, texts)
    for name, detector in (("msp", MaxSoftmax), ("entropy", Entropy), ("energy", EnergyBased)):
        torch.testing.assert_close(found[name], -detector(nn.Identity()).predict(logits), atol=1e-6, rtol=0)
    mcm = MCM(None, vlm.text.embed(texts)).predict_features(vlm.image.embed(images))  # in float32
    torch.testing.assert_close(found["mcm"], -mcm.double(), atol=1e-6, rtol=0)
