"""Destroying pictures and captions: exactly so much, more of the same at every step, and the same every time."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bayesvlm import BayesVLM
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.labelled import Sample
from bayesvlm.experiments.corruption import GREY, LEVELS, Corruption, corrupt, crossed_out, greyed, spread_pairs
from bayesvlm.images.files import SkippedImages

from .thinned import thinned

TEXT = "grinning face with big eyes"


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(size: tuple[int, int] = (64, 64)) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 100, (size[1], size[0], 3), dtype=np.uint8)  # none is grey
    return Image.fromarray(pixels)


def squares(image: Image.Image) -> np.ndarray:  # [8, 8] bool
    """Which squares of the chequerboard are all grey; every other one must be untouched."""
    pixels, before = np.asarray(image), np.asarray(noise())
    gone = (pixels == GREY).all(axis=2)
    assert (pixels[~gone] == before[~gone]).all()
    blocks = gone.reshape(8, 8, 8, 8).transpose(0, 2, 1, 3).reshape(8, 8, 64)
    assert (blocks.all(axis=2) == blocks.any(axis=2)).all(), "a square is painted whole or not at all"
    return blocks.all(axis=2)


# Captions ------------------------------------------------------------------------------------------------------------


def test_nothing_and_everything_crossed_out() -> None:
    assert crossed_out(TEXT, 0.0, seeded()) == TEXT
    assert crossed_out(TEXT, 1.0, seeded()) == "xxxxxxxx xxxx xxxx xxx xxxx"
    assert crossed_out("", 1.0, seeded()) == ""


@pytest.mark.parametrize("share", LEVELS)
def test_that_share_of_the_letters(share: float) -> None:
    made = crossed_out(TEXT, share, seeded())
    changed = [index for index in range(len(TEXT)) if made[index] != TEXT[index]]
    assert len(made) == len(TEXT)
    assert len(changed) == round(share * 23), "of 23 letters; there is no x among them"
    assert all(made[index] == "x" and TEXT[index] != " " for index in changed)


def test_more_letters_are_the_same_and_more() -> None:
    gone: set[int] = set()
    for share in LEVELS:
        made = crossed_out(TEXT, share, seeded(3))
        now = {index for index, letter in enumerate(made) if letter == "x"}
        assert gone <= now
        gone = now
    assert len({crossed_out(TEXT, 0.4, seeded(seed)) for seed in range(5)}) > 1, "the places are random"


# Pictures ------------------------------------------------------------------------------------------------------------


def test_nothing_and_everything_greyed() -> None:
    image = noise()
    assert greyed(image, 0.0, seeded()).tobytes() == image.tobytes()
    assert greyed(image, 1.0, seeded()).tobytes() == Image.new("RGB", image.size, GREY).tobytes()
    assert image.tobytes() == noise().tobytes(), "the caller's picture stays as it is"


@pytest.mark.parametrize("share", LEVELS)
def test_that_share_of_the_squares(share: float) -> None:
    assert squares(greyed(noise(), share, seeded())).sum() == round(share * 64)


def test_more_squares_are_the_same_and_more() -> None:
    gone = np.zeros((8, 8), dtype=bool)
    for share in LEVELS:
        now = squares(greyed(noise(), share, seeded(3)))
        assert (gone <= now).all()
        gone = now
    first, second = (squares(greyed(noise(), 0.4, seeded(seed))) for seed in (0, 1))
    assert (first != second).any(), "the places are random"


@pytest.mark.parametrize("size", [(60, 60), (100, 37), (224, 224), (9, 8)])
def test_pictures_that_do_not_divide_by_eight(size: tuple[int, int]) -> None:
    assert greyed(noise(size), 1.0, seeded()).tobytes() == Image.new("RGB", size, GREY).tobytes()
    half = np.asarray(greyed(noise(size), 0.5, seeded()))
    assert 0.4 < (half == GREY).all(axis=2).mean() < 0.7


# Both ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vlm() -> BayesVLM:
    train = thinned("train")
    bare = BayesVLM.from_pretrained("emoji-clip", device="cpu").without_posterior()
    return bare.fit(list(train.pairs())[:1], progress=False)


@pytest.fixture(scope="module")
def found(vlm: BayesVLM) -> Corruption:
    return corrupt(vlm, *spread_pairs(thinned("new-drawing"), 6))


def test_the_grid(found: Corruption) -> None:
    assert found.levels == LEVELS
    assert found.pairs == 6
    assert found.mean.shape == found.std.shape == (6, 6)
    assert bool((found.mean.abs() <= 1).all())
    assert bool((found.std > 0).all())
    assert float(found.mean[0, 0]) > float(found.mean[-1, -1]), "what is whole is more alike than what is not"


def test_the_grid_is_the_same_every_time(vlm: BayesVLM, found: Corruption) -> None:
    again = corrupt(vlm, *spread_pairs(thinned("new-drawing"), 6))
    assert torch.equal(again.mean, found.mean)
    assert torch.equal(again.std, found.std)
    other = corrupt(vlm, *spread_pairs(thinned("new-drawing"), 6), seed=1)
    assert torch.equal(other.mean[0, 0], found.mean[0, 0])
    assert not torch.equal(other.mean[1:, 1:], found.mean[1:, 1:])


def test_rows_are_captions_and_columns_pictures(vlm: BayesVLM, found: Corruption) -> None:
    """Its four corners, with pictures and captions destroyed by hand, one pair at a time."""
    split = thinned("new-drawing")
    rows = [index * (len(split) - 1) // 5 for index in range(6)]
    for i, caption_gone in ((0, False), (-1, True)):
        for j, picture_gone in ((0, False), (-1, True)):
            means, variances = [], []
            for row in rows:
                name = split.classes[split.labels[row]]
                text = "".join("x" if letter != " " else " " for letter in name) if caption_gone else name
                image = Image.open(io.BytesIO(split.images[row])).convert("RGB")
                if picture_gone:
                    image = Image.new("RGB", (64, 64), GREY)
                moments = vlm.similarity([image], [text])
                means.append(float(moments.mean))
                variances.append(float(moments.variance))
            assert float(found.mean[i, j]) == pytest.approx(np.mean(means), abs=1e-5)
            assert float(found.std[i, j]) == pytest.approx(np.sqrt(variances).mean(), abs=1e-5)
            assert float(found.variance[i, j]) == pytest.approx(np.mean(variances), rel=1e-4)


# Which pairs ---------------------------------------------------------------------------------------------------------


@dataclass
class Listed:
    """A labelled set with a template, of whatever samples; it need not know how many there are."""

    samples: list[Sample]
    size: int | None = None
    name: str = "listed"
    classes: tuple[str, ...] = ("cat", "dog")
    templates: tuple[str, ...] = ("a drawing of a {c}", "{c}")
    skipped: SkippedImages = field(default_factory=SkippedImages)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.samples)

    def fingerprint(self) -> str:
        return ""


def shade(value: int) -> Image.Image:
    return Image.new("RGB", (8, 8), (value,) * 3)


def as_png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "png")
    return buffer.getvalue()


def test_no_more_pairs_than_there_are() -> None:
    split = thinned("validation")
    columns = {column: getattr(split, column)[:3] for column in ("keys", "images", "labels", "captions")}
    pictures, captions = spread_pairs(replace(split, **columns))
    assert captions == [split.classes[label] for label in split.labels[:3]]
    assert [picture.tobytes() for picture in pictures] == [
        Image.open(io.BytesIO(image)).convert("RGB").tobytes() for image in split.images[:3]
    ]


@pytest.mark.parametrize("size", [None, 9])
def test_pairs_are_spread_from_the_first_to_the_last(size: int | None) -> None:
    data = Listed([Sample(str(row), shade(row), row % 2) for row in range(9)], size)
    pictures, captions = spread_pairs(data, 5)
    assert [picture.getpixel((0, 0)) for picture in pictures] == [(row,) * 3 for row in (0, 2, 4, 6, 8)]
    assert captions == ["a drawing of a cat"] * 5


def test_pictures_in_any_form_with_the_prompts_of_their_classes(tmp_path: Path) -> None:
    shade(3).save(tmp_path / "3.png")
    images = [shade(1), as_png(shade(2)), b"no picture", tmp_path / "3.png"]
    data = Listed([Sample(str(row), image, row % 2) for row, image in enumerate(images)])
    pictures, captions = spread_pairs(data)
    assert [picture.getpixel((0, 0)) for picture in pictures] == [(1,) * 3, (2,) * 3, (3,) * 3]
    assert captions == ["a drawing of a cat", "a drawing of a dog", "a drawing of a dog"]
    assert list(data.skipped.reasons) == ["2"]


def test_a_set_that_cannot_be_read() -> None:
    for samples in ([Sample("0", b"no picture", 0)], []):
        with pytest.raises(BayesVLMError, match="listed has no image that can be read"):
            spread_pairs(Listed(samples))


def test_a_picture_smaller_than_the_chequerboard() -> None:
    gone = greyed(Image.new("RGB", (5, 5), "white"), 1.0, torch.Generator().manual_seed(0))
    assert set(gone.get_flattened_data() if hasattr(gone, "get_flattened_data") else gone.getdata()) == {GREY}
