"""Labelled rows of the `datasets` library, with a stand-in for it: the library itself is an optional extra."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from bayesvlm import BayesVLMError
from bayesvlm.data import resolve
from bayesvlm.data.labelled.datasets import HubImages
from bayesvlm.data.labelled.samples import Sample, decoded


def picture(shade: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (4, 4), (shade, 0, 0)).save(buffer, "png")
    return buffer.getvalue()


def stored(shade: int) -> dict[str, Any]:
    return {"bytes": picture(shade), "path": f"{shade}.png"}


@dataclass
class Table:
    """What is used of a datasets.Dataset."""

    rows: list[tuple[Any, Any]]
    features: dict[str, Any] = field(
        default_factory=lambda: {
            "image": SimpleNamespace(decode=True),
            "label": SimpleNamespace(names=["Alarm_Clock", "Mop"]),
            "text": SimpleNamespace(),
        }
    )
    split: str | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def select_columns(self, names: list[str]) -> Table:
        return replace(self, features={name: self.features[name] for name in names})

    def cast_column(self, name: str, feature: Any) -> Table:
        return replace(self, features={**self.features, name: feature})

    def __iter__(self) -> Iterator[dict[str, Any]]:
        image, label = self.features
        assert not self.features[image].decode, "decoding is ours: the library stops at the first broken image"
        return ({image: picture, label: number} for picture, number in self.rows)


class Library(SimpleNamespace):
    """The module: data sets by name and split, or by folder."""

    def load_dataset(self, name: str, split: str) -> Table:
        if name not in self.hub:
            raise FileNotFoundError(f"Dataset '{name}' doesn't exist on the Hub.\nA second line.")
        if split not in self.hub[name]:
            raise ValueError(f'Unknown split "{split}". Should be one of {list(self.hub[name])}.')
        return self.hub[name][split]

    def load_from_disk(self, folder: str) -> Any:
        return self.disk[folder]

    @staticmethod
    def Image(decode: bool) -> Any:
        return SimpleNamespace(decode=decode)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    table = Table([(stored(0), 1), (stored(1), 0)])
    module = Library(hub={"someone/things": {"test": table, "train": Table([])}}, disk={})
    monkeypatch.setitem(sys.modules, "datasets", module)  # type: ignore[arg-type]
    return module


def test_rows_are_samples(library: Library) -> None:
    opened = HubImages.open("someone/things", "test")
    assert (opened.name, opened.size, opened.classes) == ("things", 2, ("Alarm Clock", "Mop"))
    assert list(opened) == [Sample("0000000", picture(0), 1), Sample("0000001", picture(1), 0)]
    (batch,) = decoded(opened)
    assert [image.getpixel((0, 0)) for image in batch.images] == [(0, 0, 0), (1, 0, 0)]


def test_columns_names_and_prompts_are_the_caller_s(library: Library) -> None:
    table = library.hub["someone/things"]["test"]
    table.features = {"img": table.features["image"], "fine_label": table.features["label"]}
    opened = HubImages.open(
        "someone/things", "test", "img", "fine_label", name="mine", named=str.lower, templates=("{c}",), strict=True
    )
    assert (opened.name, opened.classes, opened.templates) == ("mine", ("alarm_clock", "mop"), ("{c}",))
    assert opened.skipped.strict
    assert [sample.label for sample in opened] == [1, 0]


@pytest.mark.parametrize("kind", ["dataset_dict.json", "state.json"])
def test_a_saved_folder(library: Library, tmp_path: Path, kind: str) -> None:
    for name in (kind, "dataset_info.json"):
        (tmp_path / name).touch()
    table = replace(library.hub["someone/things"]["test"], split="test")
    library.disk = {str(tmp_path): {"test": table, "train": table} if kind == "dataset_dict.json" else table}
    assert HubImages.open(tmp_path, "test").size == 2
    several = kind == "dataset_dict.json"
    sentence = "has no split 'val'; choose the split from test, train" if several else "split='val' chooses nothing"
    with pytest.raises(BayesVLMError, match=sentence):
        HubImages.open(tmp_path, "val")


@pytest.mark.parametrize("name", ["datasets:someone/things:test", "datasets:someone/things"])
def test_by_name(library: Library, name: str) -> None:
    opened = resolve(name).open(template="a drawing of {c}")
    assert isinstance(opened, HubImages)
    assert (opened.name, opened.size, opened.templates) == ("things", 2, ("a drawing of {c}",))


def test_a_saved_folder_by_its_path(library: Library, tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").touch()
    library.disk = {str(tmp_path): library.hub["someone/things"]}
    assert resolve(tmp_path).open().size == 2


def test_images_that_are_files(library: Library, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(picture(7))
    table = library.hub["someone/things"]["test"]
    table.rows = [({"bytes": None, "path": str(tmp_path / "a.png")}, 0), ({"bytes": None, "path": "gone.png"}, 1)]
    opened = HubImages.open("someone/things", "test")
    assert next(iter(opened)).image == tmp_path / "a.png"
    before = opened.fingerprint()
    (tmp_path / "a.png").write_bytes(picture(8))
    assert opened.fingerprint() != before


def test_what_decides_the_fingerprint(library: Library) -> None:
    def fingerprint(rows: list[tuple[Any, int]], names: list[str]) -> str:
        table = Table(rows)
        table.features["label"] = SimpleNamespace(names=names)
        library.hub["someone/things"]["test"] = table
        return HubImages.open("someone/things", "test").fingerprint()

    rows = [(stored(0), 1), (stored(1), 0)]
    assert fingerprint(rows, ["a", "b"]) == fingerprint(rows, ["a", "b"])
    others = [
        fingerprint(rows, ["a", "c"]),
        fingerprint(rows[::-1], ["a", "b"]),
        fingerprint([(stored(0), 0), (stored(1), 0)], ["a", "b"]),
        fingerprint([(stored(0), 1), (stored(2), 0)], ["a", "b"]),
    ]
    assert len({*others, fingerprint(rows, ["a", "b"])}) == 5


def test_a_row_without_an_image_is_skipped_and_noted(library: Library) -> None:
    library.hub["someone/things"]["test"].rows = [(None, 1), ({"bytes": None, "path": None}, 1), (stored(1), 0)]
    opened = HubImages.open("someone/things", "test")
    assert [sample.key for sample in opened] == ["0000002"]
    assert list(opened.skipped.reasons) == ["row 0", "row 1"]
    with pytest.raises(BayesVLMError, match="Row 0 of things has no image"):
        list(HubImages.open("someone/things", "test", strict=True))


@pytest.mark.parametrize("label", [-1, 2, None])
def test_a_label_outside_the_class_list(library: Library, label: int | None) -> None:
    library.hub["someone/things"]["test"].rows[1] = (stored(1), label)
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
def test_what_is_refused(library: Library, source: str, options: dict[str, str], sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        HubImages.open(source, options.pop("split", "test"), **options)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)  # type: ignore[arg-type]
    with pytest.raises(
        BayesVLMError,
        match=r"'someone/things' is read with the package datasets, which .*pip install 'bayesvlm\[datasets\]'\.$",
    ):
        HubImages.open("someone/things", "test")
