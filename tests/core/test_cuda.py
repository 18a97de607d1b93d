"""The same mathematics on a GPU, in every precision, without touching the caller's settings."""

from __future__ import annotations

import pytest
import torch

from bayesvlm import BayesVLM, Features
from bayesvlm.core.curvature import infonce_curvature, sigmoid_curvature

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")


def _embeddings(rows: int, d: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    source = torch.randn(rows, d, generator=generator)
    return source, source + 3 * torch.randn(rows, d, generator=generator)


def _relative_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    return float((value.cpu() - reference).norm() / reference.norm())


@pytest.mark.parametrize(
    ("precision", "tolerance"), [("float64", 1e-12), ("float32", 1e-5), ("tf32", 3e-3), ("bf16", 3e-2)]
)
@pytest.mark.parametrize("memory", [512 * 2**20, 2**20])
def test_curvature_equals_the_cpu_reference(precision: str, tolerance: float, memory: int) -> None:
    source, target = _embeddings(700, 96)
    expected = infonce_curvature(source.double(), target.double(), 50.0)
    actual = infonce_curvature(source.cuda(), target.cuda(), 50.0, precision=precision, memory=memory)
    assert actual.dtype == torch.float64
    assert _relative_error(actual, expected) < tolerance
    expected = sigmoid_curvature(source.double(), target.double(), 50.0, -10.0)
    actual = sigmoid_curvature(source.cuda(), target.cuda(), 50.0, -10.0, precision=precision, memory=memory)
    assert _relative_error(actual, expected) < tolerance


@pytest.mark.parametrize("allowed", [True, False])
def test_the_callers_tf32_setting_neither_leaks_in_nor_changes(allowed: bool) -> None:
    source, target = _embeddings(700, 96)
    expected = infonce_curvature(source.double(), target.double(), 50.0)
    before = torch.backends.cuda.matmul.allow_tf32
    try:
        torch.backends.cuda.matmul.allow_tf32 = allowed
        assert _relative_error(infonce_curvature(source.cuda(), target.cuda(), 50.0), expected) < 1e-5
        infonce_curvature(source.cuda(), target.cuda(), 50.0, precision="tf32")
        assert torch.backends.cuda.matmul.allow_tf32 is allowed
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


@pytest.mark.parametrize("structure", ["damped", "exact"])
@pytest.mark.parametrize("link", ["probit", "centred", "mc"])
def test_fit_and_classify_agree_with_the_cpu(structure: str, link: str) -> None:
    generator = torch.Generator().manual_seed(1)

    def draw(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator)

    weights, pairs, inputs = (draw(8, 20), draw(8, 12)), (draw(300, 20), draw(300, 12)), (draw(9, 20), draw(5, 12))
    probs = {}
    for device in ("cpu", "cuda"):
        vlm = BayesVLM.from_projections(*(weight.to(device) for weight in weights), logit_scale=2.0)
        vlm.fit([tuple(Features(part.to(device)) for part in pairs)], negatives=128)
        prediction = vlm.replace(structure=structure, link=link).classify(*(Features(part) for part in inputs))
        assert prediction.probs.device.type == device
        assert torch.isfinite(prediction.epistemic).all()
        probs[device] = prediction.probs.cpu()
    assert (probs["cpu"] - probs["cuda"]).abs().max() < 1e-4
