"""Tiny checkpoints: deterministic, different by seed, laid out as published."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bayesvlm.testing.tiny import save_tiny_clip, save_tiny_siglip, save_tiny_siglip2

COMMON = {"config.json", "model.safetensors", "preprocessor_config.json"}
TOKENIZER = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}


@pytest.mark.parametrize(
    ("save", "extra"),
    [(save_tiny_clip, {"vocab.json", "merges.txt"}), (save_tiny_siglip, set()), (save_tiny_siglip2, set())],
)
def test_saved_as_published(
    save: Callable[..., Path], extra: set[str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    state = torch.random.get_rng_state()
    first, same, other = save(tmp_path / "a"), save(tmp_path / "b"), save(tmp_path / "c", seed=1)
    assert torch.equal(torch.random.get_rng_state(), state), "the global generator was moved"
    assert capfd.readouterr() == ("", "")
    assert COMMON | TOKENIZER | extra <= {path.name for path in first.iterdir()}
    assert sum(path.stat().st_size for path in first.iterdir()) < 1_000_000
    for path in first.iterdir():
        assert path.read_bytes() == (same / path.name).read_bytes(), f"{path.name} differs between two runs"
    weights, others = load_file(first / "model.safetensors"), load_file(other / "model.safetensors")
    equal = {name for name in weights if torch.equal(weights[name], others[name])}
    assert equal <= {"logit_scale", "logit_bias"}, "a seed must change every weight"


def test_no_bias_or_norm_is_trivial(tmp_path: Path) -> None:
    for name, weight in load_file(save_tiny_siglip(tmp_path / "a") / "model.safetensors").items():
        assert weight.numel() == 1 or weight.std() > 1e-3, f"{name} is constant, so a test cannot tell if it is used"
