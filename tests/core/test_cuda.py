"""The same mathematics on a GPU, in every precision, without touching the caller's settings."""

from __future__ import annotations

import pytest
import torch

from bayesvlm import BayesVLM, Features
from bayesvlm.core import contrast
from bayesvlm.core.contrast import ContrastBatch, Precision
from bayesvlm.core.curvature import infonce_curvature, sigmoid_curvature
from bayesvlm.core.passes import PlainPasses

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


@pytest.mark.parametrize(("precision", "tolerance"), [("float32", 1e-5), ("tf32", 3e-3), ("bf16", 3e-2)])
@pytest.mark.parametrize("copies", [False, True])
def test_fused_and_plain_passes_agree(
    precision: Precision, tolerance: float, copies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """700 or 653 targets: rows of a tile that do not end where 16 bytes do."""
    source, target = (rows.cuda() for rows in _embeddings(700, 96))
    if copies:
        target = target[:653][torch.arange(700) % 653]
    assert not isinstance(ContrastBatch(source, target, precision, None, merged=True).passes, PlainPasses)
    fused = [infonce_curvature(source, target, 50.0, precision=precision) for _ in range(2)]
    assert torch.equal(*fused), "nothing is added up in an order of chance"
    spread = sigmoid_curvature(source, target, 50.0, -10.0, precision=precision)
    monkeypatch.setattr(contrast, "passes_for", PlainPasses)
    assert _relative_error(fused[0], infonce_curvature(source, target, 50.0, precision=precision).cpu()) < tolerance
    assert (
        _relative_error(spread, sigmoid_curvature(source, target, 50.0, -10.0, precision=precision).cpu()) < tolerance
    )


@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_memory_stays_under_a_gibibyte(precision: Precision) -> None:
    """131,072 targets, 512 wide: whole rows, kept targets."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    source, target = (torch.randn(rows, 512, generator=generator, device="cuda") for rows in (4096, 131_072))
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    infonce_curvature(source, target, 50.0, precision=precision)
    assert torch.cuda.max_memory_allocated() - before < 2**30


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
