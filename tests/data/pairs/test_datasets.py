"""Pairs from the package `datasets`, as it makes, saves and loads them; only the Hub is a stand-in."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
from PIL import Image

from bayesvlm import BayesVLMError
from bayesvlm.data.pairs.datasets import PairDataset


def picture(height: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, height)).save(buffer, "png")
    return buffer.getvalue()


def table(images: list[Any], captions: list[Any], image: str = "image", text: str = "caption") -> datasets.Dataset:
    """Rows with an id, an image (its bytes, a path, or both in a dict) and captions of any one kind."""
    ids = list(range(len(captions)))
    made = datasets.Dataset.from_dict({"id": ids, image: images, text: captions})
    return made.cast_column(image, datasets.Image())


def captioned(captions: list[Any], image: str = "image", text: str = "caption") -> datasets.Dataset:
    """An image per row, eight pixels high in the first one and one pixel higher in each after it."""
    images = [{"bytes": picture(8 + row), "path": None} for row in range(len(captions))]
    return table(images, captions, image, text)


def read(pairs: PairDataset) -> list[tuple[int, str]]:
    return [(image.height - 8, text) for images, texts in pairs for image, text in zip(images, texts, strict=True)]


# What is read --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("image", "text"), [("image", "caption"), ("jpg", "txt"), ("Image", "Text")])
def test_columns_with_usual_names_are_found(image: str, text: str) -> None:
    pairs = PairDataset.of(captioned(["zero", "one", "two"], image, text), batch_size=2, strict=True)
    assert pairs.size == 3
    assert [len(texts) for _, texts in pairs] == [2, 1]
    assert read(pairs) == read(pairs) == [(0, "zero"), (1, "one"), (2, "two")]


def test_columns_by_name() -> None:
    dataset = captioned(["zero", "one"], "picture", "français")
    assert read(PairDataset.of(dataset, image_column="picture", text_column="français")) == [(0, "zero"), (1, "one")]


def test_several_captions_a_row() -> None:
    dataset = captioned([["0a", "0b"], ["1a"], ["2a", "2b"]])
    assert read(PairDataset.of(dataset)) == [(0, "0a"), (1, "1a"), (2, "2a"), (0, "0b"), (2, "2b")]
    assert read(PairDataset.of(dataset, captions_per_image=1)) == [(0, "0a"), (1, "1a"), (2, "2a")]


@pytest.mark.parametrize("feature", [True, False], ids=["an image column", "a plain column"])
def test_images_as_paths_or_bytes(tmp_path: Path, feature: bool) -> None:
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    for height, path in enumerate(paths, start=9):
        path.write_bytes(picture(height))
    for column in (list(map(str, paths)), [path.read_bytes() for path in paths]):
        dataset = datasets.Dataset.from_dict({"image": column, "text": ["1", "2"]})
        if feature:
            dataset = dataset.cast_column("image", datasets.Image())
        assert read(PairDataset.of(dataset, strict=True)) == [(1, "1"), (2, "2")]


def test_images_that_were_given_decoded() -> None:
    rows = {"image": [Image.new("RGB", (8, 11)), Image.new("L", (8, 12))], "text": ["3", "4"]}
    features = datasets.Features({"image": datasets.Image(), "text": datasets.Value("string")})
    dataset = datasets.Dataset.from_dict(rows, features=features)
    assert read(PairDataset.of(dataset, strict=True)) == [(3, "3"), (4, "4")]


def test_more_rows_than_are_read_at_once() -> None:
    dataset = table([{"bytes": picture(8), "path": None}] * 2500, [str(row) for row in range(2500)])
    assert PairDataset.of(dataset).pairs == tuple((row, str(row)) for row in range(2500))


def test_the_fingerprint_knows_the_captions_and_not_the_batches() -> None:
    first = PairDataset.of(captioned(["zero", "one"])).fingerprint()
    assert PairDataset.of(captioned(["zero", "one"]), "elsewhere", batch_size=1).fingerprint() == first
    assert PairDataset.of(captioned(["zero", "two"])).fingerprint() != first


# What is skipped -----------------------------------------------------------------------------------------------------


def test_rows_that_are_no_pair_are_skipped_and_named() -> None:
    images: list[Any] = [{"bytes": picture(8 + row), "path": None} for row in range(7)]
    images[4:6] = {"bytes": b"no image", "path": "four.png"}, None
    dataset = table(images, [["zero"], [None], [" "], [], ["four"], ["five"], ["six"]])
    pairs = PairDataset.of(dataset, "owner/name")
    assert read(pairs) == [(0, "zero"), (6, "six")]
    assert sorted(pairs.skipped.reasons) == [f"owner/name, row {row}" for row in range(1, 6)]
    with pytest.raises(BayesVLMError, match="owner/name, row 1 has no caption"):
        PairDataset.of(dataset, "owner/name", strict=True)


def test_a_row_without_a_caption_among_single_ones() -> None:
    pairs = PairDataset.of(captioned(["zero", None, " ", "three"]), "owner/name")
    assert read(pairs) == [(0, "zero"), (3, "three")]
    assert sorted(pairs.skipped.reasons) == ["owner/name, row 1", "owner/name, row 2"]


def test_a_blank_caption_among_others_is_counted_too() -> None:
    pairs = PairDataset.of(captioned([["0a", " ", None, "0d"], ["1a"]]), "owner/name")
    assert read(pairs) == [(0, "0a"), (1, "1a"), (0, "0d")]
    assert sorted(pairs.skipped.reasons) == [f"owner/name, row 0, caption {number}" for number in (2, 3)]


# What is not ---------------------------------------------------------------------------------------------------------


def test_data_sets_that_cannot_be_fitted_on() -> None:
    with pytest.raises(BayesVLMError, match="row 0: the column 'caption' holds int, not text; name the column"):
        PairDataset.of(captioned([3, 4]))
    with pytest.raises(BayesVLMError, match="the column 'caption' holds dict, not text"):
        PairDataset.of(captioned([[{"raw": "words"}]]))
    with pytest.raises(BayesVLMError, match="columns 'id', 'image', 'label'; one of them must be called caption"):
        PairDataset.of(captioned(["words"], text="label"))
    with pytest.raises(BayesVLMError, match="no column 'words'; it has 'id', 'image', 'caption'"):
        PairDataset.of(captioned(["words"]), text_column="words")
    with pytest.raises(BayesVLMError, match="holds no captions in its column 'caption'"):
        PairDataset.of(captioned([]))
    addresses = datasets.Dataset.from_dict({"image_url": ["https://example.org/a.jpg"], "caption": ["words"]})
    with pytest.raises(BayesVLMError, match="the column 'image_url' holds web addresses; download the images"):
        PairDataset.of(addresses, image_column="image_url")


# Loading -------------------------------------------------------------------------------------------------------------


Hub = Callable[[Callable[..., Any]], None]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    """Put a loader where the package would ask the Hub."""
    return lambda load: monkeypatch.setattr(datasets, "load_dataset", load)


def test_a_data_set_of_the_hub(hub: Hub) -> None:
    asked = []

    def load(source: str, split: str | None = None) -> datasets.Dataset:
        asked.append((source, split))
        return captioned(["zero", "one"])

    hub(load)
    assert PairDataset.open("owner/name", "train").size == 2
    assert asked == [("owner/name", "train")]
    with pytest.raises(BayesVLMError, match="'owner/name' needs a split"):
        PairDataset.open("owner/name")


def saved_to_disk(splits: dict[str, datasets.Dataset], folder: Path) -> None:
    datasets.DatasetDict(splits).save_to_disk(folder)


def as_parquet(splits: dict[str, datasets.Dataset], folder: Path) -> None:
    folder.mkdir()
    for name, rows in splits.items():
        rows.to_parquet(folder / f"{name}.parquet")


@pytest.mark.parametrize("write", [saved_to_disk, as_parquet])
def test_a_folder_with_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[dict[str, datasets.Dataset], Path], None]
) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    splits = {"train": captioned(["zero", "one"]), "test": captioned(["two"])}
    write(splits, tmp_path / "several")
    assert read(PairDataset.open(tmp_path / "several", "train")) == [(0, "zero"), (1, "one")]
    with pytest.raises(BayesVLMError, match="has several splits; choose the split from train, test"):
        PairDataset.open(tmp_path / "several")
    with pytest.raises(BayesVLMError, match="has no split 'val'; choose the split from train, test"):
        PairDataset.open(tmp_path / "several", "val")
    write({"test": splits["test"]}, tmp_path / "single")
    assert read(PairDataset.open(tmp_path / "single")) == [(0, "two")]


def test_a_folder_without_splits(tmp_path: Path) -> None:
    captioned(["zero"]).save_to_disk(tmp_path / "rows")
    assert PairDataset.open(tmp_path / "rows").size == 1
    with pytest.raises(BayesVLMError, match="has no splits, so split='train' chooses nothing"):
        PairDataset.open(tmp_path / "rows", "train")


def test_a_data_set_that_cannot_be_loaded(hub: Hub) -> None:
    def load(source: str, split: str | None = None) -> datasets.Dataset:
        raise ValueError('Unknown split "train". Should be one of ["test"].\nAnd more.')

    hub(load)
    with pytest.raises(
        BayesVLMError, match=r'^The data set \'o/n\' cannot be loaded \(Unknown split "train". Should be'
    ):
        PairDataset.open("o/n", "train")


def test_a_saved_folder_that_is_damaged(tmp_path: Path) -> None:
    captioned(["zero"]).save_to_disk(tmp_path / "rows")
    next((tmp_path / "rows").glob("*.arrow")).write_bytes(b"cut")
    with pytest.raises(BayesVLMError, match="rows' cannot be loaded"):
        PairDataset.open(tmp_path / "rows")


def test_the_package_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(BayesVLMError, match=r"datasets, which is not installed; pip install 'bayesvlm\[datasets\]'"):
        PairDataset.open("owner/name", "train")
