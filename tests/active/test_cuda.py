"""Choosing and fine-tuning on a GPU give what they give on the processor."""

from __future__ import annotations

import pytest
import torch
from core.references import assert_close, normal

from bayesvlm import BayesVLM, Features
from bayesvlm.active import Epig, Strategy, finetune, rank

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")

CLASSES = 4
LABELS = torch.arange(40) % CLASSES


def model(device: str) -> BayesVLM:
    image, text = normal(6, 9, seed=0).float().to(device), normal(6, 7, seed=1).float().to(device)
    vlm = BayesVLM.from_projections(image, text, logit_scale=2.0)
    return vlm.fit([(Features(normal(80, 9, seed=2)), Features(normal(80, 7, seed=3)))], progress=False)


def found(strategy: Strategy, budget: int, draws: int) -> tuple[dict[int, float], dict[int, float]]:
    """Item -> score, on either device."""
    pool, target, classes = (Features(normal(n, p, seed=s)) for n, p, s in ((40, 9, 4), (15, 9, 5), (CLASSES, 7, 6)))
    options = Epig(gamma=1e-2, beta=5.0, targets=10, candidates=40)
    both = []
    for device in ("cpu", "cuda"):
        chosen = rank(model(device), pool, target, classes, strategy, budget, LABELS, draws=draws, options=options)
        both.append(dict(zip(chosen.indices.tolist(), chosen.scores.tolist(), strict=True)))
    return both[0], both[1]


def test_the_same_entropies() -> None:
    cpu, cuda = found("entropy", 40, 1)
    assert cuda == pytest.approx(cpu, abs=1e-5)


def test_the_same_draws() -> None:
    inputs = Features(normal(40, 9, seed=4).float())
    drawn = {}
    for device in ("cpu", "cuda"):
        posterior = model(device).posterior["image"]
        drawn[device] = posterior.drawn_embeddings(inputs.to(device), 20, torch.Generator().manual_seed(3)).cpu()
    assert_close(drawn["cuda"], drawn["cpu"], 1e-5)


def test_the_same_information_and_the_same_choice() -> None:
    cpu, cuda = found("bald", 40, 100)
    assert cuda == pytest.approx(cpu, abs=1e-5)
    cpu, cuda = found("epig", 20, 100)
    assert list(cuda) == list(cpu)
    assert cuda == pytest.approx(cpu, rel=1e-3, abs=1e-6)


def test_the_same_draws_with_the_text_held() -> None:
    """Wide enough that cosines are drawn without their embeddings."""
    pool, target = (Features(normal(n, 9, seed=s).float()) for n, s in ((40, 4), (15, 5)))
    classes, chosen = Features(normal(3, 7, seed=6).float()), {}
    options = Epig(gamma=1e-2, beta=5.0, targets=10, candidates=40)
    for device in ("cpu", "cuda"):
        image, text = normal(24, 9, seed=0).float().to(device), normal(24, 7, seed=1).float().to(device)
        vlm = BayesVLM.from_projections(image, text, logit_scale=2.0)
        vlm.fit([(Features(normal(80, 9, seed=2)), Features(normal(80, 7, seed=3)))], progress=False)
        chosen[device] = rank(vlm, pool, target, classes, "epig", 10, LABELS % 3, options=options)
    assert torch.equal(chosen["cuda"].indices, chosen["cpu"].indices)
    assert_close(chosen["cuda"].scores, chosen["cpu"].scores, 1e-3)


def test_the_same_fine_tuning() -> None:
    images, classes = Features(normal(40, 9, seed=4)), Features(normal(CLASSES, 7, seed=6))
    tuned = {device: finetune(model(device), images, LABELS, classes, lr=1e-3, epochs=3) for device in ("cpu", "cuda")}
    assert torch.allclose(tuned["cpu"].image.weight, tuned["cuda"].image.weight.cpu(), atol=1e-5)
    probs = {device: vlm.classify(images, classes).probs.cpu() for device, vlm in tuned.items()}
    assert torch.allclose(probs["cpu"], probs["cuda"], atol=1e-4)
