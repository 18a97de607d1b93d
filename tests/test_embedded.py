"""The door to the embedded world, with the world behind it and without."""

from __future__ import annotations

import sys
from collections.abc import Callable
from logging import ERROR, WARNING
from pathlib import Path

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from huggingface_hub.utils.logging import get_verbosity, set_verbosity

import bayesvlm
from bayesvlm import BayesVLM, BayesVLMError, embedded
from bayesvlm.artifacts import hub
from bayesvlm.cli import main
from bayesvlm.models import loading
from bayesvlm.testing.tiny import save_tiny_clip

REMEDY = "comes with the embedded world, which is not installed: `pip install 'bayesvlm[world]'`."


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where bayesvlm-world is not installed."""
    monkeypatch.setattr(embedded, "world_folder", lambda: None)
    monkeypatch.setitem(sys.modules, "bayesvlm_world", None)


def test_the_world_is_its_package() -> None:
    import bayesvlm_world

    assert bayesvlm.world is bayesvlm_world
    assert embedded.world_folder() == bayesvlm_world.FOLDER


@pytest.mark.parametrize("name", embedded.MODELS)
def test_every_embedded_model_has_its_folder(name: str) -> None:
    folder = embedded.embedded_model(name)
    assert folder is not None
    assert (folder / "model.safetensors").is_file()
    posterior = embedded.embedded_posterior(name)
    assert (posterior is None) == (name == "emoji-prolip"), "ProLIP predicts its variances"


def test_all_that_the_world_brings_is_known() -> None:
    folder = embedded.world_folder()
    assert folder is not None
    assert sorted(path.name for path in (folder / "models").iterdir()) == sorted(embedded.MODELS)


@pytest.mark.parametrize("name", ["openai/clip-vit-base-patch32", "nowhere", ".", Path("models/emoji-clip")])
def test_any_other_name_is_not_embedded(name: str | Path) -> None:
    assert embedded.embedded_model(name) is None
    assert embedded.embedded_posterior(name) is None


@pytest.mark.parametrize(
    ("name", "near"),
    [("emoji-clp", "emoji-clip"), ("Emoji_Siglip", "emoji-siglip"), ("emoji-clip-color", "emoji-clip-colour")],
)
def test_a_misspelt_name_is_not_looked_for(name: str, near: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (hub, loading):
        monkeypatch.setattr(module, "snapshot_download", lambda *_, **__: pytest.fail("the Hub was asked"))
    monkeypatch.setattr(hub, "hf_hub_download", lambda *_, **__: pytest.fail("the Hub was asked"))
    with pytest.raises(BayesVLMError) as caught:
        BayesVLM.from_pretrained(name)
    assert str(caught.value) == f"There is no model {name!r}; did you mean {near!r}?"


@pytest.mark.parametrize(("name", "level"), [("gpt2", ERROR), ("owner/name", WARNING)])
def test_a_name_without_an_owner_is_looked_for_in_silence(
    name: str, level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def asks(*_: object, **__: object) -> None:
        asked.append(get_verbosity())
        raise LocalEntryNotFoundError("offline")

    before = get_verbosity()
    set_verbosity(WARNING)
    try:
        monkeypatch.setattr(hub, "hf_hub_download", asks)
        monkeypatch.setattr(loading, "snapshot_download", asks)
        with pytest.raises(BayesVLMError, match="the Hub could not be reached"):
            BayesVLM.from_pretrained(name)
        assert get_verbosity() == WARNING, "it is put back"
    finally:
        set_verbosity(before)
    assert asked == [level, level]


def test_a_local_folder_of_that_name_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "emoji-clip").mkdir()
    assert embedded.embedded_model("emoji-clip") is not None, "an empty folder is no model"
    save_tiny_clip(tmp_path / "emoji-clip")
    assert embedded.embedded_model("emoji-clip") is None
    assert embedded.embedded_posterior("emoji-clip") is None


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize(
    ("asked", "what"),
    [
        (lambda: BayesVLM.from_pretrained("emoji-clip"), "emoji-clip"),
        (lambda: embedded.embedded_posterior("emoji-siglip"), "emoji-siglip"),
        (lambda: bayesvlm.world, "bayesvlm.world"),
    ],
)
def test_without_it_one_sentence_says_what_to_install(asked: Callable[[], object], what: str) -> None:
    with pytest.raises(BayesVLMError) as caught:
        asked()
    assert str(caught.value) == f"{what} {REMEDY}"


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize("words", [["demo"], ["demo", "--model", "emoji-siglip"], ["classify", "emoji-clip", "a.png"]])
def test_without_it_commands_say_so_too(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    if words[0] == "classify":
        words = [*words, "--classes", "cat,dog"]
        save_picture(tmp_path / "a.png")
    monkeypatch.setattr(sys, "argv", ["bayesvlm", *words])
    with pytest.raises(SystemExit, match="2"):
        main()
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert errors[0].endswith(REMEDY)
    assert not (tmp_path / "demo").exists()


def save_picture(path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (8, 8)).save(path)


@pytest.mark.usefixtures("absent")
def test_without_it_models_of_one_s_own_load(tmp_path: Path) -> None:
    vlm = BayesVLM.from_pretrained(save_tiny_clip(tmp_path / "clip"))
    assert not vlm.fitted
