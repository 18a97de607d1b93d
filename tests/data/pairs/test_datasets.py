"""Pairs from the package `datasets`, which these tests do without: a stand-in takes its place."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from PIL import Image

from bayesvlm import BayesVLMError
from bayesvlm.data.pairs.datasets import PairDataset


def picture(height: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, height)).save(buffer, "png")
    return buffer.getvalue()


@dataclass
class ImageFeature:
    """Like `datasets.Image`: decodes unless told otherwise."""

    decode: bool = True


class StandIn:
    """The part of `datasets.Dataset` that is used: columns, rows, and images that are decoded as they are read."""

    def __init__(self, columns: dict[str, list[Any]], features: dict[str, Any] | None = None) -> None:
        self.columns = columns
        self.features = dict.fromkeys(columns) | (features or {})
        self.split = None

    @property
    def column_names(self) -> list[str]:
        return list(self.columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, row: int) -> dict[str, Any]:
        return {name: self._value(name, values[row]) for name, values in self.columns.items()}

    def _value(self, name: str, value: Any) -> Any:
        feature = self.features[name]
        return Image.open(io.BytesIO(value["bytes"])) if feature is not None and feature.decode else value

    def select_columns(self, names: list[str]) -> StandIn:
        return StandIn({name: self.columns[name] for name in names}, {name: self.features[name] for name in names})

    def cast_column(self, name: str, feature: Any) -> StandIn:
        return StandIn(self.columns, {**self.features, name: feature})

    def iter(self, batch_size: int) -> Iterator[dict[str, list[Any]]]:
        for start in range(0, len(self), batch_size):
            yield {name: values[start : start + batch_size] for name, values in self.columns.items()}


def captioned(captions: list[Any], image: str = "image", text: str = "caption") -> StandIn:
    images = [{"bytes": picture(8 + row), "path": None} for row in range(len(captions))]
    return StandIn({"id": list(range(len(captions))), image: images, text: captions}, {image: ImageFeature()})


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


def test_images_as_paths_bytes_or_decoded(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture(9))
    images = [
        str(tmp_path / "a.png"),
        picture(10),
        Image.new("RGB", (8, 11)),
        {"bytes": None, "path": tmp_path / "a.png"},
    ]
    dataset = StandIn({"image": images, "text": ["1", "2", "3", "4"]})
    assert read(PairDataset.of(dataset, strict=True)) == [(1, "1"), (2, "2"), (3, "3"), (1, "4")]


def test_more_rows_than_are_read_at_once() -> None:
    dataset = StandIn({"image": [picture(8)] * 2500, "text": [str(row) for row in range(2500)]})
    assert PairDataset.of(dataset).pairs == tuple((row, str(row)) for row in range(2500))


def test_the_fingerprint_knows_the_captions_and_not_the_batches() -> None:
    first = PairDataset.of(captioned(["zero", "one"])).fingerprint()
    assert PairDataset.of(captioned(["zero", "one"]), "elsewhere", batch_size=1).fingerprint() == first
    assert PairDataset.of(captioned(["zero", "two"])).fingerprint() != first


# What is skipped -----------------------------------------------------------------------------------------------------


def test_rows_that_are_no_pair_are_skipped_and_named() -> None:
    dataset = captioned(["zero", None, " ", [], "four", "five", "six"])
    dataset.columns["image"][4] = {"bytes": b"no image", "path": "four.png"}
    dataset.columns["image"][5] = None
    pairs = PairDataset.of(dataset, "owner/name")
    assert read(pairs) == [(0, "zero"), (6, "six")]
    assert sorted(pairs.skipped.reasons) == [f"owner/name, row {row}" for row in range(1, 6)]
    with pytest.raises(BayesVLMError, match="owner/name, row 1 has no caption"):
        PairDataset.of(dataset, "owner/name", strict=True)


def test_a_blank_caption_among_others_is_counted_too() -> None:
    pairs = PairDataset.of(captioned([["0a", " ", None, "0d"], ["1a"]]), "owner/name")
    assert read(pairs) == [(0, "0a"), (1, "1a"), (0, "0d")]
    assert sorted(pairs.skipped.reasons) == [f"owner/name, row 0, caption {number}" for number in (2, 3)]


# What is not ---------------------------------------------------------------------------------------------------------


def test_data_sets_that_cannot_be_fitted_on() -> None:
    with pytest.raises(BayesVLMError, match="row 0: the column 'caption' holds int, not text; name the column"):
        PairDataset.of(captioned([3, 4]))
    with pytest.raises(BayesVLMError, match="the column 'caption' holds dict, not text"):
        PairDataset.of(captioned([["words", {"raw": "words"}]]))
    with pytest.raises(BayesVLMError, match="columns 'id', 'image', 'label'; one of them must be called caption"):
        PairDataset.of(captioned(["words"], text="label"))
    with pytest.raises(BayesVLMError, match="no column 'words'; it has 'id', 'image', 'caption'"):
        PairDataset.of(captioned(["words"]), text_column="words")
    with pytest.raises(BayesVLMError, match="holds no captions in its column 'caption'"):
        PairDataset.of(captioned([]))
    addresses = StandIn({"image_url": ["https://example.org/a.jpg"], "caption": ["words"]})
    with pytest.raises(BayesVLMError, match="the column 'image_url' holds web addresses; download the images"):
        PairDataset.of(addresses, image_column="image_url")


# Loading -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    """Put a `datasets` with these loaders where the package would be."""

    def install(load: Callable[..., Any]) -> None:
        module = ModuleType("datasets")
        module.load_dataset = module.load_from_disk = load  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "datasets", module)

    return install


Installed = Callable[[Callable[..., Any]], None]


def test_a_data_set_of_the_hub(installed: Installed) -> None:
    asked = []

    def load(source: str, split: str | None = None) -> StandIn:
        asked.append((source, split))
        return captioned(["zero", "one"])

    installed(load)
    assert PairDataset.open("owner/name", "train").size == 2
    assert asked == [("owner/name", "train")]
    with pytest.raises(BayesVLMError, match="'owner/name' needs a split"):
        PairDataset.open("owner/name")


@pytest.mark.parametrize("marker", ["dataset_dict.json", "train.parquet"])
def test_a_folder_with_splits(installed: Installed, tmp_path: Path, marker: str) -> None:
    (tmp_path / marker).touch()
    splits = {"train": captioned(["zero", "one"]), "test": captioned(["two"])}
    installed(lambda source: splits)
    assert PairDataset.open(tmp_path, "train").size == 2
    with pytest.raises(BayesVLMError, match="has several splits; choose the split from train, test"):
        PairDataset.open(tmp_path)
    with pytest.raises(BayesVLMError, match="has no split 'val'; choose the split from train, test"):
        PairDataset.open(tmp_path, "val")
    del splits["train"]
    assert PairDataset.open(tmp_path).size == 1


def test_a_folder_without_splits(installed: Installed, tmp_path: Path) -> None:
    installed(lambda source: captioned(["zero"]))
    assert PairDataset.open(tmp_path).size == 1
    with pytest.raises(BayesVLMError, match="has no splits, so split='train' chooses nothing"):
        PairDataset.open(tmp_path, "train")


def test_a_data_set_that_cannot_be_loaded(installed: Installed) -> None:
    def load(source: str, split: str | None = None) -> StandIn:
        raise ValueError('Unknown split "train". Should be one of ["test"].\nAnd more.')

    installed(load)
    with pytest.raises(
        BayesVLMError, match=r'^The data set \'o/n\' cannot be loaded \(Unknown split "train". Should be'
    ):
        PairDataset.open("o/n", "train")


def test_the_package_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(BayesVLMError, match=r"datasets, which is not installed; pip install 'bayesvlm\[datasets\]'"):
        PairDataset.open("owner/name", "train")
