"""The authors' published models: their predictions, from their tensors, without their code."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from bayesvlm import BayesVLM, Features
from bayesvlm.active import finetune, select
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.models import load_adapter, loading

TEXTS = ["a photo of a cat", "two zebras", "a"]
CODE = "raise RuntimeError('code of the checkpoint was run')"


def pictures() -> list[Image.Image]:
    generator = np.random.default_rng(3)
    return [Image.fromarray(generator.integers(0, 256, (40, 40, 3), dtype=np.uint8)) for _ in range(4)]


def inverse(width: int, seed: int) -> torch.Tensor:
    phi = torch.randn(80, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.linalg.inv(phi.T @ phi / math.sqrt(80) + 3 * torch.eye(width)).float().contiguous()


@pytest.fixture
def tensors() -> dict[str, torch.Tensor]:
    return {
        "image_a_inv": inverse(48, 0),
        "image_b_diag": inverse(24, 1).diagonal().clone(),
        "text_a_inv": inverse(32, 2),
        "text_b_diag": inverse(24, 3).diagonal().clone(),
    }


def publish(source: Path, folder: Path, tensors: dict[str, torch.Tensor], pickled: bool = False) -> Path:
    """A folder as the authors' script writes it: a CLIP of transformers, four buffers more, and code."""
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text())
    config["architectures"] = ["BayesVLMModel"]
    config["auto_map"] = {
        "AutoModel": "modeling_bayesvlm_clip.BayesVLMModel",
        "AutoProcessor": "transformers.CLIPProcessor",
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "modeling_bayesvlm_clip.py").write_text(CODE)
    weights = load_file(folder / "model.safetensors") | tensors
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    if pickled:
        torch.save(weights, folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    return folder


@pytest.mark.parametrize("pickled", [False, True])
def test_predictions_equal_the_formula(
    pickled: bool, folders: dict[str, Path], tmp_path: Path, tensors: dict[str, torch.Tensor]
) -> None:
    """The paper's moments of the cosine, written out in numpy from the four tensors."""
    vlm = BayesVLM.from_pretrained(publish(folders["clip"], tmp_path / "model", tensors, pickled), device="cpu")
    plain = load_adapter(folders["clip"], device="cpu")
    W, V = plain.image.weight.double().numpy(), plain.text.weight.double().numpy()
    phi = plain.encode_images(pictures()).activations.double().numpy()
    psi = plain.encode_texts(TEXTS).activations.double().numpy()
    of = {name: tensor.double().numpy() for name, tensor in tensors.items()}
    g, h = phi @ W.T, psi @ V.T
    var_g = np.einsum("ni,ij,nj->n", phi, of["image_a_inv"], phi)[:, None] * of["image_b_diag"]
    var_h = np.einsum("ni,ij,nj->n", psi, of["text_a_inv"], psi)[:, None] * of["text_b_diag"]
    second_g, second_h = (g**2 + var_g).sum(1), (h**2 + var_h).sum(1)
    mean = g @ h.T / np.sqrt(np.outer(second_g, second_h))
    variance = ((g**2 + var_g) @ var_h.T + var_g @ (h**2).T) / np.outer(second_g, second_h)
    logits = mean / np.sqrt(math.exp(-2 * plain.logit_scale) + math.pi / 8 * variance)
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)

    found = vlm.classify(pictures(), TEXTS)
    np.testing.assert_allclose(found.mean.numpy(), mean, atol=1e-5)
    np.testing.assert_allclose(found.variance.numpy(), variance, rtol=1e-4)
    np.testing.assert_allclose(found.probs.numpy(), probs, atol=1e-5)
    assert vlm.fitted
    assert "a published posterior" in repr(vlm)


@pytest.fixture
def vlm(folders: dict[str, Path], tmp_path: Path, tensors: dict[str, torch.Tensor]) -> BayesVLM:
    return BayesVLM.from_pretrained(publish(folders["clip"], tmp_path / "model", tensors), device="cpu")


def test_draws_agree_with_the_moments(vlm: BayesVLM) -> None:
    prediction = vlm.classify(pictures(), TEXTS, draws=200)
    assert bool((prediction.epistemic >= -1e-6).all())
    sampled = vlm.replace(link="mc").classify(pictures(), TEXTS, draws=2000).probs
    assert float((sampled - prediction.probs).abs().max()) < 0.15


@pytest.mark.parametrize(
    "change", [{"tau": 2.0}, {"lam": "evidence"}, {"structure": "exact"}, {"covariance": "full", "link": "mc"}]
)
def test_settings_are_as_published(vlm: BayesVLM, change: dict[str, object]) -> None:
    with pytest.raises(BayesVLMError, match=r"cannot be changed: .* came with its posterior as inverses"):
        vlm.replace(**change)  # type: ignore[arg-type]


def test_what_needs_factors_is_refused(vlm: BayesVLM, tmp_path: Path) -> None:
    images, texts = vlm.image_features(pictures()), vlm.text_features(TEXTS)
    labels = torch.tensor([0, 1, 2, 0])
    with pytest.raises(BayesVLMError, match=r"no factors to read, update or save: .* as inverses"):
        vlm.save_pretrained(tmp_path / "saved")
    with pytest.raises(BayesVLMError, match="lam is not known"):
        _ = vlm.lam
    with pytest.raises(BayesVLMError, match="tau is not known"):
        _ = vlm.tau
    with pytest.raises(BayesVLMError, match="no tau to tune"):
        vlm.tune(images, labels, texts)
    with pytest.raises(BayesVLMError, match="no factors to read"):
        finetune(vlm, images, labels, texts)
    with pytest.raises(BayesVLMError, match="there are none: this model came with its posterior as inverses"):
        select(vlm, images, images, texts, strategy="epig", budget=1)
    assert len(select(vlm, images, images, texts, strategy="bald", budget=2)) == 2


def test_another_posterior_takes_its_place(vlm: BayesVLM) -> None:
    bare = vlm.without_posterior()
    assert not bare.fitted
    draw = torch.Generator().manual_seed(0)
    pairs = tuple(Features(torch.randn(50, width, generator=draw)) for width in (48, 32))
    assert vlm.fit([pairs], negatives=25).tau == 1.0  # type: ignore[list-item]
    assert vlm.factors["image"].n == 50
    assert vlm.replace(tau=2.0).tau == 2.0


def test_zeros_are_no_posterior(folders: dict[str, Path], tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    empty = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    with pytest.raises(BayesVLMError, match="all zeros: none was ever set"):
        load_adapter(publish(folders["clip"], tmp_path / "model", empty))


def test_a_missing_tensor_is_named(folders: dict[str, Path], tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    del tensors["text_b_diag"]
    with pytest.raises(BayesVLMError, match="holds no text_b_diag"):
        load_adapter(publish(folders["clip"], tmp_path / "model", tensors))


def test_a_tensor_of_another_shape(folders: dict[str, Path], tmp_path: Path, tensors: dict[str, torch.Tensor]) -> None:
    tensors["text_a_inv"] = tensors["image_a_inv"].clone()
    with pytest.raises(BayesVLMError, match=r"text tower: The inverse of A is \[48, 48\]"):
        load_adapter(publish(folders["clip"], tmp_path / "model", tensors))


def test_a_pickle_that_runs_code_is_refused(
    folders: dict[str, Path], tmp_path: Path, tensors: dict[str, torch.Tensor]
) -> None:
    class Malicious:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return Path.touch, (tmp_path / "ran",)

    folder = publish(folders["clip"], tmp_path / "model", tensors, pickled=True)
    torch.save({"image_a_inv": Malicious()}, folder / "pytorch_model.bin")
    with pytest.raises(BayesVLMError, match="could not be built"):
        load_adapter(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("revision", [None, "v1"])
def test_from_the_hub(
    revision: str | None,
    folders: dict[str, Path],
    tmp_path: Path,
    tensors: dict[str, torch.Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The torch file is asked for only when the repository turns out to be one of these, without safetensors."""
    folder = publish(folders["clip"], tmp_path / "model", tensors, pickled=True)
    asked: list[str] = []
    wanted = revision

    def snapshot_download(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        assert revision == wanted
        asked.extend(pattern for pattern in allow_patterns if "bin" in pattern)
        return str(folder)

    monkeypatch.setattr(loading, "snapshot_download", snapshot_download)
    vlm = BayesVLM.from_pretrained("aalto-ml/BayesVLM-Base", device="cpu", revision=revision)
    assert asked == ["pytorch_model*.bin"]
    assert vlm.fitted
