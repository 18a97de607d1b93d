"""Splits of the world as image-text pairs, and the names that the library knows them by."""

from __future__ import annotations

import hashlib
import io

import pytest
from PIL import Image

from bayesvlm import BayesVLMError, embedded
from bayesvlm.data import PairSet, resolve
from bayesvlm_world import SPLITS, WorldPairs, count_of, folder_of, load


def read(pairs: WorldPairs) -> tuple[list[str], list[str]]:
    """A hash of the pixels of every image, and the texts."""
    images, texts = [], []
    for some, words in pairs:
        images += [hashlib.sha256(image.tobytes()).hexdigest() for image in some]
        texts += words
    return images, texts


def pixels(images: tuple[bytes, ...]) -> list[str]:
    return [hashlib.sha256(Image.open(io.BytesIO(each)).convert("RGB").tobytes()).hexdigest() for each in images]


def test_the_library_knows_the_names_of_the_splits() -> None:
    assert tuple(SPLITS) == embedded.SPLITS


@pytest.mark.parametrize("split", SPLITS)
def test_a_split_is_counted_without_being_read(split: str) -> None:
    assert count_of(split) == len(load(split))
    assert (folder_of(split) / "nshards.txt").is_file()


def test_a_split_is_a_set_of_pairs() -> None:
    pairs, split = resolve("validation", "pairs").open(), load("validation")
    assert isinstance(pairs, WorldPairs)
    assert isinstance(pairs, PairSet)
    assert pairs.size == len(split) == 490
    assert read(pairs) == (pixels(split.images), list(split.captions))
    assert {len(texts) for _, texts in pairs} == {64, 490 % 64}
    assert {len(texts) for _, texts in resolve("validation", "pairs").open(batch_size=245)} == {245}


def test_several_joined() -> None:
    pairs, parts = resolve("validation+emojione-black", "pairs").open(), [load("validation"), load("emojione-black")]
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
    assert WorldPairs((one,)).fingerprint() == WorldPairs((one,), batch_size=7).fingerprint()


def test_there_is_nothing_to_choose() -> None:
    with pytest.raises(BayesVLMError, match=r"train is a split of the embedded world, where captions='a\.csv' chooses"):
        resolve("train", "pairs").open("a.csv")
