"""What a visitor may hand every tab that it cannot use: sentences in the place where the answer would be."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gradio", reason="the page needs Gradio: pip install 'bayesvlm[app]'")
httpx = pytest.importorskip("httpx")
pytestmark = pytest.mark.xdist_group("app")

came = count(1)
Fire = Callable[..., list[Any]]


@pytest.fixture
def fire(address: str) -> Iterator[Fire]:
    """Does what the page's script does when something happens to a component; returns what is to be shown."""
    with httpx.Client(base_url=address, timeout=120) as client:
        config = client.get("/config").json()
        components = {each["id"]: each for each in config["components"]}
        places = {each["props"].get("elem_id"): place for place, each in components.items()}

        def fired(name: str, event: str, **values: Any) -> list[Any]:
            target = [places[name], event]
            events = [each for each in config["dependencies"] if target in [list(t) for t in each["targets"]]]
            found = next(each for each in events if each["backend_fn"])
            given = {place: components[place]["props"].get("value") for place in found["inputs"]}
            given |= {places[name.replace("_", "-")]: value for name, value in values.items()}
            body = {"data": list(given.values()), "fn_index": found["id"], "session_hash": "refusals"}
            client.post("/gradio_api/queue/join", json=body).raise_for_status()
            with client.stream("GET", "/gradio_api/queue/data", params={"session_hash": "refusals"}) as lines:
                for line in lines.iter_lines():
                    if "process_completed" in line:
                        done = json.loads(line.removeprefix("data:"))
                        assert done["success"], done
                        return list(done["output"]["data"])
            raise AssertionError("no answer")

        yield fired


@pytest.fixture
def dropped(address: str, fire: Fire) -> Fire:
    """Drops a file into a box."""

    def drop(box: str, name: str, content: bytes) -> list[Any]:
        kept = httpx.post(f"{address}/gradio_api/upload", files={"files": (name, content)}, timeout=60).json()[0]
        return fire(
            f"{box}-upload-refused", "select", **{f"{box}_asked": {"by": "file", "file": kept, "came": next(came)}}
        )

    return drop


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("page.png", b"<html><script>document.title = 'taken over'</script></html>"),
        ("noise.jpg", np.random.default_rng(0).bytes(3000)),
        ("notes.txt", b"no picture at all"),
        ("nothing", b"\0"),
        ("drawing.svg", b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>"),
        ("cut.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x10\0\0\0\x10\x08\x06\0\0\0"),
    ],
)
@pytest.mark.parametrize("box", ["ask", "break", "search"])
def test_every_box_says_what_is_no_picture(dropped: Fire, box: str, name: str, content: bytes) -> None:
    _, said, _ = dropped(box, name, content)
    assert "role='alert'" in said
    assert name in said
    assert "is not an image that Pillow can read" in said or "is damaged" in said
    assert "<script" not in said


@pytest.mark.parametrize("path", ["/etc/passwd", "../../../etc/passwd", str(Path(__file__)), "", "\0", "a" * 9000])
def test_a_file_that_was_not_uploaded_is_not_read(fire: Fire, path: str) -> None:
    _, said, _ = fire("ask-upload-refused", "select", ask_asked={"by": "file", "file": path, "came": next(came)})
    assert "no file that was uploaded here" in said


def _copy(saved: Path, name: str) -> Path:
    return Path(shutil.copytree(saved / "wide", saved / name, dirs_exist_ok=True))


def _cut(folder: Path) -> None:
    file = folder / "posterior.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def _emptied(folder: Path) -> None:
    (folder / "posterior.safetensors").write_bytes(b"")


def _noise(folder: Path) -> None:
    (folder / "posterior.safetensors").write_bytes(np.random.default_rng(0).bytes(5000))


def _no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def _a_list(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def _other_types(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tau": "<script>alert(1)</script>"}))


def _no_encoder(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model": None}))


def _gone(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model": "no-such/model"}))


@pytest.mark.parametrize("spoil", [_cut, _emptied, _noise, _no_json, _a_list, _other_types, _no_encoder, _gone])
def test_a_folder_that_cannot_be_used_is_a_sentence(fire: Fire, saved: Path, spoil: Callable[[Path], None]) -> None:
    folder = _copy(saved, spoil.__name__)
    try:
        spoil(folder)
        *_, said = fire("model-folder", "submit", model_folder=folder.name)
    finally:
        shutil.rmtree(folder)
    assert "role='alert'" in said
    assert "Something went wrong" not in said
    assert "<script" not in said
    assert "HF_HUB_OFFLINE" not in said  # which the page sets itself


@pytest.mark.parametrize("name", ["a" * 3000, "a" * 300 + "/b", "loop"])
def test_a_folder_that_cannot_be_looked_for_is_a_sentence(fire: Fire, saved: Path, name: str) -> None:
    (saved / "loop").symlink_to(saved / "loop")
    try:
        *_, said = fire("model-folder", "submit", model_folder=name)
    finally:
        (saved / "loop").unlink()
    assert "is no folder below" in said


@pytest.mark.parametrize(("given", "counts_as"), [(7, 1.0), (-3, 0.0), (None, 0.0), (0.5, 0.5)])
def test_a_number_beyond_a_sliders_end_is_its_end(fire: Fire, given: float | None, counts_as: float) -> None:
    assert fire("break-blur", "change", break_blur=given)[-1] == fire("break-blur", "change", break_blur=counts_as)[-1]
