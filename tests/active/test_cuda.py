"""Choosing and fine-tuning on a GPU give what they give on the processor."""

from __future__ import annotations

import pytest
import torch
from core.references import normal

from bayesvlm import BayesVLM, Features
from bayesvlm.active import Epig, Strategy, finetune, rank

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")

CLASSES = 4
LABELS = torch.arange(40) % CLASSES


def model(device: str) -> BayesVLM:
    image, text = normal(6, 9, seed=0).float().to(device), normal(6, 7, seed=1).float().to(device)
    vlm = BayesVLM.from_projections(image, text, logit_scale=2.0)
    return vlm.fit([(Features(normal(80, 9, seed=2)), Features(normal(80, 7, seed=3)))], progress=False)


@pytest.mark.parametrize("strategy", ["entropy", "bald", "targeted-bald", "epig"])
def test_the_same_choice(strategy: Strategy) -> None:
    pool, target, classes = (Features(normal(n, p, seed=s)) for n, p, s in ((40, 9, 4), (15, 9, 5), (CLASSES, 7, 6)))
    options = Epig(gamma=1e-2, beta=5.0, targets=10, candidates=40)
    found = {
        device: rank(model(device), pool, target, classes, strategy, 8, LABELS, draws=50, options=options)
        for device in ("cpu", "cuda")
    }
    assert found["cpu"].indices.tolist() == found["cuda"].indices.tolist()
    assert torch.allclose(found["cpu"].scores, found["cuda"].scores, atol=1e-4)


def test_the_same_fine_tuning() -> None:
    images, classes = Features(normal(40, 9, seed=4)), Features(normal(CLASSES, 7, seed=6))
    tuned = {device: finetune(model(device), images, LABELS, classes, lr=1e-3, epochs=3) for device in ("cpu", "cuda")}
    assert torch.allclose(tuned["cpu"].image.weight, tuned["cuda"].image.weight.cpu(), atol=1e-5)
    probs = {device: vlm.classify(images, classes).probs.cpu() for device, vlm in tuned.items()}
    assert torch.allclose(probs["cpu"], probs["cuda"], atol=1e-4)
