"""Pairs by name: the world's splits, several of them, folders here and below the root."""

from __future__ import annotations

import hashlib
import io
import sys
from pathlib import Path

import pytest
from PIL import Image

from bayesvlm import BayesVLMError
from bayesvlm.data import PairFolder
from bayesvlm.experiments.pairs import WorldPairs, data_root, named_pairs
from bayesvlm_world import load


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to be in, and no root in the environment."""
    monkeypatch.delenv("BAYESVLM_DATA", raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def captioned(folder: Path, count: int = 3) -> Path:
    folder.mkdir(parents=True)
    for number in range(count):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(f"picture {number}")
    return folder


def read(pairs: WorldPairs) -> tuple[list[str], list[str]]:
    """A hash of the pixels of every image, and the texts."""
    images, texts = [], []
    for some, words in pairs:
        images += [hashlib.sha256(image.tobytes()).hexdigest() for image in some]
        texts += words
    return images, texts


def pixels(images: tuple[bytes, ...]) -> list[str]:
    return [hashlib.sha256(Image.open(io.BytesIO(each)).convert("RGB").tobytes()).hexdigest() for each in images]


def test_a_split_of_the_world() -> None:
    pairs, split = named_pairs("validation"), load("validation")
    assert isinstance(pairs, WorldPairs)
    assert pairs.size == len(split) == 490
    assert read(pairs) == (pixels(split.images), list(split.captions))
    assert {len(texts) for _, texts in pairs} == {64, 490 % 64}


def test_several_joined() -> None:
    pairs, parts = named_pairs("validation+emojione-black"), [load("validation"), load("emojione-black")]
    assert isinstance(pairs, WorldPairs)
    assert pairs.size == sum(map(len, parts))
    images, texts = read(pairs)
    assert texts == [*parts[0].captions, *parts[1].captions]
    assert images == [*pixels(parts[0].images), *pixels(parts[1].images)]


def test_the_fingerprint_is_of_images_and_captions_in_their_order() -> None:
    one = load("validation").group("food-drink")
    two = load("emojione-black").group("food-drink")
    other = type(one)(one.name, one.keys, one.images, one.labels, one.captions[::-1], one.classes)
    sets = [(one,), (two,), (one, two), (two, one), (other,)]
    assert len({WorldPairs(splits).fingerprint() for splits in sets}) == 5
    assert WorldPairs((one,)).fingerprint() == WorldPairs((one,)).fingerprint()


def test_a_folder_here_or_below_the_root(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captioned(elsewhere / "root" / "laion400m", 3)
    for pairs in (
        named_pairs("laion400m", elsewhere / "root"),
        named_pairs("laion400m", str(elsewhere / "root")),
        named_pairs(str(elsewhere / "root" / "laion400m")),
    ):
        assert isinstance(pairs, PairFolder)
        assert pairs.size == 3
    monkeypatch.setenv("BAYESVLM_DATA", str(elsewhere / "root"))
    assert named_pairs("laion400m").size == 3
    captioned(Path("laion400m"), 2)
    assert named_pairs("laion400m").size == 2, "what lies here comes first"
    monkeypatch.delenv("BAYESVLM_DATA")
    assert data_root(None) == Path("data")
    captioned(Path("data/own"), 4)
    assert named_pairs("own").size == 4


def test_a_split_of_a_data_set_in_a_folder_below_the_root(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    captioned(elsewhere / "root" / "laion400m")
    with pytest.raises(BayesVLMError, match="split='train' chooses nothing"):
        named_pairs("laion400m:train", elsewhere / "root")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(BayesVLMError, match=r"pip install 'bayesvlm\[datasets\]'"):
        named_pairs("owner/name:train", elsewhere / "root")


def test_a_split_that_is_a_folder_too() -> None:
    captioned(Path("train"))
    with pytest.raises(BayesVLMError, match=r"write \./train for the folder"):
        named_pairs("train")
    assert isinstance(named_pairs("./train"), PairFolder)


@pytest.mark.parametrize("name", ["", "trian", "train+cc12m", "train+", "owner/name", "laion400m"])
def test_what_there_is_not(name: str, elsewhere: Path) -> None:
    with pytest.raises(BayesVLMError, match=f"There are no pairs {name!r}".replace("+", r"\+")) as raised:
        named_pairs(name, elsewhere / "root")
    assert str(raised.value).count(". ") == 0, "one sentence"
    assert str(elsewhere / "root") in str(raised.value)
