"""Whatever is wrong with a checkpoint, one sentence says so."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.utils import logging as transformers_logging

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.models import load_adapter, loading, openclip_loading


@pytest.fixture
def copy(folders: dict[str, Path], tmp_path: Path) -> Path:
    """A CLIP folder that a test may damage."""
    return shutil.copytree(folders["clip"], tmp_path / "model")


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def broken_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "cl')


def list_config(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def nonsense_config(folder: Path) -> None:
    edit(folder / "config.json", vision_config={"hidden_size": "wide"})


def unknown_type(folder: Path) -> None:
    edit(folder / "config.json", model_type="bert")


def no_type(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def only_a_pickle(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def truncated_weights(folder: Path) -> None:
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[: len(data) // 2])


def empty_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def without_projection(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["visual_projection.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def other_shape(folder: Path) -> None:
    edit(folder / "config.json", projection_dim=20)


def no_tokenizer(folder: Path) -> None:
    for name in ("tokenizer.json", "vocab.json", "merges.txt"):
        (folder / name).unlink()


def broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")


def no_image_processor(folder: Path) -> None:
    (folder / "preprocessor_config.json").unlink()


def broken_image_processor(folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_config, "holds no config.json"),
        (broken_config, "config.json' is not a JSON object"),
        (list_config, "config.json' is not a JSON object"),
        (nonsense_config, "could not be built from its config.json"),
        (unknown_type, "model_type 'bert', which has no adapter; supported are clip, siglip, siglip2"),
        (no_type, "model_type None, which has no adapter"),
        (no_weights, "holds no weights; expected model.safetensors"),
        (only_a_pickle, "holds only a pickle .* expected model.safetensors"),
        (truncated_weights, "model.safetensors' are damaged or truncated"),
        (empty_weights, "model.safetensors' are damaged or truncated"),
        (without_projection, r"1 are missing or of another shape \(visual_projection.weight\)"),
        (other_shape, "could not be built|2 are missing or of another shape"),
        (no_tokenizer, "has no tokenizer"),
        (broken_tokenizer, "tokenizer in .* could not be loaded"),
        (no_image_processor, "has no image processor"),
        (broken_image_processor, "image processor in .* could not be loaded"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_damaged_folder(copy: Path, damage: Callable[[Path], None], message: str) -> None:
    damage(copy)
    with pytest.raises(BayesVLMError, match=message) as caught:
        load_adapter(copy)
    assert str(copy) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nobody/nothing", "'nobody/nothing' is not a folder here, not in the local cache, and the Hub"),
        ("nothing", "'nothing' is not a folder here, not in the local cache"),
        ("emoji_clip", "There is no model 'emoji_clip'; did you mean 'emoji-clip'"),
        ("a/b/c", "'a/b/c' is neither a folder nor a Hub id"),
        ("/no/such/folder", "no folder '/no/such/folder'"),
        ("./nothing", "no folder './nothing'"),
        (Path("nothing"), "no folder 'nothing'"),
        (3, "name is a int"),
    ],
)
def test_a_model_that_is_not_there(name: object, message: str) -> None:
    with pytest.raises(BayesVLMError, match=message):
        load_adapter(name)  # type: ignore[arg-type]


def test_a_folder_has_no_revision(copy: Path) -> None:
    with pytest.raises(BayesVLMError, match="only Hub ids have revisions"):
        load_adapter(copy, revision="main")


@pytest.mark.parametrize("device", ["cuda:99", "gpu", "nonsense"])
def test_a_device_that_is_not_there(copy: Path, device: str) -> None:
    with pytest.raises(BayesVLMError, match=f"device '{device}' cannot be used here"):
        load_adapter(copy, device=device)


@pytest.mark.parametrize("dtype", ["int8", "half-ish", torch.int32])
def test_a_dtype_that_is_not_supported(copy: Path, dtype: object) -> None:
    with pytest.raises(BayesVLMError, match="is not supported; expected one of float32"):
        load_adapter(copy, dtype=dtype)  # type: ignore[arg-type]


def test_name_revision_and_state(copy: Path) -> None:
    adapter = load_adapter(str(copy), dtype="float32")
    assert adapter.name == str(copy)
    assert adapter.revision is None
    assert adapter.dtype == torch.float32
    assert not adapter.model.training
    assert not any(parameter.requires_grad for parameter in adapter.model.parameters())


def test_half_precision_checkpoints_are_widened(copy: Path) -> None:
    halves = {name: weight.half() for name, weight in load_file(copy / "model.safetensors").items()}
    save_file(halves, copy / "model.safetensors", metadata={"format": "pt"})
    adapter = load_adapter(copy, device="cpu")
    assert {parameter.dtype for parameter in adapter.model.parameters()} == {torch.float32}
    assert torch.equal(adapter.image.weight.half(), halves["visual_projection.weight"])


def test_shards_are_read(folders: dict[str, Path], copy: Path) -> None:
    whole = load_adapter(folders["clip"])
    whole.model.save_pretrained(copy, max_shard_size="100KB")
    (copy / "model.safetensors").unlink(missing_ok=True)
    assert len(list(copy.glob("model-*.safetensors"))) > 1
    assert torch.equal(load_adapter(copy).encode_texts("a cat").activations, whole.encode_texts("a cat").activations)


def test_a_hub_id_is_read_from_the_cache(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot is a folder named after its commit; the name and the commit are kept."""
    asked = {}

    def snapshot_download(name: str, **options: object) -> str:
        asked.update(options, name=name)
        return str(copy)

    monkeypatch.setattr(loading, "snapshot_download", snapshot_download)
    adapter = load_adapter("someone/clip", revision="v1")
    assert (adapter.name, adapter.revision) == ("someone/clip", copy.name)
    assert (asked["name"], asked["revision"]) == ("someone/clip", "v1")
    assert not any("bin" in pattern or pattern == "*.safetensors" for pattern in asked["allow_patterns"])


def test_the_hubs_own_conversion_is_taken_for_a_pickle(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repository that holds only a pickle: the conversion bot's pull request, and nobody else's, is used."""
    original = shutil.copytree(copy, tmp_path / "original", ignore=shutil.ignore_patterns("*.safetensors"))
    offer = SimpleNamespace(title="Adding `safetensors` variant of this model", git_reference="refs/pr/66")

    def discussions(self: object, name: str, author: str, discussion_type: str) -> list[SimpleNamespace]:
        assert (name, author, discussion_type) == ("someone/clip", "SFconvertbot", "pull_request")
        return [SimpleNamespace(title="Update README", git_reference="refs/pr/1"), offer]

    monkeypatch.setattr(loading.HfApi, "get_repo_discussions", discussions)
    monkeypatch.setattr(
        loading, "snapshot_download", lambda name, revision, **_: copy if revision == "refs/pr/66" else original
    )
    assert load_adapter("someone/clip").revision == copy.name
    with pytest.raises(BayesVLMError, match="holds no weights"):
        load_adapter("someone/clip", revision="main")


@pytest.mark.parametrize("name", ["open_clip:ViT-B-32/openai", "local-dir:/folder"])
def test_open_clip_is_an_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(BayesVLMError, match=r"which is not installed; run `pip install 'bayesvlm\[open-clip\]'`"):
        load_adapter(name)


def test_open_clip_with_a_torchvision_of_another_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(openclip_loading, "import_module", broken)
    with pytest.raises(BayesVLMError, match=r"cannot be imported here \(operator torchvision::nms does not exist\)"):
        load_adapter("open_clip:ViT-B-32/openai")


def test_a_folder_of_sentence_transformers(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model of transformers is in a subfolder, beside json that says so; on the Hub as in a folder."""
    folder = tmp_path / "clip-ViT-B-32"
    shutil.copytree(folders["clip"], folder / "0_CLIPModel")
    modules = [{"idx": 0, "name": "0", "path": "0_CLIPModel", "type": "sentence_transformers.models.CLIPModel"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "config_sentence_transformers.json").write_text("{}")
    expected = load_adapter(folders["clip"]).encode_texts("a cat").activations
    adapter = load_adapter(folder)
    assert adapter.name == str(folder)
    assert torch.equal(adapter.encode_texts("a cat").activations, expected)

    patterns: list[str] = []
    monkeypatch.setattr(
        loading, "snapshot_download", lambda *_, allow_patterns, **__: patterns.extend(allow_patterns) or str(folder)
    )
    adapter = load_adapter("sentence-transformers/clip-ViT-B-32")
    assert adapter.revision == folder.name
    assert "0_CLIPModel/model*.safetensors" in patterns
    assert torch.equal(adapter.encode_texts("a cat").activations, expected)


def test_transformers_is_quiet_and_left_as_it_was(
    copy: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    transformers_logging.set_verbosity(logging.INFO)
    try:
        load_adapter(copy)
        without_projection(copy)
        with pytest.raises(BayesVLMError):
            load_adapter(copy)
        assert transformers_logging.get_verbosity() == logging.INFO
        assert transformers_logging.is_progress_bar_enabled()
        assert capfd.readouterr() == ("", "")
        assert not caplog.records
    finally:
        transformers_logging.set_verbosity(logging.WARNING)
