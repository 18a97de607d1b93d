"""The adapter agrees with plain open_clip, for every kind of tower; what it cannot serve it refuses."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import open_clip
import pytest
import torch
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image
from safetensors.torch import load_file
from torch.nn.functional import normalize

from bayesvlm import BayesVLM, Features
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.models import load_adapter, loading
from bayesvlm.models.openclip import OpenClipAdapter
from bayesvlm.models.pixels import Pixels
from bayesvlm.testing import check_adapter
from openclip.tiny import CONFIGURATIONS, TEXT, VIT, save_tiny, timm

KINDS = (*CONFIGURATIONS, "hf-text")
TEXTS = ["a photo of a cat", "Two zebras, at dusk!", "a"]


def pictures() -> list[Image.Image]:
    generator = np.random.default_rng(3)
    shapes = ((40, 40), (30, 91), (90, 37), (200, 151), (3, 5))
    return [Image.fromarray(generator.integers(0, 256, (*shape, 3), dtype=np.uint8)) for shape in shapes]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_embeddings_and_logits_equal_those_of_plain_open_clip(kind: str, folders: dict[str, Path]) -> None:
    """Model, transform and tokenizer straight from open_clip, none of our code, against features and projections."""
    source = f"local-dir:{folders[kind]}"
    model, _, transform = open_clip.create_model_and_transforms(source)
    tokens = open_clip.get_tokenizer(source)(TEXTS)
    model = model.eval()
    with torch.no_grad():
        image = model.encode_image(torch.stack([transform(picture) for picture in pictures()]), normalize=True)
        text = model.encode_text(tokens, normalize=True)
        logits = model.logit_scale.exp() * image @ text.T + (0.0 if model.logit_bias is None else model.logit_bias)

    adapter = load_adapter(folders[kind], device="cpu")
    assert isinstance(adapter, OpenClipAdapter)
    g = normalize(adapter.image.embed(adapter.encode_images(pictures())), dim=1)
    h = normalize(adapter.text.embed(adapter.encode_texts(TEXTS)), dim=1)
    torch.testing.assert_close(g, image, atol=1e-5, rtol=0)
    torch.testing.assert_close(h, text, atol=1e-5, rtol=0)
    scale = float(np.exp(adapter.logit_scale))
    torch.testing.assert_close(
        (scale * g @ h.T + (adapter.logit_bias or 0.0)) / scale, logits / scale, atol=1e-5, rtol=0
    )
    assert adapter.loss == ("sigmoid" if kind.startswith("siglip") else "infonce")
    assert (adapter.logit_bias is not None) == (adapter.loss == "sigmoid")


def test_the_adapter_is_sound(kind: str, folders: dict[str, Path]) -> None:
    check_adapter(load_adapter(folders[kind], device="cpu"))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
@pytest.mark.parametrize("kind", ["vit", "resnet", "siglip", "coca"])
def test_other_precisions(kind: str, dtype: str, folders: dict[str, Path]) -> None:
    adapter = load_adapter(folders[kind], device="cpu", dtype=dtype)
    check_adapter(adapter)
    assert adapter.image.weight.dtype == (torch.float64 if dtype == "float64" else torch.float32)


def test_the_last_layer_is_the_one_that_is_stored(folders: dict[str, Path]) -> None:
    vit, resnet = (load_file(folders[kind] / "open_clip_model.safetensors") for kind in ("vit", "resnet"))
    adapter = load_adapter(folders["vit"], device="cpu")
    assert torch.equal(adapter.image.weight, vit["visual.proj"].T)
    assert torch.equal(adapter.text.weight, vit["text_projection"].T)
    adapter = load_adapter(folders["resnet"], device="cpu")
    assert torch.equal(adapter.image.weight, resnet["visual.attnpool.c_proj.weight"])
    assert torch.equal(adapter.image.bias, resnet["visual.attnpool.c_proj.bias"])
    assert load_adapter(folders["siglip"], device="cpu").image.residual


@pytest.mark.parametrize("mode", ["shortest", "longest", "squash"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [32, (24, 40), (40, 24)])
def test_pixels_equal_those_of_open_clip(mode: str, interpolation: str, size: int | tuple[int, int]) -> None:
    settings = {"size": size, "interpolation": interpolation, "resize_mode": mode, "fill_color": 7, "mean": 0.4}
    expected = image_transform_v2(PreprocessCfg(**settings), is_train=False)
    found = Pixels.from_open_clip(PreprocessCfg(**settings).__dict__)(pictures())
    torch.testing.assert_close(found, torch.stack([expected(picture) for picture in pictures()]), atol=1e-5, rtol=0)


def test_features_are_keyed_by_architecture_and_preprocessing(folders: dict[str, Path]) -> None:
    keys = set()
    for kind in KINDS:
        adapter = load_adapter(folders[kind], device="cpu")
        keys.add(json.dumps([adapter.architecture(), adapter.preprocessing()], sort_keys=True))
        assert adapter.architecture() == load_adapter(folders[kind], device="cpu").architecture()
    assert len(keys) == len(KINDS)


# Names ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An architecture that open_clip knows by name, for as long as the test runs."""
    monkeypatch.setattr(open_clip.factory, "_MODEL_CONFIG_PATHS", list(open_clip.factory._MODEL_CONFIG_PATHS))
    monkeypatch.setattr(open_clip.factory, "_MODEL_CONFIGS", dict(open_clip.factory._MODEL_CONFIGS))
    (tmp_path / "tiny-vit.json").write_text(json.dumps(CONFIGURATIONS["vit"]))
    open_clip.add_model_config(tmp_path / "tiny-vit.json")
    return "tiny-vit"


@pytest.mark.parametrize("suffix", ["safetensors", "pt"])
def test_an_architecture_with_a_file(
    architecture: str, suffix: str, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / f"weights.{suffix}"
    stored = folders["vit"] / "open_clip_model.safetensors"
    if suffix == "pt":
        torch.save(
            {"epoch": 3, "state_dict": {f"module.{key}": value for key, value in load_file(stored).items()}}, file
        )
    else:
        shutil.copy(stored, file)
    expected = load_adapter(folders["vit"], device="cpu").encode_images(pictures()).activations
    monkeypatch.chdir(tmp_path)
    for name in (f"open_clip:{architecture}/{file}", f"open_clip:{architecture}/{file.name}"):
        adapter = load_adapter(name, device="cpu")
        assert adapter.name == f"open_clip:{architecture}/{file.resolve()}"
        assert torch.equal(adapter.encode_images(pictures()).activations, expected)


def test_an_architecture_with_a_tag(
    architecture: str, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tag brings its preprocessing; an activation other than the architecture's is refused."""
    tag = {"hf_hub": "somebody/tiny/", "mean": (0.1, 0.2, 0.3), "std": (0.5,) * 3, "quick_gelu": False}
    monkeypatch.setitem(
        open_clip.pretrained._PRETRAINED, architecture, {"noise": tag, "quick": tag | {"quick_gelu": True}}
    )
    stored = str(folders["vit"] / "open_clip_model.safetensors")
    monkeypatch.setattr(open_clip.factory, "download_pretrained", lambda *_, **__: stored)
    adapter = load_adapter(f"open_clip:{architecture}/noise", device="cpu")
    assert adapter.name == "open_clip:tiny-vit/noise"
    assert adapter.preprocessing()["pixels"]["mean"] == (0.1, 0.2, 0.3)
    with pytest.raises(BayesVLMError, match=r"'open_clip:tiny-vit-quickgelu/quick'"):
        load_adapter(f"open_clip:{architecture}/quick")
    with pytest.raises(BayesVLMError, match="its tags are noise, quick"):
        load_adapter(f"open_clip:{architecture}/other")


def test_a_hub_repository(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """By open_clip's prefix, and by its bare id where it holds no model of transformers."""
    asked: list[tuple[str, str | None, list[str]]] = []

    def snapshot_download(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((name, revision, allow_patterns))
        return str(folders["vit"])

    monkeypatch.setattr(loading, "snapshot_download", snapshot_download)
    adapter = load_adapter("hf-hub:somebody/tiny", revision="v1", device="cpu")
    assert (adapter.name, adapter.revision) == ("hf-hub:somebody/tiny", "vit")
    assert asked == [("somebody/tiny", "v1", ["*.json", "*.txt", "*.model", "open_clip_*.safetensors"])]
    assert load_adapter("open_clip:hf-hub:somebody/tiny", device="cpu").name == "hf-hub:somebody/tiny"
    assert load_adapter("somebody/tiny", device="cpu").name == "somebody/tiny"


def test_a_repository_with_a_torch_file_only(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(folders["vit"], tmp_path / "snapshot")
    torch.save(load_file(folder / "open_clip_model.safetensors"), folder / "open_clip_pytorch_model.bin")
    (folder / "open_clip_model.safetensors").unlink()
    asked: list[str] = []
    monkeypatch.setattr(
        loading, "snapshot_download", lambda *_, allow_patterns, **__: asked.extend(allow_patterns) or str(folder)
    )
    check_adapter(load_adapter("hf-hub:somebody/tiny", device="cpu"))
    assert asked[-1] == "open_clip_pytorch_model.bin"


def test_a_pickle_that_runs_code_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    class Malicious:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "ran",)  # type: ignore[return-value]

    folder = shutil.copytree(folders["vit"], tmp_path / "model", ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save({"state_dict": Malicious()}, folder / "open_clip_pytorch_model.bin")
    with pytest.raises(BayesVLMError, match="open_clip could not build"):
        load_adapter(folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("open_clip:", "no architecture ''"),
        ("open_clip:ViT-X/some", "no architecture 'ViT-X'"),
        (
            "open_clip:ViT-B-32",
            "'' .* is neither a tag of 'ViT-B-32' nor a file here; its tags are .*laion2b_s34b_b79k",
        ),
        ("open_clip:ViT-B-32/no-such", "'no-such' .* is neither a tag"),
        ("open_clip:ViT-B-32//no/such.pt", "'/no/such.pt' .* is neither a tag"),
        ("open_clip:ViT-B-32/laion2b_s34b_b79k", "open_clip could not build .* check the name and the network"),
        ("local-dir:/no/such/folder", "holds no open_clip_config.json"),
        ("hf-hub:nobody/nothing", "'nobody/nothing' is not a folder here, not in the local cache, and the Hub"),
        ("hf-hub:nothing/to/see", "neither a folder nor a Hub id"),
    ],
)
def test_a_model_that_is_not_there(name: str, message: str) -> None:
    with pytest.raises(BayesVLMError, match=message) as caught:
        load_adapter(name)
    assert "\n" not in str(caught.value)


def test_only_hub_ids_have_revisions() -> None:
    with pytest.raises(BayesVLMError, match="only Hub ids have revisions"):
        load_adapter("open_clip:ViT-B-32/laion2b_s34b_b79k", revision="main")


# Refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("configuration", "message"),
    [
        ({"embed_dim": 48, "vision_cfg": VIT, "text_cfg": TEXT | {"width": 48, "proj_type": "none"}}, "text tower"),
        ({"embed_dim": 64, "vision_cfg": timm("test_vit", "token", "none"), "text_cfg": TEXT}, "image tower"),
    ],
)
def test_a_model_without_a_projection(configuration: dict[str, object], message: str, tmp_path: Path) -> None:
    with pytest.raises(BayesVLMError, match=f"{message} of .* does not end in a linear layer"):
        load_adapter(save_tiny(tmp_path / "model", configuration))


def test_something_after_the_last_layer(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that open_clip may have one day is refused when it is loaded."""
    create = open_clip.create_model

    def with_another_head(*arguments: object, **options: object) -> torch.nn.Module:
        model = create(*arguments, **options)
        model.visual.register_forward_hook(lambda module, inputs, output: output.relu())
        return model

    monkeypatch.setattr(open_clip, "create_model", with_another_head)
    with pytest.raises(BayesVLMError, match=r"image tower of .* does more after its last linear layer"):
        load_adapter(folders["vit"])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "open_clip_config.json").write_text("{"), "is not json with a model_cfg"),
        (lambda folder: (folder / "open_clip_config.json").write_text("{}"), "is not json with a model_cfg"),
        (lambda folder: (folder / "open_clip_model.safetensors").unlink(), "open_clip could not build"),
        (lambda folder: (folder / "open_clip_model.safetensors").write_bytes(b"x"), "open_clip could not build"),
    ],
)
def test_a_damaged_folder(damage: object, message: str, folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["vit"], tmp_path / "model")
    damage(folder)  # type: ignore[operator]
    with pytest.raises(BayesVLMError, match=message):
        load_adapter(folder)


def test_a_folder_without_its_tokenizer(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = shutil.copytree(folders["hf-text"], tmp_path / "model", ignore=shutil.ignore_patterns("tokenizer*"))
    with pytest.raises(BayesVLMError, match=r"has no tokenizer, and .* names 'somebody/bert'"):
        load_adapter(folder)


def test_open_clip_is_quiet_and_logging_left_as_it_was(
    folders: dict[str, Path], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    handlers = list(logging.getLogger().handlers)
    load_adapter(folders["vit"])
    with pytest.raises(BayesVLMError):
        load_adapter("open_clip:ViT-B-32/laion2b_s34b_b79k")
    assert logging.getLogger().handlers == handlers
    assert logging.root.manager.disable == 0
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


# Posteriors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["vit", "siglip"])
def test_a_saved_posterior_brings_its_model(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    vlm = BayesVLM.from_pretrained(f"local-dir:{folders[kind]}", device="cpu")

    def batch(projection: object) -> Features:
        width, d = projection.activation_width, projection.embedding_width  # type: ignore[attr-defined]
        residual = torch.randn(60, d, generator=generator) if projection.residual else None  # type: ignore[attr-defined]
        return Features(torch.randn(60, width, generator=generator), residual)

    vlm.fit([(batch(vlm.image), batch(vlm.text))], negatives=30)
    expected = vlm.classify(pictures(), TEXTS)
    again = BayesVLM.from_pretrained(vlm.save_pretrained(tmp_path / "posterior"), device="cpu")
    assert again.adapter is not None
    assert again.adapter.name == f"local-dir:{folders[kind]}"
    assert torch.equal(again.classify(pictures(), TEXTS).probs, expected.probs)
    with pytest.raises(BayesVLMError, match="which nobody else has"):
        vlm.push_to_hub("somebody/posterior")


def test_a_saved_posterior_of_an_architecture_with_a_file(
    architecture: str, folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folders["vit"])
    vlm = BayesVLM.from_pretrained(f"open_clip:{architecture}/open_clip_model.safetensors", device="cpu")
    generator = torch.Generator().manual_seed(1)
    draw = (Features(torch.randn(60, width, generator=generator)) for width in (48, 32))
    vlm.fit([tuple(draw)], negatives=30)
    saved = vlm.save_pretrained(tmp_path / "posterior")
    monkeypatch.chdir(tmp_path)
    again = BayesVLM.from_pretrained(saved, device="cpu")
    assert torch.equal(again.classify(pictures(), TEXTS).probs, vlm.classify(pictures(), TEXTS).probs)
    with pytest.raises(BayesVLMError, match="which nobody else has"):
        vlm.push_to_hub("somebody/posterior")
