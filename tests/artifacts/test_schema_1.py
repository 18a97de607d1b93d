"""Posteriors that bayesvlm 0.1.0 wrote load with the numbers it had: the folders of schema-1 are its own.

Each holds, beside the posterior, what 0.1.0 gave for it: the factors, tau, lam, and probabilities for fixed inputs.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bayesvlm import BayesVLM, BayesVLMError, Features
from bayesvlm.artifacts import SavedPosterior

FOLDERS = Path(__file__).parent / "schema-1"


@pytest.mark.parametrize("loss", ["infonce", "sigmoid"])
@pytest.mark.parametrize("again", [False, True], ids=["as it is", "saved again"])
def test_it_loads_with_the_same_numbers(loss: str, again: bool, tmp_path: Path) -> None:
    folder = FOLDERS / loss
    assert json.loads((folder / "config.json").read_text())["bayesvlm_schema"] == 1
    if again:
        folder = SavedPosterior.load(folder).save(tmp_path / "again")
        assert json.loads((folder / "config.json").read_text())["bayesvlm_schema"] == 2
    vlm = BayesVLM.from_pretrained(folder)
    expected = load_file(FOLDERS / loss / "expected.safetensors")
    for tower in ("image", "text"):
        assert torch.equal(vlm.factors[tower].A, expected[f"{tower}.A"])
        assert torch.equal(vlm.factors[tower].B, expected[f"{tower}.B"])
    numbers = json.loads((FOLDERS / loss / "expected.json").read_text())
    assert vlm.tau == numbers["tau"]
    assert dict(vlm.lam) == pytest.approx(numbers["lam"], rel=1e-12)
    images, classes = Features(expected["images"]), Features(expected["classes"])
    for structure in ("damped", "exact"):
        for covariance in ("diagonal", "full"):
            probs = vlm.replace(structure=structure, covariance=covariance).classify(images, classes).probs
            torch.testing.assert_close(probs, expected[f"probs.{structure}.{covariance}"], rtol=0, atol=1e-6)


def damaged(tmp_path: Path, tensors: dict[str, torch.Tensor]) -> Path:
    """A copy of a folder of 0.1.0 with other tensors, which its config vouches for."""
    folder = tmp_path / "damaged"
    shutil.copytree(FOLDERS / "infonce", folder)
    save_file(load_file(folder / "posterior.safetensors") | tensors, folder / "posterior.safetensors")
    config = json.loads((folder / "config.json").read_text())
    config["tensors_sha256"] = hashlib.sha256((folder / "posterior.safetensors").read_bytes()).hexdigest()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("matrix", "sentence"),
    [
        (torch.ones(7, 6).double(), r"must be a square floating-point matrix, got torch.float64 of shape \[7, 6\]"),
        (torch.arange(49.0).reshape(7, 7).double(), "is not symmetric"),
        (torch.full((7, 7), float("inf")).double(), "holds NaN or Inf"),
        (torch.ones(28).double(), "must be a square floating-point matrix"),
    ],
)
def test_its_squares_are_checked(tmp_path: Path, matrix: torch.Tensor, sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=f"image tower: Factor A {sentence}"):
        SavedPosterior.load(damaged(tmp_path, {"image.A": matrix}))
