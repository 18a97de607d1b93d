"""Reading exported files back: what is checked, and what is said of a wrong one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bayesvlm import BayesVLM, BayesVLMError
from bayesvlm.serving import exported as module
from bayesvlm.serving import load_exported
from bayesvlm.serving.metadata import sha256

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

CLASSES = ["a cat", "a dog", "the sun"]


@pytest.fixture(scope="module")
def vlm() -> BayesVLM:
    return BayesVLM.from_pretrained("emoji-clip", device="cpu")


@pytest.fixture(scope="module")
def path(vlm: BayesVLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = tmp_path_factory.mktemp("exported") / "model.onnx"
    vlm.head(CLASSES).export(written, progress=False)
    return written


def with_entries(path: Path, changed: Mapping[str, str | None], name: str = "changed.onnx") -> Path:
    """A copy of a file that says something else of itself; None: that says nothing."""
    model = onnx.load(path)
    entries = {entry.key: entry.value for entry in model.metadata_props} | changed
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {key: value for key, value in entries.items() if value is not None})
    onnx.save(model, path.parent / name)
    return path.parent / name


def test_images_of_any_kind(vlm: BayesVLM, path: Path, tmp_path: Path) -> None:
    model = load_exported(path, CLASSES)
    array = np.random.default_rng(1).integers(0, 256, (70, 50, 3), dtype=np.uint8)
    Image.fromarray(array).save(tmp_path / "a.png")
    images: list[Any] = [
        tmp_path / "a.png",
        array,
        Image.fromarray(array[:40]),
        torch.from_numpy(array).permute(2, 0, 1),
    ]
    found, expected = model(images, batch_size=3), vlm.classify(images, CLASSES)
    assert (len(found), found.classes, model.classes) == (4, tuple(CLASSES), tuple(CLASSES))
    for ours, theirs in (
        (found.probs, expected.probs),
        (found.mean, expected.mean),
        (found.std, expected.variance.sqrt()),
        (found.entropy, expected.entropy),
    ):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert found.labels.tolist() == expected.labels.tolist()
    assert found.label_probs is None
    np.testing.assert_array_equal(model(array).probs.shape, (1, 3))
    assert repr(found) == "ExportedPrediction of 4 inputs among 3 classes"
    assert "model of emoji-clip, 3 classes" in repr(model)
    with pytest.raises(BayesVLMError, match=r"images\[1\].* does not exist"):
        model([array, tmp_path / "none.png"])


def test_an_upright_photograph(vlm: BayesVLM, path: Path, tmp_path: Path) -> None:
    image = Image.fromarray(np.random.default_rng(2).integers(0, 256, (90, 40, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    image.save(tmp_path / "side.jpg", exif=exif, quality=95)
    found = load_exported(path)(tmp_path / "side.jpg").probs
    np.testing.assert_allclose(found, vlm.classify(tmp_path / "side.jpg", CLASSES).probs, atol=1e-5)


def test_a_head(vlm: BayesVLM, path: Path) -> None:
    head = load_exported(path.with_name("model.head.onnx"), CLASSES)
    features = vlm.image_features([Image.new("RGB", (64, 64), "teal"), Image.new("RGB", (30, 64), "red")])
    found = head.run(activations=features.activations.numpy())
    np.testing.assert_allclose(found.probs, vlm.classify(features, CLASSES).probs, atol=1e-5)
    with pytest.raises(BayesVLMError, match=r"holds the head alone, which takes no images; call .run\(activations\)"):
        head(Image.new("RGB", (64, 64)))
    with pytest.raises(BayesVLMError, match=r"activations is \[2, 5\]; .* takes \[N, 256\]"):
        head.run(activations=np.ones((2, 5)))
    with pytest.raises(BayesVLMError, match="takes activations, and was given pixel_values"):
        head.run(pixel_values=np.ones((2, 5)))


def test_a_class_list_that_changed(path: Path) -> None:
    model = load_exported(path, tuple(CLASSES))
    assert model.metadata.opset == 20
    with pytest.raises(BayesVLMError, match=r"has 3 classes and the file 3, classes\[1\] is 'a wolf' and was 'a dog'"):
        load_exported(path, ["a cat", "a wolf", "the sun"])
    with pytest.raises(BayesVLMError, match="has 4 classes and the file 3, the others are the same; export again"):
        load_exported(path, [*CLASSES, "the moon"])
    with pytest.raises(BayesVLMError, match="must be the list of names"):
        load_exported(path, "a cat")
    edited = with_entries(path, {"classes": json.dumps(["a cat", "a wolf", "the sun"])})
    with pytest.raises(BayesVLMError, match="lists 3 classes that are not those it was exported with"):
        load_exported(edited)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"format": None}, "was not written by `bayesvlm export`: its metadata says format 'nothing'"),
        ({"format": "bayesvlm-export/9"}, "has format 'bayesvlm-export/9', and this version of bayesvlm reads"),
        ({"link": None}, "'link' is missing"),
        ({"temperature": "warm"}, "'temperature' is no json"),
        ({"kind": "tail"}, "kind is 'tail'"),
        ({"classes": "3"}, "'classes' is no list of names"),
        ({"preprocessing": None}, "'preprocessing' is missing"),
        ({"preprocessing": "[]"}, "'preprocessing' says nothing that can be done"),
        ({"preprocessing": '{"size": {}}'}, "'preprocessing' says nothing that can be done"),
        (
            {"classes": '["a"]', "classes_sha256": sha256(["a"])},
            "1 classes, and probabilities of shape",
        ),
    ],
)
def test_wrong_metadata(path: Path, changed: dict[str, str | None], sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=sentence) as error:
        load_exported(with_entries(path, changed))
    assert "\n" not in str(error.value)


def test_preprocessing_of_another_size(path: Path) -> None:
    said = json.loads({entry.key: entry.value for entry in onnx.load(path).metadata_props}["preprocessing"])
    said["crop_size"] = {"width": 32, "height": 32}
    with pytest.raises(BayesVLMError, match="its preprocessing makes"):
        load_exported(with_entries(path, {"preprocessing": json.dumps(said)}))
    said["crop_size"], said["image_std"] = {"width": 64, "height": 64}, [1, 0, 1]
    with pytest.raises(BayesVLMError, match="no std is zero"):
        load_exported(with_entries(path, {"preprocessing": json.dumps(said)}))


def test_what_is_no_exported_file(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BayesVLMError, match="There is no file"):
        load_exported(tmp_path / "m.onnx")
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(BayesVLMError, match="cannot be read by onnxruntime"):
        load_exported(tmp_path / "m.onnx")
    with pytest.raises(BayesVLMError, match=r"program of torch.export; read it with torch.export.load\("):
        load_exported(tmp_path / "m.pt2")
    foreign = onnx.load(path)
    del foreign.metadata_props[:]
    onnx.save(foreign, tmp_path / "foreign.onnx")
    with pytest.raises(BayesVLMError, match="was not written by `bayesvlm export`"):
        load_exported(tmp_path / "foreign.onnx")

    def missing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(module, "import_module", missing)
    with pytest.raises(BayesVLMError, match=r"onnxruntime, which is not installed: `pip install 'bayesvlm\[onnx\]'`"):
        load_exported(path)
