"""Labelled rows of the package `datasets`, as it makes, saves and loads them; only the Hub is a stand-in."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import datasets
import pytest
from PIL import Image

from bayesvlm import BayesVLMError
from bayesvlm.data import resolve
from bayesvlm.data.labelled.datasets import HubImages
from bayesvlm.data.labelled.samples import Sample
from bayesvlm.images.files import read_stored

NAMES = ["Alarm_Clock", "Mop"]
Row = tuple[Any, int | None]
Hub = dict[str, dict[str, datasets.Dataset]]


def picture(shade: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (shade, 0, 0)).save(buffer, "png")
    return buffer.getvalue()


def stored(shade: int) -> dict[str, Any]:
    return {"bytes": picture(shade), "path": f"{shade}.png"}


def table(rows: list[Row], names: list[str] = NAMES, split: str | None = None) -> datasets.Dataset:
    """Images with their labels, and a column that is neither."""
    file = {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}
    kinds = {"image": file, "label": datasets.ClassLabel(names=names), "text": datasets.Value("string")}
    images, labels = [image for image, _ in rows], [label for _, label in rows]
    columns = {"image": images, "label": labels, "text": ["words"] * len(rows)}
    made = datasets.Dataset.from_dict(columns, features=datasets.Features(kinds), split=split)
    return made.cast_column("image", datasets.Image())


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    """Data sets by name and split, where the package would ask the Hub."""
    there: Hub = {"someone/things": {"test": table([(stored(0), 1), (stored(1), 0)]), "train": table([])}}

    def load_dataset(name: str, split: str) -> datasets.Dataset:
        if name not in there:
            raise FileNotFoundError(f"Dataset '{name}' doesn't exist on the Hub.\nA second line.")
        if split not in there[name]:
            raise ValueError(f'Unknown split "{split}". Should be one of {list(there[name])}.')
        return there[name][split]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return there


def test_rows_are_samples(hub: Hub) -> None:
    opened = HubImages.open("someone/things", "test")
    assert (opened.name, opened.size, opened.classes) == ("things", 2, ("Alarm Clock", "Mop"))
    assert list(opened) == [Sample("0000000", picture(0), 1), Sample("0000001", picture(1), 0)]
    images = [read_stored(sample) for sample in opened]
    assert [image.getpixel((0, 0)) for image in images] == [(0, 0, 0), (1, 0, 0)]


def test_columns_names_and_prompts_are_the_caller_s(hub: Hub) -> None:
    renamed = {"image": "img", "label": "fine_label"}
    hub["someone/things"]["test"] = hub["someone/things"]["test"].rename_columns(renamed)
    opened = HubImages.open(
        "someone/things", "test", "img", "fine_label", name="mine", named=str.lower, templates=("{c}",), strict=True
    )
    assert (opened.name, opened.classes, opened.templates) == ("mine", ("alarm_clock", "mop"), ("{c}",))
    assert opened.skipped.strict
    assert [sample.label for sample in opened] == [1, 0]


def test_a_saved_folder_with_splits(tmp_path: Path) -> None:
    rows = table([(stored(0), 1), (stored(1), 0)])
    datasets.DatasetDict({"test": rows, "train": rows}).save_to_disk(tmp_path / "things")
    opened = HubImages.open(tmp_path / "things", "test")
    assert [sample.label for sample in opened] == [1, 0]
    with pytest.raises(BayesVLMError, match="has no split 'val'; choose the split from test, train"):
        HubImages.open(tmp_path / "things", "val")


def test_a_saved_folder_that_is_one_split(tmp_path: Path) -> None:
    table([(stored(0), 1), (stored(1), 0)], split="test").save_to_disk(tmp_path / "things")
    assert HubImages.open(tmp_path / "things", "test").size == 2
    with pytest.raises(BayesVLMError, match="split='val' chooses nothing"):
        HubImages.open(tmp_path / "things", "val")


@pytest.mark.parametrize("name", ["datasets:someone/things:test", "datasets:someone/things"])
def test_by_name(hub: Hub, name: str) -> None:
    opened = resolve(name).open(templates="a drawing of {c}")
    assert isinstance(opened, HubImages)
    assert (opened.name, opened.size, opened.templates) == ("things", 2, ("a drawing of {c}",))


def test_a_saved_folder_by_its_path(tmp_path: Path) -> None:
    rows = table([(stored(0), 1), (stored(1), 0)])
    datasets.DatasetDict({"test": rows, "train": rows}).save_to_disk(tmp_path / "things")
    assert resolve(tmp_path / "things").open().size == 2


def test_images_that_are_files(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture(7))
    rows: list[Row] = [({"bytes": None, "path": str(tmp_path / "a.png")}, 0), ({"bytes": None, "path": "gone.png"}, 1)]
    hub["someone/things"]["test"] = table(rows)
    opened = HubImages.open("someone/things", "test")
    assert next(iter(opened)).image == tmp_path / "a.png"
    before = opened.fingerprint()
    (tmp_path / "a.png").write_bytes(picture(8))
    assert opened.fingerprint() != before


def test_what_decides_the_fingerprint(hub: Hub) -> None:
    def fingerprint(rows: list[Row], names: list[str]) -> str:
        hub["someone/things"]["test"] = table(rows, names)
        return HubImages.open("someone/things", "test").fingerprint()

    rows: list[Row] = [(stored(0), 1), (stored(1), 0)]
    assert fingerprint(rows, ["a", "b"]) == fingerprint(rows, ["a", "b"])
    others = [
        fingerprint(rows, ["a", "c"]),
        fingerprint(rows[::-1], ["a", "b"]),
        fingerprint([(stored(0), 0), (stored(1), 0)], ["a", "b"]),
        fingerprint([(stored(0), 1), (stored(2), 0)], ["a", "b"]),
    ]
    assert len({*others, fingerprint(rows, ["a", "b"])}) == 5


def test_a_row_without_an_image_is_skipped_and_noted(hub: Hub) -> None:
    hub["someone/things"]["test"] = table([(None, 1), ({"bytes": None, "path": None}, 1), (stored(1), 0)])
    opened = HubImages.open("someone/things", "test")
    assert [sample.key for sample in opened] == ["0000002"]
    assert list(opened.skipped.reasons) == ["row 0", "row 1"]
    with pytest.raises(BayesVLMError, match="Row 0 of things has no image"):
        list(HubImages.open("someone/things", "test", strict=True))


@pytest.mark.parametrize("label", [-1, None])
def test_a_label_outside_the_class_list(hub: Hub, label: int | None) -> None:
    hub["someone/things"]["test"] = table([(stored(0), 1), (stored(1), label)])
    with pytest.raises(BayesVLMError, match=f"Row 1 of things has the label {label}; expected 0 to 1"):
        list(HubImages.open("someone/things", "test"))


@pytest.mark.parametrize(
    ("source", "options", "sentence"),
    [
        ("someone/else", {}, r"'someone/else' cannot be loaded \(Dataset 'someone/else' doesn't exist"),
        ("someone/things", {"split": "val"}, r"Should be one of \['test', 'train'\]\); check its name, the split"),
        ("someone/things", {"split": "train"}, "The split 'train' of someone/things has no rows"),
        ("someone/things", {"image_column": "img"}, "has no column 'img'; it has image, label, text"),
        ("someone/things", {"label_column": "labels"}, "has no column 'labels'; it has image, label, text"),
        (
            "someone/things",
            {"label_column": "text"},
            "The column 'text' .* has no class names; it must be a ClassLabel",
        ),
    ],
)
def test_what_is_refused(hub: Hub, source: str, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        HubImages.open(source, options.pop("split", "test"), **options)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # type: ignore[arg-type]
    with pytest.raises(
        BayesVLMError,
        match=r"'someone/things' is read with the package datasets, which .*pip install 'bayesvlm\[datasets\]'\.$",
    ):
        HubImages.open("someone/things", "test")
