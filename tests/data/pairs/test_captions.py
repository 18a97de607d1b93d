"""Files that list captions: COCO's json, Karpathy's, several captions an image, and every broken one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bayesvlm import BayesVLMError
from bayesvlm.data import PairFolder

COCO: dict[str, Any] = {
    "info": {"year": 2014},
    "licenses": [],
    "images": [
        {"id": 7, "file_name": "a.png", "height": 8, "width": 8},
        {"id": 5, "file_name": "b.png"},
        {"id": 6, "file_name": "no-captions.png"},
    ],
    "annotations": [
        {"image_id": 7, "id": 1, "caption": "a, first"},
        {"image_id": 7, "id": 2, "caption": "a, second\n"},
        {"image_id": 5, "id": 3, "caption": "b, first"},
        {"image_id": 7, "id": 4, "caption": "a, third"},
    ],
}
KARPATHY: dict[str, Any] = {
    "dataset": "flickr30k",
    "images": [
        {"filename": "a.png", "split": "train", "sentences": [{"raw": "a, first"}, {"raw": "a, second"}]},
        {"filename": "b.png", "split": "test", "sentences": [{"raw": "b, first"}]},
    ],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "images").mkdir()
    for name in ("a.png", "b.png"):
        Image.new("RGB", (8, 8)).save(tmp_path / "images" / name)
    return tmp_path / "images"


def opened(folder: Path, content: Any, **options: Any) -> PairFolder:
    file = folder.parent / "captions_val2014.json"
    file.write_text(json.dumps(content))
    return PairFolder.open(folder, file, **options)


def listed(pairs: PairFolder, folder: Path) -> list[tuple[str, str]]:
    return [(path.relative_to(folder).as_posix(), text) for path, text in pairs.pairs]


# What is read --------------------------------------------------------------------------------------------------------


def test_every_caption_of_coco_is_a_pair_and_first_captions_come_first(folder: Path) -> None:
    pairs = opened(folder, COCO, batch_size=3, strict=True)
    assert listed(pairs, folder) == [
        ("a.png", "a, first"),
        ("b.png", "b, first"),
        ("a.png", "a, second"),
        ("a.png", "a, third"),
    ]
    assert pairs.size == len(pairs) == 4
    assert [texts for _, texts in pairs] == [["a, first", "b, first", "a, second"], ["a, third"]]


@pytest.mark.parametrize(("most", "expected"), [(1, ["a, first", "b, first"]), (9, None)])
def test_so_many_captions_an_image(folder: Path, most: int, expected: list[str] | None) -> None:
    found = [text for _, text in opened(folder, COCO, captions_per_image=most).pairs]
    assert found == (expected or [text for _, text in opened(folder, COCO).pairs])


def test_a_table_with_several_captions_an_image(folder: Path) -> None:
    table = folder / "captions.csv"
    table.write_text("image,caption\na.png,a1\na.png,a2\nb.png,b1\nb.png,b2\n")
    assert [text for _, text in PairFolder.open(folder).pairs] == ["a1", "b1", "a2", "b2"]
    assert [text for _, text in PairFolder.open(folder, captions_per_image=1).pairs] == ["a1", "b1"]
    with pytest.raises(BayesVLMError, match="captions_per_image is 0; expected a whole number of at least 1"):
        PairFolder.open(folder, captions_per_image=0)


def test_a_split_of_karpathy(folder: Path) -> None:
    assert listed(opened(folder, KARPATHY), folder) == [
        ("a.png", "a, first"),
        ("b.png", "b, first"),
        ("a.png", "a, second"),
    ]
    assert listed(opened(folder, KARPATHY, split="test"), folder) == [("b.png", "b, first")]


def test_karpathys_coco_names_the_folder_of_the_image(folder: Path) -> None:
    image = {"filename": "a.png", "filepath": "val2014", "split": "val", "sentences": [{"raw": "words"}]}
    assert listed(opened(folder, {"images": [image]}), folder) == [("a.png", "words")], "the folder is val2014 itself"
    (folder / "val2014").mkdir()
    assert listed(opened(folder, {"images": [image]}), folder) == [("val2014/a.png", "words")]


def test_captions_json_in_the_folder_is_found(folder: Path) -> None:
    (folder / "captions.json").write_text("\ufeff" + json.dumps(COCO), encoding="utf-8")
    assert len(PairFolder.open(folder)) == 4


def test_columns_by_name(folder: Path) -> None:
    (folder / "captions.tsv").write_text("image\timage_fr\tcaption\tcaption_fr\na.png\tb.png\tdog\tchien\n")
    assert listed(PairFolder.open(folder, text_column="caption_fr"), folder) == [("a.png", "chien")]
    assert listed(PairFolder.open(folder, image_column="image_fr"), folder) == [("b.png", "dog")]
    with pytest.raises(BayesVLMError, match="has no column 'légende'; it has 'image', 'image_fr', 'caption'"):
        PairFolder.open(folder, text_column="légende")


# What is skipped -----------------------------------------------------------------------------------------------------


def test_missing_images_and_blank_captions_are_skipped_counted_and_named(folder: Path) -> None:
    content = {**COCO, "annotations": [*COCO["annotations"], {"image_id": 6, "caption": "gone"}]}
    content["annotations"][:0] = [{"image_id": 5, "caption": " \n"}, {"image_id": 5, "caption": None}]
    pairs = opened(folder, content)
    assert [text for _, texts in pairs for text in texts] == ["a, first", "b, first", "a, second", "a, third"]
    assert len(pairs.skipped) == 3
    assert "captions_val2014.json, annotation 1, of b.png, has a blank caption" in str(pairs.skipped)
    assert "no-captions.png') does not exist" in str(pairs.skipped)
    with pytest.raises(BayesVLMError, match="blank caption"):
        opened(folder, content, strict=True)


# What is not ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ([], "holds a list; expected COCO's captions"),
        ("words", "holds a str; expected COCO's captions"),
        ({}, "has nothing but no list of objects called 'images'; expected COCO's captions"),
        ({"data": 1}, "has 'data' but no list of objects called 'images'"),
        ({"images": {"a.png": "words"}}, "no list of objects called 'images'"),
        ({"images": ["a.png"]}, "no list of objects called 'images'"),
        ({"images": []}, "lists no pairs"),
        ({"images": [], "annotations": []}, "lists no pairs"),
        ({**COCO, "annotations": 3}, "no list of objects called 'annotations'"),
        ({"images": [{"id": 1}], "annotations": []}, "image 1: 'file_name' must be text, got None"),
        ({**COCO, "annotations": [{"image_id": 8, "caption": "x"}]}, "annotation 1: image_id is 8, which is the id of"),
        ({**COCO, "annotations": [{"image_id": [7], "caption": "x"}]}, r"image_id is \[7\]"),
        ({**COCO, "annotations": [{"caption": "x"}]}, "image_id is None"),
        ({**COCO, "annotations": [{"image_id": 7, "bbox": []}]}, "annotation 1: 'caption' must be text, got None"),
        ({**COCO, "annotations": [{"image_id": 7, "caption": 4}]}, "annotation 1: 'caption' must be text, got 4"),
        ({"images": [{"file_name": "a.png"}]}, "image 1: 'filename' must be text, got None"),
        ({"images": [{"filename": "a.png", "filepath": 1}]}, "image 1: 'filepath' must be text, got 1"),
        ({"images": [{"filename": "a.png"}]}, "image 1 has 'filename' but no list of objects called 'sentences'"),
        ({"images": [{"filename": "a.png", "sentences": ["x"]}]}, "no list of objects called 'sentences'"),
        (
            {"images": [{"filename": "a.png", "sentences": [{"raw": "x"}, {"tokens": ["x"]}]}]},
            "image 1, sentence 2: 'raw' must be text, got None",
        ),
    ],
)
def test_json_of_another_layout_gets_a_sentence(folder: Path, content: Any, sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        opened(folder, content)


def test_splits_that_are_not_there(folder: Path) -> None:
    with pytest.raises(BayesVLMError, match="has no split 'val'; it has test, train"):
        opened(folder, KARPATHY, split="val")
    with pytest.raises(BayesVLMError, match="is a file of COCO captions, where split='val' chooses nothing"):
        opened(folder, COCO, split="val")
    with pytest.raises(BayesVLMError, match="is json, where text_column='raw' chooses nothing"):
        opened(folder, KARPATHY, text_column="raw")
    (folder / "captions.csv").write_text("image,caption\na.png,words\n")
    with pytest.raises(BayesVLMError, match="is a table, where split='val' chooses nothing"):
        PairFolder.open(folder, split="val")


def test_json_that_cannot_be_read(folder: Path) -> None:
    file = folder / "captions.json"
    file.write_text('{"images": [')
    with pytest.raises(BayesVLMError, match=r"captions\.json is not json"):
        PairFolder.open(folder)
    file.write_bytes(b'{"images": "caf\xe9"}')
    with pytest.raises(BayesVLMError, match=r"captions\.json is not UTF-8"):
        PairFolder.open(folder)
