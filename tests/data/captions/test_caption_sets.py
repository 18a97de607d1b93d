"""Caption sets in the layouts they are published in, the world's names, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bayesvlm import BayesVLMError, world
from bayesvlm.data import CaptionSet, resolve

COCO: dict[str, Any] = {
    "images": [{"id": 7, "file_name": "a.png"}, {"id": 5, "file_name": "b.png"}, {"id": 6, "file_name": "c.png"}],
    "annotations": [
        {"image_id": 7, "id": 1, "caption": "a cat"},
        {"image_id": 7, "id": 2, "caption": "an animal\n"},
        {"image_id": 5, "id": 3, "caption": "a dog"},
        {"image_id": 5, "id": 4, "caption": "an animal"},
        {"image_id": 6, "id": 5, "caption": "a house"},
    ],
}
TEXTS = {"a cat": ["a.png"], "an animal": ["a.png", "b.png"], "a dog": ["b.png"], "a house": ["c.png"]}
KARPATHY: dict[str, Any] = {
    "dataset": "coco",
    "images": [
        {
            "filename": f"{name}.png",
            "filepath": "val2014",
            "split": split,
            "sentences": [{"raw": f"{name}, first"}, {"raw": f"{name}, second "}],
        }
        for name, split in (("a", "test"), ("b", "test"), ("c", "train"))
    ],
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("BAYESVLM_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pictures(folder: Path, names: str = "abc") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        Image.new("RGB", (8, 8), (ord(name), 0, 0)).save(folder / f"{name}.png")
    return folder


def written(file: Path, content: Any) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return file


def opened(name: str | Path, **options: Any) -> CaptionSet:
    source = resolve(name, kind="captions")
    assert source.here, source.note
    return source.open(**options)


def asked(found: CaptionSet) -> dict[str, list[str]]:
    """Each text with the images it asks for; every image is there under its name."""
    assert [path.exists() for path in found.images if isinstance(path, Path)] == [True] * len(found.ids)
    return {
        text: [found.ids[row] for row in rows] for text, rows in zip(found.texts, found.relevant.lists(), strict=True)
    }


# What is read ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["coco", "coco:val2017", "coco/annotations/captions_val2017.json", "annotations"])
def test_coco(here: Path, name: str) -> None:
    pictures(here / "coco/val2017")
    written(here / "coco/annotations/captions_val2017.json", COCO)
    written(here / "coco/annotations/captions_train2017.json", {**COCO, "annotations": []})
    found = opened(here / "coco/annotations" if name == "annotations" else name)
    assert asked(found) == TEXTS
    assert len(found) == 4


def test_karpathys_splits(here: Path) -> None:
    pictures(here / "data/coco/val2014")
    written(here / "data/coco/dataset_coco.json", KARPATHY)
    test = opened("coco")
    assert asked(test) == {f"{name}, {which}": [f"{name}.png"] for name in "ab" for which in ("first", "second")}
    with pytest.raises(BayesVLMError, match="2 texts and 1 images"):
        opened("coco:train")
    with pytest.raises(BayesVLMError, match="no split 'dev'; it has test, train"):
        opened("coco:dev")


def test_karpathys_flickr_has_its_images_in_a_folder_of_their_own(here: Path) -> None:
    content = {"images": [{k: v for k, v in image.items() if k != "filepath"} for image in KARPATHY["images"]]}
    pictures(here / "flickr30k/flickr30k-images")
    file = written(here / "flickr30k/dataset_flickr30k.json", content)
    assert asked(opened(file)) == asked(opened("flickr30k"))


def test_flickrs_lists(here: Path) -> None:
    token = "a.png#0\ta cat\r\na.png#1\tan animal\nb.png#0\ta dog\nb.png#1\tan animal\nc.png#0\ta house\n\n"
    barred = (
        "image_name| comment_number| comment\na.png| 0| a cat\na.png| 1| an animal \nb.png| 0| a dog\n"
        "b.png| 4   an animal\nc.png| 1| a house\n"
    )
    table = 'image,caption\na.png,a cat\na.png,"an animal"\nb.png,a dog\nb.png,an animal\nc.png,a house\n'
    for name, content in (
        ("results_20130124.token", token),
        ("results.csv", barred),
        ("Flickr8k.token.txt", token),
        ("captions.txt", table),
    ):
        folder = here / name.replace(".", "-")
        pictures(folder / "flickr30k_images/flickr30k_images")
        file = written(folder / name, content)
        assert asked(opened(folder)) == asked(opened(file)) == TEXTS, name


@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl"])
def test_tables(here: Path, suffix: str) -> None:
    rows = [
        ("a.png", "a cat"),
        ("a.png", "an animal"),
        ("b.png", "a dog"),
        ("b.png", "an animal"),
        ("c.png", "a house"),
    ]
    if suffix == "jsonl":
        content = "\n".join(json.dumps({"image": image, "caption": text}) for image, text in rows)
    else:
        mark = "," if suffix == "csv" else "\t"
        content = "\n".join(mark.join(row) for row in [("image", "caption"), *rows])
    pictures(here / "photos")
    assert asked(opened(written(here / f"photos/captions.{suffix}", content))) == TEXTS
    assert asked(opened("photos")) == TEXTS
    file = written(here / f"photos/other.{suffix}", content.replace("caption", "says"))
    assert asked(opened(file, text_column="says")) == TEXTS
    moved = written(here / f"elsewhere/list.{suffix}", content)
    assert asked(resolve(moved, kind="captions", root=here / "photos").open()) == TEXTS


def test_a_text_file_beside_each_image(here: Path) -> None:
    pictures(here / "photos")
    for name, text in (("a", "an animal"), ("b", "an animal"), ("c", "a house")):
        written(here / f"photos/{name}.txt", text)
    assert asked(opened("photos")) == {"an animal": ["a.png", "b.png"], "a house": ["c.png"]}


def test_names_of_the_world_ask_for_their_drawings() -> None:
    black, colour = world.load("openmoji-black"), world.load("emojione-colour")
    found = opened("openmoji-black+emojione-colour")
    assert len(found.images) == len(black) + len(colour)
    rows = dict(zip(found.texts, found.relevant.lists(), strict=True))["rabbit"]
    assert [found.ids[row] for row in rows] == ["openmoji-black_1f407", "emojione-colour_1f407"]
    assert found.images[rows[1]] == colour.images[colour.keys.index("emojione-colour_1f407")]
    assert repr(found) == "CaptionSet('openmoji-black+emojione-colour': 1531 texts, 2546 images)"
    flags = opened("flags")
    assert set(flags.relevant.counts.tolist()) == {1, 2}


def test_another_text_or_image_is_another_set(here: Path) -> None:
    pictures(here / "photos")
    file = written(here / "photos/captions.csv", "image,caption\na.png,x\nb.png,y\n")
    before = opened("photos").fingerprint()
    assert opened(file).fingerprint() == before
    written(file, "image,caption\na.png,x\nb.png,z\n")
    after = opened("photos").fingerprint()
    pictures(here / "photos", "a").joinpath("a.png").write_bytes((here / "photos/c.png").read_bytes())
    assert len({before, after, opened("photos").fingerprint()}) == 3


def test_a_missing_image_and_a_blank_caption_are_left_out(here: Path) -> None:
    pictures(here / "photos", "ab")
    written(here / "photos/captions.csv", "image,caption\na.png,x\nb.png,y\nc.png,z\na.png,\n")
    found = opened("photos")
    (part,) = found.parts
    assert "entry 4: the column 'caption' is empty" in str(part.skipped)
    assert found.ids == ("a.png", "b.png", "c.png")  # what cannot be read is found when it is read
    with pytest.raises(BayesVLMError, match="entry 4"):
        opened("photos", strict=True)


# What is refused ------------------------------------------------------------------------------------------------------


def test_what_stands_for_nothing(here: Path) -> None:
    for name, sentence in (
        ("nowhere", "There is no caption set 'nowhere': it is no split"),
        ("openmoji-blak", "did you mean 'openmoji-black'?"),
        ("https://example.org/coco.zip", "is an address"),
        ("openmoji-black:test", "has no splits itself"),
    ):
        source = resolve(name, kind="captions")
        assert not source.here
        assert sentence in source.note
        with pytest.raises(BayesVLMError, match=r"caption|address|split"):
            source.open()
    written(here / "photo.jpg", "")
    assert "is no caption file" in resolve("photo.jpg", kind="captions").note


@pytest.mark.parametrize(
    ("file", "content", "sentence"),
    [
        ("captions.json", "{", "is not json"),
        ("captions.json", {"photos": []}, "no list of objects called 'images'"),
        ("captions.csv", "image,caption\nx.png,x\ny.png,y\n", "None of the first 2 of 2 images"),
        ("captions.csv", "image,caption\na.png,x\n", "has 1 texts and 1 images"),
        ("captions.csv", "picture,words\na.png,x\n", "one of them must be called image"),
        ("results_20130124.token", "a cat\n", r"begins with 'a cat'"),
        ("results_20130124.token", "a.png#0\tx\nb.png y\n", r"line 2 is 'b\.png y'; expected IMAGE#NUMBER"),
        ("results.csv", "image_name| comment_number| comment\nb.png, y\n", r"line 2 is 'b\.png, y'; expected IMAGE\|"),
        ("captions.txt", "hello\n", "begins with 'hello'"),
    ],
)
def test_bad_files(here: Path, file: str, content: Any, sentence: str) -> None:
    pictures(here / "photos")
    written(here / "photos" / file, content)
    with pytest.raises(BayesVLMError, match=sentence):
        opened("photos")


def test_choices_that_choose_nothing(here: Path) -> None:
    with pytest.raises(BayesVLMError, match="image_column='x' chooses nothing"):
        opened("openmoji-black", image_column="x")
    pictures(here / "photos")
    written(here / "photos/results_20130124.token", "a.png#0\tx\nb.png#0\ty\n")
    with pytest.raises(BayesVLMError, match="split='val' chooses nothing"):
        opened("photos:val")
    written(here / "photos/captions.csv", "image,caption\na.png,x\nb.png,y\n")
    written(here / "photos/captions.tsv", "")
    with pytest.raises(BayesVLMError, match=r"several caption files \(captions\.csv, captions\.tsv\)"):
        opened("photos")


def test_several_splits_of_coco(here: Path) -> None:
    for split in ("train2014", "test2014"):
        written(here / f"coco/captions_{split}.json", COCO)
    with pytest.raises(BayesVLMError, match="ask for one of test2014, train2014, as in coco:test2014"):
        opened("coco")
    with pytest.raises(BayesVLMError, match="no captions of the split 'val2017'; it has test2014, train2014"):
        opened("coco:val2017")
