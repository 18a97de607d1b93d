"""Saved posteriors: what is written, and everything that must be refused on the way back."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from bayesvlm import BayesVLM, BayesVLMError, Features
from bayesvlm.artifacts import SavedPosterior
from bayesvlm.artifacts.files import read_safetensors, write_together
from bayesvlm.artifacts.triangles import packed
from bayesvlm.artifacts.weights import check_weights, encoder_hashes, same_encoder, weight_hashes
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.core.projection import Projection


def fitted(seed: int = 0, weights: int = 0) -> BayesVLM:
    generator = torch.Generator().manual_seed(weights)
    vlm = BayesVLM.from_projections(torch.randn(4, 7, generator=generator), torch.randn(4, 5, generator=generator), 2.0)
    generator = torch.Generator().manual_seed(100 + seed)
    pairs = Features(torch.randn(30, 7, generator=generator)), Features(torch.randn(30, 5, generator=generator))
    return vlm.fit([pairs])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return fitted().save_pretrained(tmp_path / "posterior")


def test_the_folder_is_as_documented(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {
        "posterior.safetensors", "config.json", "README.md", "projections.safetensors",
    }  # fmt: skip
    config = json.loads((folder / "config.json").read_text())
    assert config["bayesvlm_schema"] == 2
    assert config["pairs"] == {"image": 30, "text": 30}
    tensors = load_file(folder / "posterior.safetensors")
    assert {name: tuple(t.shape) for name, t in tensors.items()} == {
        "image.A": (28,), "image.B": (10,), "text.A": (15,), "text.B": (10,),
    }  # fmt: skip
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float64}
    card = (folder / "README.md").read_text()
    assert f"{config['lam']['image']:.6g}" in card
    assert config["weights"]["float32"] in card


def test_a_posterior_for_other_weights_is_refused(folder: Path) -> None:
    saved, other = SavedPosterior.load(folder), fitted(weights=1)
    with pytest.raises(BayesVLMError, match="estimated for other weights"):
        other.with_posterior(saved)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_same_weights_in_half_precision_are_accepted(dtype: torch.dtype) -> None:
    vlm = fitted()
    halves = [Projection(p.weight.to(dtype)) for p in (vlm.image, vlm.text)]
    check_weights(weight_hashes(vlm.image, vlm.text), None, *halves, "the model in half precision")
    check_weights(weight_hashes(*halves), None, vlm.image, vlm.text, "the model in full precision")
    nudged = Projection(vlm.image.weight + 1e-6)
    with pytest.raises(BayesVLMError, match="other weights"):
        check_weights(weight_hashes(vlm.image, vlm.text), None, nudged, vlm.text, "a fine-tuned model")


def test_an_encoder_hash_is_of_the_numbers_alone() -> None:
    """Not of their names, order or layout, which change between versions and libraries; every single one counts."""
    a, b = (torch.randn(6, 4, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    hashes = encoder_hashes([a, b])
    for same in ([b, a], [torch.cat([a, b])], [a.T, b.flatten()], [a.double(), b]):
        assert encoder_hashes(same) == hashes
    assert same_encoder(hashes, [a.half(), b.half()])
    assert same_encoder(hashes, [a.bfloat16(), b.bfloat16()])
    assert same_encoder(encoder_hashes([a.half(), b.half()]), [a, b])
    for row in range(6):
        changed = a.clone()
        changed[row, row % 4] *= 1.0001
        assert not same_encoder(hashes, [changed, b])
        changed[row, row % 4] *= 1.01
        assert not same_encoder(hashes, [changed.bfloat16(), b.bfloat16()])
    assert not same_encoder(hashes, [a])


def test_buffers_do_not_matter() -> None:
    layer = torch.nn.BatchNorm1d(3)
    before = encoder_hashes(layer.parameters())
    layer.register_buffer("position_ids", torch.arange(5))
    layer.running_mean.add_(1.0)
    assert encoder_hashes(layer.parameters()) == before


def test_posteriors_of_two_encoders_are_not_merged() -> None:
    one, other = fitted(seed=1).saved(), fitted(seed=2).saved()

    def of(saved: SavedPosterior, *hashes: str) -> SavedPosterior:
        found = dict(zip(("float32", "float16", "bfloat16"), hashes, strict=True)) if hashes else None
        return replace(saved, config=replace(saved.config, all_weights=found))

    with pytest.raises(BayesVLMError, match="different encoders in front of the same projections"):
        of(one, "a", "b", "c").merge(of(other, "d", "e", "f"))
    merged = of(one, "a", "b", "c").merge(of(other, "b", "b", "d"))  # the second in half precision
    assert merged.config.all_weights == {"float32": "a", "float16": "b", "bfloat16": "c"}
    assert of(one, "a", "b", "c").merge(of(other)).config.all_weights is None


def rewrite(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    return damage


def set_header(edit: Callable[[dict], None]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        raw = path.read_bytes()
        size = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8 : 8 + size])
        edit(header)
        text = json.dumps(header).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size :])

    return damage


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-100]), "not a readable safetensors file"),
    "cut in the header": (lambda path: path.write_bytes(path.read_bytes()[:20]), "not a readable safetensors file"),
    "empty": (lambda path: path.write_bytes(b""), "not a readable safetensors file"),
    "oversized header": (
        lambda path: path.write_bytes(struct.pack("<Q", 2**60) + path.read_bytes()[8:]),
        "not a readable safetensors file",
    ),
    "overlapping offsets": (
        set_header(lambda header: header["text.A"].update(data_offsets=header["image.A"]["data_offsets"])),
        "not a readable safetensors file",
    ),
    "wrong shape in the header": (
        set_header(lambda header: header["image.A"].update(shape=[29])),
        "not a readable safetensors file",
    ),
    "a pickle": (lambda path: path.write_bytes(pickle.dumps({"image.A": 1})), "is a pickle"),
    "a torch.save": (lambda path: torch.save({"image.A": torch.ones(2)}, path), "is a pickle"),
    "no triangle": (
        rewrite(lambda t: t.update({"image.A": torch.ones(27).double()})),
        r"image tower: Factor A has shape \[27\]; expected the upper triangle of a square matrix",
    ),
    "no numbers": (rewrite(lambda t: t.update({"image.A": torch.ones(0).double()})), r"Factor A has shape \[0\]"),
    "a square": (rewrite(lambda t: t.update({"image.A": torch.eye(7).double()})), r"Factor A has shape \[7, 7\]"),
    "whole numbers": (
        rewrite(lambda t: t.update({"image.A": torch.ones(28).long()})),
        "must be a square floating-point matrix, got torch.int64",
    ),
    "NaN": (rewrite(lambda t: t["text.B"].fill_(float("nan"))), "text tower: Factor B holds NaN or Inf"),
    "missing tensor": (rewrite(lambda t: t.pop("text.B")), "no tensor text.B"),
    "other content": (rewrite(lambda t: t["text.B"].mul_(2)), "is not the file that config.json was written with"),
    "gone": (lambda path: path.unlink(), "does not exist"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_tensors_are_refused(folder: Path, name: str) -> None:
    damage, sentence = DAMAGES[name]
    damage(folder / "posterior.safetensors")
    with pytest.raises(BayesVLMError, match=sentence) as caught:
        BayesVLM.from_pretrained(folder)
    assert "\n" not in str(caught.value), "one sentence"


def test_factors_of_another_size_are_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    wide = {
        k: packed(torch.eye(9 if k.endswith("A") else 4, dtype=torch.float64))
        for k in ("image.A", "image.B", "text.A", "text.B")
    }
    save_file(wide, folder / "posterior.safetensors")
    config["tensors_sha256"] = hashlib.sha256((folder / "posterior.safetensors").read_bytes()).hexdigest()
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BayesVLMError, match=r"\(inputs, outputs\) = \(9, 4\), this one has \(7, 4\)"):
        BayesVLM.from_pretrained(folder)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"bayesvlm_schema": 99}, "has schema 99, this version reads 1 and 2; upgrade bayesvlm"),
        ({"bayesvlm_schema": 0}, "not a saved posterior"),
        ({"bayesvlm_schema": None}, "not a saved posterior"),
        ({"tau": -1}, "tau=-1"),
        ({"lam": {"image": 0, "text": 1}}, "lam of the image tower=0"),
        ({"pairs": {"image": 0, "text": 30}}, "pairs of the image tower is 0"),
        ({"loss": None}, "loss=None is not known"),
        ({"weights": {}}, "weights must hold"),
        ({"lam": 3}, "each tower"),
        ({"logit_scale": "abc"}, "logit_scale is 'abc'"),
        ({"provenance": [1]}, "provenance is"),
        ({"tensors_sha256": 5}, "tensors_sha256 is 5"),
        ({"tau": 10**400}, "tau="),
        ({"pairs": {"image": 10**400, "text": 30}}, "pairs of the image tower"),
        ({"model": 5}, "model is 5"),
    ],
)
def test_a_config_that_cannot_be(folder: Path, change: dict[str, object], sentence: str) -> None:
    config = json.loads((folder / "config.json").read_text()) | change
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BayesVLMError, match=sentence):
        BayesVLM.from_pretrained(folder)


@pytest.mark.parametrize("entry", ["tau", "lam", "pairs", "tensors_sha256", "structure"])
def test_a_config_without_an_entry(folder: Path, entry: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config[entry]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(BayesVLMError, match=entry):
        BayesVLM.from_pretrained(folder)


def test_a_config_that_is_not_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    with pytest.raises(BayesVLMError, match="not readable json"):
        BayesVLM.from_pretrained(folder)


def test_merge_adds_and_solves_lam_again(tmp_path: Path) -> None:
    first, second = fitted(seed=1), fitted(seed=2)
    merged = first.saved().merge(second.saved())
    for tower in ("image", "text"):
        total = first.factors[tower].A_sum + second.factors[tower].A_sum
        torch.testing.assert_close(merged.factors[tower].A_sum, total)
        assert merged.factors[tower].n == 60
    loaded = BayesVLM.from_pretrained(merged.save(tmp_path / "merged"))
    assert loaded.lam == pytest.approx(loaded.replace(tau=1.0).lam)
    assert loaded.lam["image"] != first.lam["image"]
    with pytest.raises(BayesVLMError, match="differ in weights"):
        first.saved().merge(fitted(weights=1).saved())
    with pytest.raises(BayesVLMError, match="copies of one another"):
        first.saved().merge(second.saved(), fitted(seed=1).saved())


def test_a_failed_write_leaves_the_old_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BayesVLMError, match=r"config\.json cannot be written: No space left on device; make room"):
        write_together(folder, {"config.json": b"new", "README.md": b"new"})
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_saving_over_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("something")
    with pytest.raises(BayesVLMError, match="is a file"):
        fitted().save_pretrained(tmp_path / "taken")
    with pytest.raises(BayesVLMError, match="is a file"):
        fitted().save_pretrained(tmp_path / "taken" / "deeper")


def test_saving_over_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "clip"}')
    (tmp_path / "posterior.safetensors").write_bytes(b"a stray file makes it no posterior")
    with pytest.raises(BayesVLMError, match=r"the config.json of something else"):
        fitted().save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == {"model_type": "clip"}


def test_saving_again_leaves_nothing_stale(folder: Path) -> None:
    saved = SavedPosterior.load(folder)
    assert saved.projections is not None
    SavedPosterior(saved.factors, saved.config).save(folder)
    assert SavedPosterior.load(folder).projections is None


@pytest.mark.parametrize(
    ("entry", "value"), [("tau", 3.0), ("normalise", "sum"), ("structure", "exact"), ("weights", None)]
)
def test_posteriors_made_otherwise_are_not_merged(entry: str, value: object) -> None:
    first, second = fitted(seed=1).saved(), fitted(seed=2).saved()
    other = SavedPosterior(second.factors, replace(second.config, **{entry: value}))
    with pytest.raises(BayesVLMError, match=entry):
        first.merge(other)


def test_an_indefinite_factor_is_refused_on_load(folder: Path) -> None:
    saved = SavedPosterior.load(folder)
    B = saved.factors["text"].B_sum
    factors = saved.factors | {"text": KroneckerFactors(saved.factors["text"].A_sum, B - B.trace() * torch.eye(4), 30)}
    SavedPosterior(factors, saved.config).save(folder)
    with pytest.raises(BayesVLMError, match="text tower: Factor B is indefinite"):
        SavedPosterior.load(folder)


def test_files_respect_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        fitted().save_pretrained(tmp_path / "private")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "private").iterdir()} == {0o600}


def test_a_posterior_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its id, from the local cache of the Hub, as it lies there after a download."""
    vlm, commit = fitted(), "0" * 40
    repository = tmp_path / "models--me--posterior"
    vlm.save_pretrained(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    loaded = BayesVLM.from_pretrained("me/posterior", device="cpu")
    assert loaded.lam == vlm.lam
    with pytest.raises(BayesVLMError, match="me/nothing"):
        BayesVLM.from_pretrained("me/nothing")


def test_a_head_of_any_length_is_no_pickle(tmp_path: Path) -> None:
    """Its length comes first in the file, and where that begins with 0x80 it begins like a pickle."""
    from safetensors.torch import save

    lengths = set()
    for letters in range(0, 256, 8):
        content = save({"a": torch.ones(2)}, metadata={"note": "x" * letters})
        path = tmp_path / f"{letters}.safetensors"
        path.write_bytes(content)
        assert read_safetensors(path)["a"].tolist() == [1, 1]
        lengths.add(content[0])
    assert 0x80 in lengths
