"""Tables of images and labels, and Label Studio's exports, as rows."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from bayesvlm.core.errors import BayesVLMError, BayesVLMWarning
from bayesvlm.data.labelled.label_files import LabelRow, read_labels


def written(folder: Path, name: str, content: str | bytes) -> Path:
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def labels(rows: list[LabelRow]) -> list[tuple[str, str | None]]:
    return [(row.image, row.label) for row in rows]


TWO = [("a.png", "cat"), ("b.png", "dog")]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", "image,label\na.png,cat\nb.png,dog\n"),
        ("t.csv", b"\xef\xbb\xbfimage,label\r\na.png,cat\r\nb.png,dog\r\n"),  # as Excel saves it
        ("t.csv", "path;class\na.png;cat\nb.png;dog\n"),
        ("t.csv", ",filename,category\n0,a.png,cat\n1,b.png,dog\n"),  # as pandas writes it, with its index
        ("t.csv", 'Image , LABEL\n"a.png",cat \nb.png, dog\n,\n'),  # and a blank line of a spreadsheet
        ("t.csv", "target\timg\ncat\ta.png\ndog\tb.png\n"),
        ("t.tsv", "file\tlabel\na.png\tcat\nb.png\tdog\n"),
        ("t.tsv", '"image"\t"choice"\n"a.png"\t"cat"\n"b.png"\t"dog"\n'),  # as Label Studio writes it
        ("t.jsonl", '{"image": "a.png", "label": "cat"}\n\n{"image": "b.png", "label": "dog"}\n'),
        ("t.json", '[{"image": "a.png", "choice": "cat", "id": 1}, {"image": "b.png", "choice": "dog", "id": 2}]'),
        # rank, score and strategy are what `bayesvlm select` gave the tasks
        (
            "t.csv",
            'id,image,label,rank,score,strategy\n7,"a.png","cat",1,0.5,"epig"\n8,b.png,dog,2,,epig\n',
        ),
    ],
)
def test_a_table_in_each_of_its_forms(tmp_path: Path, name: str, content: str | bytes) -> None:
    rows = read_labels(written(tmp_path, name, content))
    assert labels(rows) == TWO
    assert [row.path for row in rows] == [tmp_path / "a.png", tmp_path / "b.png"]


def test_a_parquet_table(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"image": ["a.png", "b.png", "c.png"], "label": ["cat", "dog", None], "other": [1, 2, 3]})
    frame["label"] = frame["label"].astype("category")
    frame.to_parquet(tmp_path / "t.parquet")
    assert labels(read_labels(tmp_path / "t.parquet")) == [*TWO, ("c.png", None)]
    frame["label"] = [0, 1, None]  # a gap makes floats of whole numbers
    frame.to_parquet(tmp_path / "t.parquet")
    assert labels(read_labels(tmp_path / "t.parquet")) == [("a.png", "0"), ("b.png", "1"), ("c.png", None)]
    frame["image"] = [{"bytes": b"", "path": "a.png"}] * 3  # as the package datasets writes it
    frame.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(BayesVLMError, match=r"holds the image itself and not its path; .* datasets: before it"):
        read_labels(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (("0.0", "", "11.0"), ["0", None, "11"]),  # what pandas writes of integers with a gap
        (("0", "2.00", "1"), ["0", "2", "1"]),
        (("1.0", "2.5", "3.0"), ["1.0", "2.5", "3.0"]),
        (("1.0", "cat", "2.0"), ["1.0", "cat", "2.0"]),
    ],
)
def test_whole_numbers_of_a_csv_have_no_point(tmp_path: Path, column: tuple[str, ...], expected: list[str]) -> None:
    rows = "".join(
        f"{name}.png,{label},{'test' if name == 'a' else 'train'}\n" for name, label in zip("abc", column, strict=True)
    )
    file = written(tmp_path, "t.csv", f"image,label,split\n{rows}")
    assert [row.label for row in read_labels(file)] == expected
    assert [row.label for row in read_labels(file, split="test")] == expected[:1], "the column decides, in every split"


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(BayesVLMError, match=r"t.parquet is read with pyarrow, .* 'bayesvlm\[parquet\]'"):
        read_labels(written(tmp_path, "t.parquet", b"PAR1"))


# Label Studio ---------------------------------------------------------------------------------------------------------


def choices(*labels: str, name: str = "label", **about: Any) -> dict[str, Any]:
    """An annotation."""
    result = {"from_name": name, "to_name": "image", "type": "choices", "value": {"choices": list(labels)}}
    return {"result": [result], "was_cancelled": False, "ground_truth": False, **about}


def task(image: str, *annotations: dict[str, Any]) -> dict[str, Any]:
    prediction = {"model_version": "bayesvlm", "result": choices("horse")["result"]}
    return {"id": 1, "data": {"image": image, "rank": 1}, "annotations": list(annotations), "predictions": [prediction]}


def exported(folder: Path, *tasks: dict[str, Any]) -> Path:
    return written(folder, "export.json", json.dumps(tasks))


def test_tasks_come_back_labelled(tmp_path: Path) -> None:
    file = exported(
        tmp_path,
        task("a.png", choices("cat"), choices("cat", completed_by=2)),  # two who agree
        task("b.png", choices("cat", was_cancelled=True), choices("dog")),
        task("c.png"),  # what the model said is no label
        task("d.png", choices("cat", was_cancelled=True)),
        task("e.png", choices("cat"), choices("cow", ground_truth=True)),
    )
    assert labels(read_labels(file)) == [*TWO, ("c.png", None), ("d.png", None), ("e.png", "cow")]


def test_tasks_that_nobody_has_labelled_have_no_labels(tmp_path: Path) -> None:
    assert labels(read_labels(exported(tmp_path, task("a.png"), task("b.png")))) == [("a.png", None), ("b.png", None)]


def test_of_several_questions_the_one_called_label_counts(tmp_path: Path) -> None:
    both = choices("cat")
    both["result"] += choices("blurred", name="quality")["result"]
    assert labels(read_labels(exported(tmp_path, task("a.png", both)))) == [("a.png", "cat")]
    alone = choices("cat", name="animal")
    assert labels(read_labels(exported(tmp_path, task("a.png", alone)))) == [("a.png", "cat")]
    alone["result"] += choices("blurred", name="quality")["result"]
    with pytest.raises(BayesVLMError, match=r"has choices called 'animal', 'quality'; call the one .* 'label'"):
        read_labels(exported(tmp_path, task("a.png", alone)))


def test_several_choices_of_one_annotation_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BayesVLMError, match=r"entry 1 \(a.png\) has 2 labels \(cat, dog\); an image has one"):
        read_labels(exported(tmp_path, task("a.png", choices("cat", "dog"))))
    file = written(tmp_path, "t.csv", 'image,choice\na.png,"{""choices"": [""cat"", ""dog""]}"\n')
    with pytest.raises(BayesVLMError, match="has 2 labels"):
        read_labels(file)


def test_skipped_annotations_of_its_csv_give_no_label(tmp_path: Path) -> None:
    file = written(tmp_path, "t.csv", "image,label,was_cancelled\na.png,cat,False\nb.png,dog,True\n")
    assert labels(read_labels(file)) == [("a.png", "cat"), ("b.png", None)]


@pytest.mark.parametrize(
    ("image", "inside"),
    [
        ("/data/local-files/?d=photos/a%20cat.png", "photos/a cat.png"),
        ("http://localhost:8080/data/local-files/?d=photos/a+cat.png", "photos/a cat.png"),
        ("/data/upload/12/0a1b2c3d-cat.png", "cat.png"),
        ("/data/upload/12/0a1b2c3d-dog.png", "0a1b2c3d-dog.png"),
        ("photos\\a cat.png", "photos/a cat.png"),
    ],
)
def test_images_are_found_by_the_addresses_of_label_studio(tmp_path: Path, image: str, inside: str) -> None:
    (tmp_path / "photos").mkdir()
    for name in ("photos/a cat.png", "cat.png", "0a1b2c3d-dog.png"):
        (tmp_path / name).touch()
    (row,) = read_labels(exported(tmp_path, task(image, choices("cat"))))
    assert (row.image, row.path) == (image, tmp_path / inside)


def test_local_files_below_the_root_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "a.png").touch()
    (tmp_path / "elsewhere").mkdir()
    image = f"/data/local-files/?d={str(tmp_path)[1:]}/a.png"
    (row,) = read_labels(exported(tmp_path / "elsewhere", task(image, choices("cat"))))
    assert row.path == tmp_path / "a.png"


# Where images are, and which rows count -------------------------------------------------------------------------------


def test_paths_are_looked_for_beside_the_file_then_below_the_root_then_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {name: tmp_path / name for name in ("beside", "root", "here")}
    for place in places.values():
        place.mkdir()
    monkeypatch.chdir(places["here"])
    content = f"image,label\na.png,cat\n{tmp_path / 'absolute.png'},dog\n"
    file = written(places["beside"], "t.csv", content)

    def found() -> Path:
        return read_labels(file, root=places["root"])[0].path.resolve()

    assert found() == places["beside"] / "a.png"  # it is nowhere
    for name in ("here", "root", "beside"):
        (places[name] / "a.png").touch()
        assert found() == places[name] / "a.png"
    assert read_labels(file)[1].path == tmp_path / "absolute.png"


def test_an_image_listed_twice_counts_once(tmp_path: Path) -> None:
    file = written(tmp_path, "t.csv", "image,label\na.png,cat\n./a.png,cat\nb.png,\nb.png,dog\n")
    assert labels(read_labels(file)) == TWO


def test_labels_that_disagree(tmp_path: Path) -> None:
    file = written(tmp_path, "t.csv", "image,label\na.png,cat\na.png,dog\n")
    with pytest.raises(BayesVLMError, match=r"gives a.png the labels 'cat' \(1x\) and 'dog' \(1x\), .* decide on one"):
        read_labels(file)
    written(tmp_path, "t.csv", "image,label\na.png,cat\na.png,dog\na.png,dog\n")
    with pytest.warns(BayesVLMWarning, match="gives 1 of 1 images several labels, such as a.png"):
        assert labels(read_labels(file)) == [("a.png", "dog")]
    written(tmp_path, "t.csv", "image,label\na.png,cat\na.png,dog\na.png,dog\na.png,cow\n")  # half is no majority
    with pytest.raises(BayesVLMError, match="none of them a majority"):
        read_labels(file)


def test_the_rows_of_a_split(tmp_path: Path) -> None:
    file = written(tmp_path, "t.csv", "image,label,split\na.png,cat,train\nb.png,dog,test\n")
    assert labels(read_labels(file, split="test")) == [("b.png", "dog")]
    assert labels(read_labels(file)) == TWO
    with pytest.raises(BayesVLMError, match="has no split 'val'; ask for one of those it has: test, train"):
        read_labels(file, split="val")
    with pytest.raises(BayesVLMError, match="has no column 'split', so 'test' chooses nothing"):
        read_labels(written(tmp_path, "u.csv", "image,label\na.png,cat\n"), split="test")


def test_a_list_of_images_needs_no_labels_where_none_are_asked_for(tmp_path: Path) -> None:
    file = written(tmp_path, "t.csv", "image\na.png\nb.png\n")
    assert labels(read_labels(file, labels_needed=False)) == [("a.png", None), ("b.png", None)]
    with pytest.raises(BayesVLMError, match="has the columns 'image'; one of them must be called label or class"):
        read_labels(file)
    written(tmp_path, "t.csv", 'image,label\na.png,cat\na.png,dog\nb.png,"[""cat"", ""dog""]"\nc.png,cow\n')
    assert labels(read_labels(file, labels_needed=False)) == [("a.png", None), ("b.png", None), ("c.png", "cow")]


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("t.csv", "", "t.csv lists no images; expected a header such as image,label"),
        ("t.csv", "image,label\n", "lists no images"),
        ("t.csv", "image,label\n,\n", "lists no images"),
        ("t.csv", "a.png,cat\nb.png,dog\n", "has the columns 'a.png', 'cat'; one of them must be called image or path"),
        ("t.csv", "photo,label\na.png,cat\n", "the columns 'photo', 'label'; .* image or path .* the first line"),
        ("t.csv", "image,name\na.png,cat\n", "has the columns 'image', 'name'; one of them must be called label"),
        ("t.csv", "image,label,label\na.png,cat,dog\n", "has two columns called 'label'; rename or remove one"),
        (
            "t.csv",
            "image,label\na.png,cat, of prey\n",
            "entry 1 has more fields .* names with a comma in double quotes",
        ),
        ("t.csv", "image,label\n,cat\n", "entry 1 has the label 'cat' and no image"),
        ("t.csv", b"image,label\na.png,caf\xe9\n", "is not UTF-8 text .byte 21.; save it as UTF-8"),
        ("t.jsonl", '{"image": 3, "label": "cat"}\n', "entry 1: the image must be a path, got 3"),
        ("t.jsonl", '{"image": "a.png", "label": 0.5}\n', "the label must be a name, got 0.5"),
        ("t.jsonl", "a.png\n", "line 1 is not json"),
        (
            "t.csv",
            f"image,label\n{'a/' * 2500}a.png,cat\n",
            r"entry 1: 'a/a/.*' is no path \(File name too long\); write",
        ),
        ("t.jsonl", '{"image": "a\\u0000.png", "label": "cat"}\n', "entry 1: .* is no path .*null"),
        ("t.csv", "image,label\nhttp://x/y.png,cat\n", "entry 1: 'http://x/y.png' is an address, .* not fetched; down"),
        ("t.csv", "image,label\na.png,cat\ns3://x/y.png,cat\n", "entry 2: 's3://x/y.png' is an address"),
        ("t.json", "[" * 100_000, "t.json is not json .*recursion"),
        ("t.jsonl", "[" * 100_000, "line 1 is not json .*recursion"),
        ("t.json", "{", "t.json is not json .*; export it again"),
        ("t.json", "{}", "t.json holds '{}'; expected the tasks of Label Studio"),
        ("t.json", "[1]", "t.json holds '1'; expected the tasks"),
        ("t.json", '[{"data": {"text": "a"}}]', "task 1 has no image in its data; expected one called image or path"),
        ("t.json", '[{"data": {"image": "a"}, "annotations": 3}]', "task 1: its annotations holds '3'"),
        ("t.json", "[]", "lists no images"),
        ("t.txt", "a.png cat\n", "t.txt is a .txt; images and labels are read from .csv, .tsv"),
        ("t.parquet", b"no", "t.parquet cannot be read as parquet"),
    ],
)
def test_what_is_no_table_gets_a_sentence(tmp_path: Path, name: str, content: str | bytes, sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        read_labels(written(tmp_path, name, content))


def test_a_deeply_nested_label_is_a_label_like_other_text(tmp_path: Path) -> None:
    (row,) = read_labels(written(tmp_path, "t.csv", f"image,label\na.png,{'[' * 100_000}\n"))
    assert row.label == "[" * 100_000


def test_a_folder_and_a_file_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "t.csv").mkdir()
    with pytest.raises(BayesVLMError, match=r"t.csv is a folder; expected a file of images and labels"):
        read_labels(tmp_path / "t.csv")
    with pytest.raises(BayesVLMError, match=r"gone.csv does not exist"):
        read_labels(tmp_path / "gone.csv")
