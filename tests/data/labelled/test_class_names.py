"""Names for classes apart from what the data call them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data import ImageFolder
from bayesvlm.data.labelled.class_names import ClassNames
from bayesvlm.data.labelled.listed import ListedImages
from bayesvlm.data.labelled.renamed import Renamed, images_of, named, synonyms_of


def folders(root: Path, *names: str) -> ImageFolder:
    """Class folders with an image each."""
    for name in names:
        (root / name).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(root / name / "one.png")
    return ImageFolder.open(root)


def file(folder: Path, content: str | bytes, name: str = "names.txt") -> Path:
    (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder / name


def shown(names: ClassNames, ids: Sequence[str]) -> list[str]:
    return [each[0] for each in names.for_classes(ids, ids, "the set")]


# Of folders -----------------------------------------------------------------------------------------------------------


def test_a_list_names_the_sorted_folders(tmp_path: Path) -> None:
    data = named(folders(tmp_path / "set", "k9", "felis"), ClassNames.of(file(tmp_path, "cat|house cat\r\n\ndog\n")))
    assert data.classes == ("cat", "dog")
    assert synonyms_of(data) == (("cat", "house cat"), ("dog",))
    assert [(sample.key, sample.label) for sample in data] == [("felis/one.png", 0), ("k9/one.png", 1)]
    assert (data.name, data.size, data.templates) == ("set", 2, ("a photo of a {c}.",))


def test_folders_that_are_numbers_are_counted_as_numbers(tmp_path: Path) -> None:
    names = [f"class {number}" for number in range(12)]
    listed = ClassNames.of(names)
    ids = sorted(map(str, range(12)))  # "10" before "2", as folders are sorted
    assert shown(listed, ids) == [names[int(name)] for name in ids]
    assert shown(ClassNames.of(names[:3]), ["1", "10", "2"]) == ["class 0", "class 2", "class 1"]


def test_a_table_names_folders_by_theirs(tmp_path: Path) -> None:
    names = ClassNames.of(file(tmp_path, "folder,name\nk_9,dog\nfelis,cat|house cat\nbos,cow\n", "names.csv"))
    data = named(folders(tmp_path / "set", "k_9", "felis"), names)
    assert data.classes == ("cat", "dog")
    assert shown(ClassNames.of({"k 9": "dog"}), ["k 9"]) == ["dog"]
    by_shown_name = ClassNames.of({"k 9": "dog", "felis": ["cat", "house cat"]})
    assert named(images_of(data), by_shown_name).classes == ("cat", "dog")
    tabs = file(tmp_path, "id\tname\nk_9\tdog\nfelis\tcat\n", "names.tsv")
    assert named(images_of(data), ClassNames.of(tabs)).classes == ("cat", "dog")


def test_a_list_of_the_folders_themselves_may_have_any_order() -> None:
    names = ClassNames.of(["dog|hound", "cat"])
    assert names.for_classes(["cat", "dog"], ["cat", "dog"], "the set") == (("cat",), ("dog", "hound"))


def test_wordnet_ids_are_named_by_the_file_that_is_given(tmp_path: Path) -> None:
    data = folders(tmp_path / "set", "n01443537", "n01440764")
    with pytest.raises(BayesVLMError, match=r"WordNet ids such as 'n01440764', .* or name the file with"):
        named(data, None)
    names = ClassNames.of(file(tmp_path, "n01440764 tench, Tinca tinca\nn01443537 goldfish\nn02012849 tench\n"))
    assert named(data, names).classes == ("tench", "goldfish")


def test_the_images_are_the_same_under_any_names(tmp_path: Path) -> None:
    data = folders(tmp_path / "set", "a", "b")
    one, other = (named(data, ClassNames.of(names)) for names in (["cat", "dog"], ["cat", "owl"]))
    assert images_of(one) is images_of(other) is images_of(data) is data
    assert len({data.fingerprint(), one.fingerprint(), other.fingerprint()}) == 3
    assert named(data, ClassNames.of(["cat", "dog"])).fingerprint() == one.fingerprint()


@pytest.mark.parametrize(
    ("names", "ids", "sentence"),
    [
        (["x", "y"], ["a", "b", "c"], r"has 2 names, and the set has 3 classes \(a, b, c\); give one per line in this"),
        (["x", "y"], ["a"], "has 2 names, and the set has 1 classes"),
        (
            ["cat", "owl"],
            ["cat", "dog"],
            "names 'cat', a class of the set, and does not name 'dog', another; spell",
        ),
        ({"a": "x"}, ["a", "b"], "has no name for 'b', a class of the set; add the row"),
    ],
)
def test_names_that_are_not_those_of_the_folders(
    names: list[str] | dict[str, str], ids: list[str], sentence: str
) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        ClassNames.of(names).for_classes(ids, ids, "the set")


@pytest.mark.parametrize("content", ["cat|kitty\ndog\n", "name\ncat|kitty\ndog\n"])
def test_a_csv_of_one_column_is_a_list(tmp_path: Path, content: str) -> None:
    found = ClassNames.of(file(tmp_path, content, "names.csv"))
    assert (found.names, found.ids) == ((("cat", "kitty"), ("dog",)), None)


def test_names_with_a_comma_in_a_csv_of_one_column(tmp_path: Path) -> None:
    found = ClassNames.of(file(tmp_path, 'name\n"tench, Tinca tinca"\n\ncat|"kitty"\n', "names.csv"))
    assert found.names == (("tench, Tinca tinca",), ("cat", '"kitty"'))
    found = ClassNames.of(file(tmp_path, '"tench, Tinca tinca"\r\n cat\r\n', "names.csv"))
    assert found.names == (("tench, Tinca tinca",), ("cat",))


# Of tables ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "labels", "indices"),
    [
        (["cow", "dog", "cat"], ["cat", "dog"], (2, 1)),  # the list is all there is to choose from
        (["cow", "dog|hound", "cat"], ["dog", "hound"], (1, 1)),
        (["cow", "dog", "cat"], ["0", "2"], (0, 2)),
        ({"bos": "cow", "canis": "dog", "felis": "cat"}, ["bos", "felis"], (0, 2)),
        ({"10": "cow", "20": "dog"}, ["10", "20"], (0, 1)),
    ],
)
def test_labels_of_a_table(names: list[str] | dict[str, str], labels: list[str], indices: tuple[int, ...]) -> None:
    assert ClassNames.of(names).for_labels(labels, "t.csv") == indices


@pytest.mark.parametrize(
    ("names", "labels", "sentence"),
    [
        (["cat", "dog"], ["cat", "owl"], r"t.csv has the label 'owl', which is not among the 2 classes .*\(cat, dog\)"),
        (
            ["a", "b", "c", "d"],
            ["x", "y"],
            r"has the label 'x', which is not among the 4 .*\(a, b, c, \.\.\.\); add",
        ),
        (
            ["dog", "cat", "parrot"],  # as many, and no word on which is which
            ["bird", "kitten", "puppy"],
            "has the label 'bird', which .* spell them alike, or give a csv with the columns label,name",
        ),
        (["1", "2"], ["0"], "has the label '0', which is not among the 2"),
        (["a", "b"], ["0.5", "1.5"], "has the label '0.5', which is not among the 2 classes"),
        ({"bos": "cow"}, ["bos", "cow"], "has the label 'cow', which is not among the 1 classes"),
        (["cat", "dog"], ["0", "2"], "has the label 2, and classes has 2 names, .* numbered from 0 to 1; give it all"),
        (["cat", "dog", "cow"], ["0", "x"], "has the label '0', which is not among the 3"),
    ],
)
def test_labels_that_have_no_name(names: list[str] | dict[str, str], labels: list[str], sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        ClassNames.of(names).for_labels(labels, "t.csv")


def test_a_table_of_images_under_a_list(tmp_path: Path) -> None:
    for name in "abc":
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.png")
    table = file(tmp_path, "image,label\na.png,1\nb.png,10\nc.png,1\n", "photos.csv")
    names = [f"class {number}" for number in range(11)]
    data = named(ListedImages.open(table), ClassNames.of(names))
    assert isinstance(data, Renamed)
    assert data.classes == tuple(names)
    assert [sample.label for sample in data] == [1, 10, 1]


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("names.txt", "", "names.txt names no class; expected one name per line"),
        ("names.txt", "cat\ndog\ncat\n", "names.txt has the name 'cat' twice; a name is of one class"),
        ("names.txt", "cat|kitty\nkitty\n", "has the name 'kitty' twice"),
        ("names.txt", "cat\n|\n", "names.txt: class 2 has no name; give each class one"),
        ("names.txt", b"caf\xe9\n", "names.txt is not UTF-8 text"),
        ("names.csv", "", "names.csv names no class; expected one name per line"),
        (
            "names.csv",
            "cat,felis\ndog,k9\n",
            "has the columns 'cat', 'felis'; one of them must be called folder or",
        ),
        ("names.csv", "folder,label\na,cat\n", "has the columns 'label'; one of them must be called name"),
        ("names.csv", "folder,name\na,cat\na,dog\n", "has two rows for 'a'; remove one"),
        ("names.csv", "folder,name\na,cat\nb,cat\n", "has the name 'cat' twice"),
        ("names.csv", "folder,name\na,\n", "entry 1: the column 'name' is empty; each class needs both"),
        ("names.csv", "folder,name\n,cat\n", "entry 1: the column 'folder' is empty"),
    ],
)
def test_files_that_are_no_names(tmp_path: Path, name: str, content: str | bytes, sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        ClassNames.of(file(tmp_path, content, name))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([1, 2, 3], r"classes has '1', a int; a class is a name, or a list of names: its synonyms. Write numbers as"),
        ({"a": 1}, "classes has '1', a int"),
        ([["cat", 3]], r"classes has \"\['cat', 3\]\", a list"),
        ([b"cat"], "a bytes; a class is a name"),
        (3, "classes=3, a int; it must be a file, a list of names, or a mapping"),
        ({"cat"}, "a set; it must be a file, a list"),  # in no order
    ],
)
def test_what_is_no_list_of_names(given: Any, sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        ClassNames.of(given)


def test_a_folder_and_nothing_in_the_place_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(BayesVLMError, match="cannot be read: Is a directory"):
        ClassNames.of(tmp_path)
    with pytest.raises(BayesVLMError, match=r"gone.txt cannot be read: No such file"):
        ClassNames.of(tmp_path / "gone.txt")
