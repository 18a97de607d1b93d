"""Exported files against `classify`: run where torch cannot be imported, on every family, posterior and link."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from bayesvlm import BayesVLM, BayesVLMError, Features
from bayesvlm.models import Adapter, load_adapter
from bayesvlm.serving import Exported, export_model, load_exported
from bayesvlm.serving.graph import HeadGraph
from bayesvlm.serving.pixels import PixelRecipe
from bayesvlm.testing.tiny import VIT_B_32, save_tiny_clip

from .offline import run_without

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

CLASSES = ["a cat", "a dog", "the sun", "a red car", "a house"]
DOCS = Path(__file__).parents[2] / "docs/serving.md"

RUN_SAVED = """
import sys
import numpy as np, onnxruntime

session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
for name in sys.argv[1:] or ["1", "32"]:
    held = np.load(f"batch-{name}.npz")
    inputs = {each.name: held[each.name] for each in session.get_inputs()}
    for output, found in zip(session.get_outputs(), session.run(None, inputs)):
        expected = held[output.name]
        assert found.shape == expected.shape and found.dtype == np.float32, (output.name, found.shape)
        worst = float(np.abs(found - expected).max())
        assert worst <= 1e-4, f"batch {name}, {output.name}: {worst:.1e}"
        print(name, output.name, worst)
"""


def answers(vlm: BayesVLM, features: Features, classes: Any, **more: Any) -> dict[str, Tensor]:
    """By the outputs' names, from `classify`."""
    said = vlm.classify(features, classes, **more)
    found = {"probabilities": said.probs, "mean": said.mean, "std": said.variance.sqrt(), "entropy": said.entropy}
    return found if said.label_probs is None else {**found, "label_probabilities": said.label_probs}


def save_batches(vlm: BayesVLM, classes: Any, folder: Path) -> None:
    """Pixels of 1 and of 32 images, and what torch makes of them."""
    generator = torch.Generator().manual_seed(1)
    shape = vlm.encoder("images").preprocessor.blank["pixel_values"].shape[1:]
    for rows in (1, 32):
        pixels = torch.randn(rows, *shape, generator=generator)
        expected = answers(vlm, vlm.encoder("images").encode_pixels({"pixel_values": pixels}), classes)
        arrays = {name: value.numpy() for name, value in expected.items()}
        np.savez(folder / f"batch-{rows}.npz", pixel_values=pixels.numpy(), **arrays)


def fitted(adapter: Adapter, **settings: Any) -> BayesVLM:
    """A model with a posterior from random features, large enough that the variances matter."""
    names = ("image", "text", "logit_scale", "logit_bias", "loss")
    vlm = BayesVLM(**{name: getattr(adapter, name) for name in names}, adapter=adapter)
    vlm.fit([random_features(vlm, 40)], progress=False)
    return vlm.replace(**{"tau": 1.0, "lam": {"image": 2.0, "text": 2.0}, **settings})


def random_features(vlm: BayesVLM, rows: int) -> tuple[Features, Features]:
    generator = torch.Generator().manual_seed(2)

    def draw(width: int) -> Tensor:
        return torch.randn(rows, width, generator=generator)

    residual = draw(vlm.image.embedding_width) if vlm.image.residual else None
    return Features(draw(vlm.image.activation_width), residual), Features(draw(vlm.text.activation_width))


class Written(NamedTuple):
    """An embedded model and the files it was exported to: `model.onnx` and `model.head.onnx` in a folder."""

    vlm: BayesVLM
    folder: Path
    exported: Exported


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Written]:
    """Each embedded model, exported once."""

    @cache
    def written(name: str) -> Written:
        vlm, folder = BayesVLM.from_pretrained(name, device="cpu"), tmp_path_factory.mktemp(name)
        return Written(vlm, folder, vlm.head(CLASSES).export(folder / "model.onnx", progress=False))

    return written


# Where torch is not -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["emoji-clip", "emoji-siglip"])
def test_probabilities_where_torch_cannot_be_imported(name: str, embedded: Callable[[str], Written]) -> None:
    vlm, folder, exported = embedded(name)
    assert exported.difference <= 1e-5
    save_batches(vlm, CLASSES, folder)
    said = run_without(RUN_SAVED, folder)
    assert len(said.splitlines()) == 2 * (5 if name == "emoji-siglip" else 4)
    assert exported.model is not None
    model, head = (file.stat().st_size for file in (exported.model, exported.head))
    assert head < model / 4
    tower = vlm.encoder("images").model.vision_model
    assert model < 1.02 * sum(each.nbytes for each in tower.parameters()) + head  # and no text tower


def test_a_vit_b_32(tmp_path: Path) -> None:
    """Random weights of the published shape: the vision tower alone is 350 MB."""
    folder = save_tiny_clip(tmp_path / "random", image_size=224, vision=VIT_B_32, projection_dim=512)
    vlm = fitted(load_adapter(folder, device="cpu"), lam={"image": 200.0, "text": 200.0})
    classes = random_features(vlm, 10)[1]
    written = export_model(vlm, classes, tmp_path / "model.onnx", progress=False)
    assert written.model is not None
    assert written.model.stat().st_size > 350_000_000
    save_batches(vlm, classes, tmp_path)
    held = np.load(tmp_path / "batch-32.npz")
    assert held["std"].min() > 1e-3
    assert held["probabilities"].std() > 1e-3
    run_without(RUN_SAVED, tmp_path)


def ten_lines() -> str:
    """The program of docs/serving.md."""
    block = re.search(r"```python\n(import json\n.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    lines = [line for line in block[1].splitlines() if line and not line.startswith(("import", "from"))]
    assert len(lines) == 10
    return block[1]


@pytest.mark.parametrize("name", ["emoji-clip", "emoji-siglip"])
def test_the_ten_lines_of_the_docs(name: str, embedded: Callable[[str], Written]) -> None:
    vlm, folder, _ = embedded(name)
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (97, 131, 3), dtype=np.uint8))
    photo.save(folder / "photo.png")
    (folder / "photo.png").rename(folder / "photo.jpg")  # Pillow looks inside
    shown = run_without(ten_lines(), folder).splitlines()
    expected = vlm.classify(folder / "photo.jpg", CLASSES)
    order = expected.probs[0].argsort(descending=True)[:3].tolist()
    assert len(shown) == 3
    for line, k in zip(shown, order, strict=True):
        prob, mean, std, label = eval(line)
        assert label == CLASSES[k]
        assert prob == pytest.approx(float(expected.probs[0, k]), abs=1e-4)
        assert mean == pytest.approx(float(expected.mean[0, k]), abs=1e-5)
        assert std == pytest.approx(float(expected.variance[0, k].sqrt()), abs=1e-5)


def test_a_program_of_torch_export_needs_torch_alone(tmp_path: Path) -> None:
    vlm = BayesVLM.from_pretrained("emoji-siglip", device="cpu")
    written = vlm.head(CLASSES).export(tmp_path / "model.pt2", progress=False)
    assert [file.name for file in written.files] == ["model.pt2", "model.head.pt2"]
    save_batches(vlm, CLASSES, tmp_path)
    program = """
import json, numpy as np, torch
extra = {"metadata.json": ""}
module = torch.export.load("model.pt2", extra_files=extra).module()
about = json.loads(extra["metadata.json"])
assert about["classes"][1] == "a dog" and about["preprocessing"]["size"] == {"width": 64, "height": 64}
for rows in (1, 32):
    held = np.load(f"batch-{rows}.npz")
    found = module(torch.from_numpy(held["pixel_values"]))
    assert len(found) == 5
    for name, value in found.items():
        assert np.abs(value.numpy() - held[name]).max() <= 1e-4, name
print("ok")
"""
    assert run_without(program, tmp_path, ("transformers", "bayesvlm", "onnxruntime")).strip().endswith("ok")


# What is exported ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("structure", ["damped", "exact"])
@pytest.mark.parametrize("covariance", ["diagonal", "full"])
@pytest.mark.parametrize("link", ["probit", "centred"])
@pytest.mark.parametrize("biased", [False, True])
def test_the_graph_of_every_posterior(structure: str, covariance: str, link: str, biased: bool) -> None:
    """In float64 the graph would be exact; its buffers are float32, so rounding of inputs alone is allowed for."""
    generator = torch.Generator().manual_seed(3)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    extra: Any = {"image_bias": draw(6), "text_bias": draw(6), "logit_bias": -3.0, "loss": "sigmoid"} if biased else {}
    vlm = BayesVLM.from_projections(draw(6, 11), draw(6, 8), 2.5, **extra)
    vlm.fit([(Features(draw(60, 11)), Features(draw(60, 8)))], progress=False)
    settings: Any = {"structure": structure, "covariance": covariance, "link": link}
    vlm = vlm.replace(tau=0.3, lam={"image": 0.2, "text": 0.5}, **settings)
    images, classes = Features(draw(9, 11)), Features(draw(7, 8))
    with torch.no_grad():
        found = HeadGraph(vlm, classes)(images.activations)
    expected = answers(vlm, images, classes)
    assert float(expected["std"].min()) > 0.01
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}")
    other = answers(vlm.replace(link="probit" if link == "centred" else "centred"), images, classes)
    assert float((other["probabilities"] - expected["probabilities"]).abs().max()) > 1e-4  # a link is told from another


def test_every_family(family: str, adapter: Adapter, tmp_path: Path) -> None:
    """The model of CLIP and of SigLIP at a fixed resolution; of a NaFlex the head."""
    vlm = fitted(adapter)
    path = tmp_path / "model.onnx"
    if family == "siglip2-naflex":
        with pytest.raises(BayesVLMError, match="NaFlex"):
            vlm.head(CLASSES).export(path)
        assert list(tmp_path.iterdir()) == []
        written = vlm.head(CLASSES).export(path, head_only=True, progress=False)
        assert (written.model, written.head, written.metadata.preprocessing) == (None, path, None)
        images = random_features(vlm, 5)[0]
        assert images.residual is not None
        found = load_exported(path).run(activations=images.activations.numpy(), residual=images.residual.numpy())
        np.testing.assert_allclose(found.probs, vlm.classify(images, CLASSES).probs, atol=1e-5)
        return
    vlm.head(CLASSES).export(path, progress=False)
    noise = np.random.default_rng(5)
    shapes = ((40, 40), (64, 33), (31, 90), (32, 32), (301, 207))
    images = [Image.fromarray(noise.integers(0, 256, (*shape, 3), dtype=np.uint8)) for shape in shapes]
    found, expected = load_exported(path)(images, batch_size=2), vlm.classify(images, CLASSES)
    np.testing.assert_allclose(found.probs, expected.probs, atol=1e-4)
    np.testing.assert_allclose(found.std, expected.variance.sqrt(), atol=1e-5)
    assert found.labels.tolist() == expected.labels.tolist()
    assert (found.label_probs is None) == (family == "clip")
    assert PixelRecipe.of(adapter).difference(adapter) < 1e-5


def test_a_fine_tuned_projection_is_the_one_exported(clip: Adapter, tmp_path: Path) -> None:
    vlm = fitted(clip)
    moved = type(vlm.image)(vlm.image.weight + 0.3 * torch.randn(vlm.image.weight.shape), None, vlm.image.residual)
    tuned = vlm.with_image_projection(moved, vlm.factors["image"])
    pixels = torch.randn(3, 3, 32, 32)
    expected = tuned.classify(clip.encode_pixels({"pixel_values": pixels}), CLASSES).probs
    before = vlm.classify(clip.encode_pixels({"pixel_values": pixels}), CLASSES).probs
    assert float((expected - before).abs().max()) > 1e-3
    tuned.head(CLASSES).export(tmp_path / "m.onnx", progress=False)
    found = load_exported(tmp_path / "m.onnx").run(pixel_values=pixels.numpy())
    np.testing.assert_allclose(found.probs, expected, atol=1e-5)


def test_ensembles_and_exact_posteriors(tmp_path: Path) -> None:
    vlm = BayesVLM.from_pretrained("emoji-clip", device="cpu")
    classes: Any = {"couch": ["couch", "sofa"], "sun": "sun"}
    templates: Any = ["a photo of a {c}.", lambda name: f"my {name}"]
    written = vlm.head(classes, templates=templates).export(tmp_path / "m.onnx", progress=False)
    assert written.metadata.classes == ("couch", "sun")
    assert written.metadata.templates == ("a photo of a {c}.", "function <lambda>")
    exact = vlm.replace(structure="exact", covariance="full", link="centred")
    export_model(exact, classes, tmp_path / "x.onnx", templates=templates, progress=False)
    photo = Image.new("RGB", (80, 70), "orange")
    for model, name in ((vlm, "m.onnx"), (exact, "x.onnx")):
        expected = model.classify(photo, classes, templates=templates)
        found = load_exported(tmp_path / name)(photo)
        np.testing.assert_allclose(found.probs, expected.probs, atol=1e-5)
        np.testing.assert_allclose(found.std, expected.variance.sqrt(), atol=1e-5)


def test_nothing_is_said_and_nothing_of_the_caller_changed(
    clip: Adapter, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    vlm = fitted(clip)
    attention = clip.model.vision_model.config._attn_implementation
    assert attention != "eager"
    hooks = [len(module._forward_pre_hooks) for module in clip.model.modules()]
    level = logging.getLogger("torch.onnx").level
    vlm.head(CLASSES).export(tmp_path / "m.onnx", progress=False)
    assert capfd.readouterr() == ("", "")
    assert clip.model.vision_model.config._attn_implementation == attention
    assert [len(module._forward_pre_hooks) for module in clip.model.modules()] == hooks
    assert logging.getLogger("torch.onnx").level == level


# The files ----------------------------------------------------------------------------------------------------------


def test_what_the_files_say_of_themselves(embedded: Callable[[str], Written]) -> None:
    vlm, folder, _ = embedded("emoji-siglip")
    for name, inputs in (
        ("model.onnx", {"pixel_values": ["batch", 3, 64, 64]}),
        ("model.head.onnx", {"activations": ["batch", 576], "residual": ["batch", 192]}),
    ):
        model = onnx.load(folder / name)
        onnx.checker.check_model(model, full_check=True)
        assert [(each.domain, each.version) for each in model.opset_import] == [("", 20)]
        assert {each.name: shape(each) for each in model.graph.input} == inputs
        assert {each.name: shape(each) for each in model.graph.output} == {
            **{output: ["batch", 5] for output in ("probabilities", "mean", "std", "label_probabilities")},
            "entropy": ["batch"],
        }
        said = {entry.key: entry.value for entry in model.metadata_props}
        assert said["format"] == "bayesvlm-export/1"
        assert json.loads(said["classes"]) == CLASSES
        assert (said["model"], said["link"], json.loads(said["opset"])) == ("emoji-siglip", "probit", 20)
        assert float(said["tau"]) == vlm.tau
        assert json.loads(said["lam"]) == dict(vlm.lam)
        assert ("preprocessing" in said) == (name == "model.onnx")
        held = (folder / name).read_bytes()
        assert str(Path.cwd()).encode() not in held
        assert b"site-packages" not in held


def shape(value: Any) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def test_weights_too_large_for_one_file(clip: Adapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayesvlm.serving.programs.LARGEST_FILE", 100_000)
    head = fitted(clip).head(CLASSES)
    written = head.export(tmp_path / "m.onnx", progress=False)
    assert [file.name for file in written.files] == ["m.onnx", "m.onnx.data", "m.head.onnx"]
    photo = Image.new("RGB", (40, 40), "green")
    found = load_exported(tmp_path / "m.onnx")(photo)
    np.testing.assert_allclose(found.probs[0], head(photo)[0], atol=1e-5)
    monkeypatch.undo()
    head.export(tmp_path / "m.onnx", progress=False)  # all in one again, and nothing left lying
    assert sorted(file.name for file in tmp_path.iterdir()) == ["m.head.onnx", "m.onnx"]


def test_a_failure_leaves_what_was_there(clip: Adapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.onnx").write_text("of yesterday")
    head = fitted(clip).head(CLASSES)

    def wrong(path: Path, inputs: Any, outputs: Any) -> Any:
        return {"probabilities": np.full((3, 5), 0.2, dtype=np.float32)}

    monkeypatch.setattr("bayesvlm.serving.export.run_file", wrong)
    with pytest.raises(BayesVLMError, match=r"m.onnx is not written: its probabilities differ from torch's by"):
        head.export(tmp_path / "m.onnx", progress=False)
    assert [file.name for file in tmp_path.iterdir()] == ["m.onnx"]
    assert (tmp_path / "m.onnx").read_text() == "of yesterday"


# What it refuses ----------------------------------------------------------------------------------------------------


def test_what_it_refuses(clip: Adapter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vlm = fitted(clip)
    path = tmp_path / "m.onnx"
    with pytest.raises(BayesVLMError, match="link='mc' averages over draws"):
        export_model(vlm.replace(link="mc"), CLASSES, path)
    with pytest.raises(BayesVLMError, match="no posterior yet"):
        export_model(vlm.without_posterior(), CLASSES, path)
    with pytest.raises(BayesVLMError, match="predicts a variance for every input"):
        export_model(BayesVLM.from_pretrained("emoji-prolip"), CLASSES, path)
    with pytest.raises(BayesVLMError, match=r"ends in '.bin'; name a file ending in .onnx"):
        export_model(vlm, CLASSES, tmp_path / "m.bin")
    with pytest.raises(BayesVLMError, match="names= is for classes given as Features"):
        export_model(vlm, CLASSES, path, names=CLASSES)
    classes = vlm.class_features(CLASSES)
    with pytest.raises(BayesVLMError, match="There are 2 names for 5 classes"):
        export_model(vlm, classes, path, names=["one", "two"])
    bare = BayesVLM(vlm.image, vlm.text, vlm.logit_scale).with_factors(vlm.factors)
    with pytest.raises(BayesVLMError, match="made from projections and cannot encode images"):
        bare.head(classes).export(path)
    assert list(tmp_path.iterdir()) == []
    assert bare.head(classes).export(path, head_only=True, progress=False).metadata.classes[1] == "class 1"
    monkeypatch.setattr("bayesvlm.serving.export.find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(BayesVLMError, match=r"needs onnxscript: `pip install 'bayesvlm\[onnx\]'`"):
        vlm.head(CLASSES).export(path)


def test_half_precision_is_one_sentence(folders: dict[str, Path], tmp_path: Path) -> None:
    vlm = fitted(load_adapter(folders["clip"], device="cpu", dtype="bfloat16"))
    with pytest.raises(BayesVLMError, match="runs in bfloat16, and files are exported in float32: load the"):
        vlm.head(CLASSES).export(tmp_path / "m.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_processor_that_does_more_is_not_described(clip: Adapter) -> None:
    clip._image_processor.do_normalize = False  # type: ignore[attr-defined]
    assert PixelRecipe.of(clip).std == (1.0, 1.0, 1.0)

    class Inverted:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def __call__(self, images: Any) -> Any:
            return {"pixel_values": -self._inner(images)["pixel_values"]}

    object.__setattr__(clip.preprocessor, "to_pixels", Inverted(clip.preprocessor.to_pixels))
    with pytest.raises(BayesVLMError, match="does more than resize, crop, scale and normalise"):
        PixelRecipe.of(clip)


def test_an_adapter_without_a_tower_to_export(clip: Adapter) -> None:
    with pytest.raises(BayesVLMError, match="cannot be exported, only those of CLIP, SigLIP and SigLIP 2"):
        Adapter.image_tower(clip)
