"""`bayesvlm export`, through the entry point of the console script."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import Run

from bayesvlm import BayesVLM
from bayesvlm.serving import load_exported

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def test_export_and_what_it_refuses(run: Run, refuse: Run, tmp_path: Path) -> None:
    out, names = tmp_path / "model.onnx", tmp_path / "names.txt"
    names.write_text("couch | sofa\ndog\n")
    asked = ("export", "emoji-clip", "--classes-file", names, "--template", "a {c}", "--template", "my {c}", "-o", out)
    found = run(*asked, "--json").json
    assert (found["model"], found["head"]) == (str(out), str(tmp_path / "model.head.onnx"))
    assert found["metadata"]["classes"] == ["couch", "dog"]
    assert found["metadata"]["templates"] == ["a {c}", "my {c}"]
    assert found["metadata"]["opset"] == 20
    assert found["bytes"][str(out)] == out.stat().st_size
    assert 0 <= found["difference"] < 1e-5
    image = next(Path(__file__).parents[2].glob("docs/figures/*.png"))
    vlm = BayesVLM.from_pretrained("emoji-clip")
    expected = vlm.classify(image, [["couch", "sofa"], "dog"], templates=["a {c}", "my {c}"])
    assert float(load_exported(out)(image).probs[0, 0]) == pytest.approx(float(expected.probs[0, 0]), abs=1e-5)

    assert "is there already" in refuse(*asked).err
    said = run(*asked, "--overwrite", "--head-only", "--link", "centred").out
    assert "2 classes, ONNX, opset 20; damped posterior, covariance diagonal, link centred" in said
    assert load_exported(out).metadata.kind == "head"
    assert "name a file ending in .onnx" in refuse(*asked[:-1], tmp_path / "model.bin").err
    assert "draws" in refuse(*asked, "--overwrite", "--link", "mc").err
    assert "Give the classes once" in refuse("export", "emoji-clip", "-o", tmp_path / "m.onnx").err
    assert "no place for the class name" in refuse(*asked, "--template", "a photo").err


def test_without_onnx(refuse: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayesvlm.serving.export.find_spec", lambda name: None)
    found = refuse("export", "emoji-clip", "--classes", "cat,dog", "-o", tmp_path / "m.onnx").err
    assert "needs onnx and onnxscript and onnxruntime: `pip install 'bayesvlm[onnx]'`" in found
