"""Folders of captioned images, in every layout and every broken one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

from bayesvlm import BayesVLMError
from bayesvlm.data import ImageFolder, PairFolder, find_images


def pictures(folder: Path, names: list[str]) -> None:
    for index, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (20 * index, 0, 0)).save(folder / name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    pictures(tmp_path, ["a.png", "b.jpg", "deep/c.webp"])
    return tmp_path


EXPECTED = [("a.png", "first, with comma"), ("b.jpg", "second"), ("deep/c.webp", "third")]


def listed(pairs: PairFolder, folder: Path) -> list[tuple[str, str]]:
    return [(str(path.relative_to(folder)), text) for path, text in pairs.pairs]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("captions.csv", 'image,caption\na.png,"first, with comma"\nb.jpg,second\ndeep/c.webp,third\n'),
        ("captions.csv", '\ufeffcaption,file_name\n"first, with comma",a.png\nsecond,b.jpg\nthird,deep/c.webp\n'),
        ("captions.tsv", "filepath\ttitle\na.png\tfirst, with comma\nb.jpg\tsecond\ndeep/c.webp\tthird\n"),
        ("captions.csv", 'image;caption\na.png;first, with comma\nb.jpg;"second"\ndeep/c.webp;third\n'),
        ("captions.csv", 'image\tcaption\na.png\t"first, with comma"\nb.jpg\tsecond\ndeep/c.webp\tthird\n'),
        ("captions.jsonl", "\n".join(json.dumps({"image": i, "text": t, "width": 8}) for i, t in EXPECTED) + "\n\n"),
    ],
)
def test_a_captions_file_is_found_and_read(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content, encoding="utf-8")
    assert listed(PairFolder.open(folder), folder) == EXPECTED


def test_a_quoted_caption_may_span_lines(folder: Path) -> None:
    (folder / "captions.csv").write_text('image,caption\na.png,"two\nlines"\n')
    assert listed(PairFolder.open(folder), folder) == [("a.png", "two\nlines")]


def test_a_quote_in_a_tsv_is_a_character(folder: Path) -> None:
    (folder / "captions.tsv").write_text('image\tcaption\na.png\t"c\nb.jpg\tsecond\n')
    assert listed(PairFolder.open(folder), folder) == [("a.png", '"c'), ("b.jpg", "second")]


def test_text_files_beside_the_images(folder: Path) -> None:
    for name, text in EXPECTED:
        (folder / name).with_suffix(".txt").write_text(text + "\n")
    assert listed(PairFolder.open(folder), folder) == EXPECTED


def test_batches_decode_and_skip_what_cannot_be_read(folder: Path) -> None:
    (folder / "b.jpg").write_bytes((folder / "b.jpg").read_bytes()[:200])
    (folder / "captions.csv").write_text("image,caption\na.png,1\nb.jpg,2\ngone.png,3\ndeep/c.webp,4\n")
    pairs = PairFolder.open(folder, batch_size=2)
    batches = list(pairs)
    assert [texts for _, texts in batches] == [["1"], ["4"]]
    assert all(image.mode == "RGB" for images, _ in batches for image in images)
    assert len(pairs.skipped) == 2
    assert "b.jpg" in str(pairs.skipped)
    assert "gone.png" in str(pairs.skipped)
    with pytest.raises(BayesVLMError, match=r"b\.jpg"):
        list(PairFolder.open(folder, strict=True))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("captions.csv", "image,caption\na.png,1\nb.jpg,\n,words\nb.jpg\ndeep/c.webp,4\n"),
        ("captions.tsv", "image\tcaption\na.png\t1\nb.jpg\t \n\twords\nb.jpg\ndeep/c.webp\t4\n"),
        (
            "captions.jsonl",
            '{"image": "a.png", "caption": "1"}\n{"image": "b.jpg", "caption": null}\n{"image": "", "caption": "x"}\n'
            '{"image": "b.jpg"}\n{"image": "deep/c.webp", "caption": "4"}\n',
        ),
    ],
)
def test_entries_without_a_caption_or_an_image_are_skipped_counted_and_named(
    folder: Path, name: str, content: str
) -> None:
    (folder / name).write_text(content)
    pairs = PairFolder.open(folder)
    assert [texts for _, texts in pairs] == [["1", "4"]]
    assert list(pairs.skipped.reasons) == [f"{folder / name}, entry {number}" for number in (2, 3, 4)]
    assert "entry 2: the column 'caption' is empty" in str(pairs.skipped)
    assert "entry 3: the column 'image' is empty" in str(pairs.skipped)
    with pytest.raises(BayesVLMError, match="entry 2: the column 'caption' is empty"):
        PairFolder.open(folder, strict=True)


def test_images_without_a_caption_beside_them_are_skipped_counted_and_named(folder: Path) -> None:
    pictures(folder, ["d.png"])
    (folder / "a.txt").write_text("first")
    (folder / "b.txt").write_text(" \n")
    (folder / "d.txt").write_bytes(b"caf\xe9")
    pairs = PairFolder.open(folder)
    assert listed(pairs, folder) == [("a.png", "first")]
    assert sorted(pairs.skipped.reasons) == sorted(str(folder / name) for name in ("b.jpg", "d.png", "deep/c.webp"))
    for sentence in ("b.txt beside it is empty", "c.webp has no caption; write one into c.txt", "d.txt is not UTF-8"):
        assert sentence in str(pairs.skipped)
    with pytest.raises(BayesVLMError, match=r"b\.jpg has no caption"):
        PairFolder.open(folder, strict=True)


def test_the_fingerprint_knows_the_captions_and_the_files(folder: Path) -> None:
    (folder / "captions.csv").write_text("image,caption\na.png,1\nb.jpg,2\n")
    first = PairFolder.open(folder).fingerprint()
    assert PairFolder.open(folder, batch_size=1).fingerprint() == first
    (folder / "captions.csv").write_text("image,caption\na.png,1\nb.jpg,3\n")
    assert PairFolder.open(folder).fingerprint() != first


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("captions.csv", "", "lists no pairs"),
        ("captions.csv", "image,caption\n", "lists no pairs"),
        ("captions.csv", "image,words\na.png,hello\n", "columns 'image', 'words'; one of them must be called caption"),
        ("captions.csv", "image,caption\na.png\n", "lists no pairs .1 without an image or a caption"),
        ("captions.csv", "image,caption\na.png,first, with comma\n", "more fields .* with a comma in double quotes"),
        ("captions.csv", "image;caption\na.png;one; two\n", "more fields than .* with a semicolon in double quotes"),
        ("captions.tsv", "image\tcaption\na.png\tone\ttwo\n", "more fields than .*; remove its tabs"),
        ("captions.jsonl", '{"image": "a.png"', "line 1 is not json"),
        ("captions.jsonl", "[1]\n", "line 1 is a list"),
        ("captions.jsonl", '{"image": "a.png", "caption": 3}\n', "'caption' must be text, got 3; put it in quotes"),
    ],
)
def test_broken_captions_get_a_sentence(folder: Path, name: str, content: str, sentence: str) -> None:
    (folder / name).write_text(content)
    with pytest.raises(BayesVLMError, match=sentence):
        PairFolder.open(folder)


def test_folders_that_cannot_be_fitted_on(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    empty = tmp_path_factory.mktemp("empty")
    with pytest.raises(BayesVLMError, match="holds no images"):
        PairFolder.open(empty)
    with pytest.raises(BayesVLMError, match="is not a folder"):
        PairFolder.open(empty / "gone")
    with pytest.raises(BayesVLMError, match="3 images but no captions"):
        PairFolder.open(folder)
    (folder / "a.txt").write_text("only this one")
    for name in ("a.txt", "b.txt", "deep/c.txt"):
        (folder / name).write_text(" \n")
    with pytest.raises(BayesVLMError, match=r"None of the 3 .* .* has a caption: .* a\.txt beside it is empty"):
        PairFolder.open(folder)
    with pytest.raises(BayesVLMError, match="does not exist"):
        PairFolder.open(folder, folder / "gone.csv")
    with pytest.raises(BayesVLMError, match="use csv, tsv or jsonl"):
        PairFolder.open(folder, folder / "a.txt")
    (folder / "captions.csv").write_bytes(b"image,caption\na.png,caf\xe9\n")
    with pytest.raises(BayesVLMError, match="not UTF-8"):
        PairFolder.open(folder)
    (folder / "captions.tsv").write_text("image\tcaption\n")
    with pytest.raises(BayesVLMError, match=r"several captions files \(captions.csv, captions.tsv\)"):
        PairFolder.open(folder)


def test_hidden_files_are_not_images(folder: Path) -> None:
    pictures(folder, [".hidden.png", ".cache/d.png"])
    assert [path.name for path in find_images(folder)] == ["a.png", "b.jpg", "c.webp"]


def test_labelled_images_lie_in_class_folders(tmp_path: Path) -> None:
    pictures(tmp_path, ["zebra/1.png", "polar_bear/1.png", "polar_bear/2.png"])
    images = ImageFolder.open(tmp_path)
    assert images.classes == ("polar bear", "zebra")
    assert images.labels == (0, 0, 1)
    (tmp_path / "unicorn").mkdir()
    with pytest.raises(BayesVLMError, match="'unicorn' holds no images"):
        ImageFolder.open(tmp_path)
    with pytest.raises(BayesVLMError, match="no subfolder with images"):
        ImageFolder.open(tmp_path / "unicorn")
    with pytest.raises(BayesVLMError, match="is not a folder"):
        ImageFolder.open(tmp_path / "gone")
