"""Labelled images that a table lists."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data import resolve
from bayesvlm.data.labelled.listed import ListedImages, listed_rows, with_tables

ROWS = [("a.png", "dog"), ("deep/b.png", "cat"), ("c.png", "dog")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three images, and photos.csv that lists them."""
    monkeypatch.chdir(tmp_path)
    for image, _ in ROWS:
        (tmp_path / "mine" / image).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (len(image), 0, 0)).save(tmp_path / "mine" / image)
    written(tmp_path / "mine/photos.csv", *ROWS)
    return tmp_path / "mine"


def written(file: Path, *rows: tuple[str, ...], header: str = "image,label") -> Path:
    file.write_text("\n".join([header, *map(",".join, rows)]) + "\n")
    return file


def opened(name: str | Path, **options: bool) -> ListedImages:
    found = resolve(name).open(**options)
    assert isinstance(found, ListedImages)
    return found


def test_a_table_is_a_labelled_set(folder: Path) -> None:
    source = resolve("mine/photos.csv")
    assert (source.here, source.where, source.folder) == (True, "mine/photos.csv", Path("mine/photos.csv"))
    data = opened("mine/photos.csv")
    assert data.name == f"{folder.name}/photos.csv"
    assert data.classes == ("cat", "dog")
    assert data.size == 3
    assert [(sample.key, sample.image, sample.label) for sample in data] == [
        (image, Path("mine") / image, ["cat", "dog"].index(label)) for image, label in ROWS
    ]
    assert data.templates == ("a photo of a {c}.",)
    assert not data.skipped


def test_a_table_below_the_root_and_its_images_there(folder: Path) -> None:
    written(folder.parent / "labels.csv", *ROWS)
    data = resolve("photos.csv", root=folder).open()
    assert data.size == 3
    assert [sample.image for sample in resolve("labels.csv", root=folder).open()] == [folder / row[0] for row in ROWS]


def test_the_split_to_test_on_is_taken_unless_another_is_asked_for(folder: Path) -> None:
    rows = [(*row, split) for row, split in zip(ROWS, ("train", "train", "test"), strict=True)]
    written(folder / "photos.csv", *rows, header="image,label,split")
    assert [sample.key for sample in opened("mine/photos.csv")] == ["c.png"]
    train = opened("mine/photos.csv:train")
    assert [sample.key for sample in train] == ["a.png", "deep/b.png"]
    assert train.name == f"{folder.name}/photos.csv:train"
    with pytest.raises(BayesVLMError, match="has no split 'val'; ask for one of those it has: test, train"):
        opened("mine/photos.csv:val")
    rows = [(image, label, split.replace("test", "val")) for image, label, split in rows]
    written(folder / "photos.csv", *rows, header="image,label,split")
    with pytest.raises(BayesVLMError, match="has no split 'test'; ask for one of those it has: train, val"):
        opened("mine/photos.csv")
    written(folder / "photos.csv", *[(*row, "val") for row in ROWS], header="image,label,split")
    assert opened("mine/photos.csv").size == 3, "the only split there is"
    written(folder / "photos.csv", *ROWS)
    with pytest.raises(BayesVLMError, match="has no column 'split', so 'val' chooses nothing"):
        opened("mine/photos.csv:val")


def test_images_without_a_label_are_left_out_and_said(folder: Path) -> None:
    written(folder / "photos.csv", *ROWS[:2], ("c.png", ""))
    data = opened("mine/photos.csv", strict=True)  # they can be read, so strict does not mind
    assert data.size == 2
    assert data.skipped.reasons == {"mine/c.png": "mine/c.png has no label in mine/photos.csv; give it one."}
    assert data.skipped.unlisted == {"mine/c.png"}
    written(folder / "photos.csv", ("a.png", ""), ("c.png", ""))
    with pytest.raises(BayesVLMError, match=r"photos.csv lists 2 images and no label for any of them; fill in"):
        opened("mine/photos.csv")


def test_images_that_are_not_there(folder: Path) -> None:
    written(folder / "photos.csv", *ROWS, ("gone.png", "cat"))
    assert opened("mine/photos.csv").size == 4, "found out when it is read, like any image that cannot be"
    written(folder / "photos.csv", ("gone.png", "cat"), ("away.png", "dog"))
    with pytest.raises(BayesVLMError, match=r"None of the 2 images that mine/photos.csv lists is there, such as gone"):
        opened("mine/photos.csv")


def test_labels_that_are_numbers_want_names(folder: Path) -> None:
    written(folder / "photos.csv", ("a.png", "0"), ("c.png", "1"))
    with pytest.raises(BayesVLMError, match=r"are numbers such as 0, which are no names .* --classes-file FILE"):
        opened("mine/photos.csv")


def test_what_classify_wrote_holds_no_labels(folder: Path) -> None:
    written(folder / "photos.csv", ("a.png", "1", "cat", "0.9", "0.3"), header="image,rank,class,prob,cosine")
    with pytest.raises(BayesVLMError, match=r"was written by `bayesvlm classify`: .* the model says, and no label"):
        opened("mine/photos.csv")
    rows = listed_rows("mine/photos.csv")
    assert rows is not None
    assert [(row.image, row.label) for row in rows] == [("a.png", None)]


def test_a_fingerprint_is_of_contents_labels_and_classes(folder: Path) -> None:
    before = opened("mine/photos.csv").fingerprint()
    assert opened("mine/photos.csv").fingerprint() == before
    moved = shutil.copytree(folder, folder.parent / "moved")
    assert opened(moved / "photos.csv").fingerprint() == before
    written(folder / "photos.csv", ROWS[0], ROWS[1], ("c.png", "cat"))
    other_label = opened("mine/photos.csv").fingerprint()
    written(folder / "photos.csv", ROWS[0], ROWS[1], ("c.png", "owl"))
    other_class = opened("mine/photos.csv").fingerprint()
    written(folder / "photos.csv", *ROWS)
    Image.new("RGB", (8, 8), "blue").save(folder / "a.png")
    assert len({before, other_label, other_class, opened("mine/photos.csv").fingerprint()}) == 4


@pytest.mark.parametrize("name", ["phots.csv", "mine/phots.csv", "mine/phots.parquet:train"])
def test_a_table_that_is_not_there_is_no_set_of_the_hub(folder: Path, name: str) -> None:
    source = resolve(name)
    assert not source.here
    with pytest.raises(BayesVLMError, match=rf"There is no file '{name.partition(':')[0]}', here or in data; check"):
        source.open()


def test_rows_of_what_is_named_as_a_table(folder: Path) -> None:
    rows = listed_rows("mine/photos.csv")
    assert rows is not None
    assert [(row.path, row.label) for row in rows] == [(Path("mine") / image, label) for image, label in ROWS]
    (folder / "table.csv").mkdir()
    for name in ("mine", "mine/a.png", "openmoji-black", "mine/gone.csv", "mine/table.csv", "datasets:photos.csv"):
        assert listed_rows(name) is None


def test_tables_among_paths_of_images(folder: Path) -> None:
    images = [Path("mine") / image for image, _ in ROWS]
    assert with_tables([Path("x.png"), Path("mine/photos.csv"), Path("mine")]) == [
        Path("x.png"),
        *images,
        Path("mine"),
    ]
