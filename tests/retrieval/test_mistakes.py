"""What is given by mistake is told in a sentence; what can be meant is taken."""

from __future__ import annotations

import copy
import pickle
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bayesvlm import BayesVLM, Features
from bayesvlm.core.errors import BayesVLMError, BayesVLMWarning
from bayesvlm.retrieval import Index, sync
from retrieval.conftest import P_TEXT, P, draw

Make = Callable[..., Index]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Four images in A/ and B/."""
    for place in range(4):
        file = tmp_path / "photos" / "AB"[place % 2] / f"{place}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (60 * place, 0, 255 - 60 * place)).save(file)
    return tmp_path / "photos"


# Nothing that can be added --------------------------------------------------------------------------------------------


def test_nothing_that_can_be_added_is_an_error(tmp_path: Path, emoji: BayesVLM, photos: Path) -> None:
    index = Index.create(tmp_path / "index", emoji)
    with pytest.raises(BayesVLMError, match=r"None of 1 item\(s\).*photos.*retrieval\.sync or `bayesvlm index` adds"):
        index.add([photos])
    with pytest.raises(BayesVLMError, match=r"None of 2 item\(s\) can be read as an image.*a red car.*or Features"):
        index.add(["a red car", "a dog"])
    with pytest.raises(BayesVLMError, match=r"None of 3 item\(s\)"):
        index.add(list(np.ones((3, 16), np.float32)), ["a", "b", "c"])
    assert len(index) == 0
    some = [photos / "A/0.png", photos / "B", photos / "B/1.png"]
    with pytest.warns(BayesVLMWarning, match="1 of 3 items cannot be read and have no row"):
        added = index.add(some)
    assert (added.rows, list(added.unreadable)) == (2, [1])
    with pytest.warns(BayesVLMWarning, match="1 of 3 items"):
        assert index.add(some, existing="skip").skipped == 2


def test_relative_paths_are_kept_whole(
    tmp_path: Path, emoji: BayesVLM, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos)
    index = Index.create(tmp_path / "index", emoji)
    index.add(["A/0.png"])
    index.add([photos / "A/2.png"], ["two"], paths=["A/2.png"])
    index.add(draw(1, emoji.image.input_width, 1), ["elsewhere"], paths=["not/here.png"])
    monkeypatch.chdir(tmp_path)
    kept = {row["id"]: row["path"] for row in index.rows()}
    assert kept == {"A/0.png": str(photos / "A/0.png"), "two": str(photos / "A/2.png"), "elsewhere": "not/here.png"}
    done = sync(index, photos)
    assert (done.added, len(index)) == (2, 5), "those that were there are known by their files"
    assert sync(index, photos).unchanged == 4
    (photos / "A/0.png").unlink()
    assert sync(index, photos).deleted == 1
    assert "A/0.png" not in index


# Ids ------------------------------------------------------------------------------------------------------------------


def test_paths_are_ids(make: Make) -> None:
    index = make(count=0)
    index.add(draw(3, P, 1), [Path("a/b"), Path("c"), "d"])
    assert Path("a/b") in index
    assert Path("x") not in index
    assert 3 not in index
    assert [row["id"] for row in index.get(Path("c"))] == ["c"]
    assert index.like(Path("c"), k=1).query == "c"  # type: ignore[union-attr]
    assert index.update([Path("c")], {"year": 3}) == 1
    assert index.delete([Path("a/b"), Path("c")]) == 2
    assert index.delete(Path("d")) == 1


@pytest.mark.parametrize("ids", [3, [3], [""], [None], 2.5, [b"a"]])
def test_ids_that_are_none(ids: Any, make: Make) -> None:
    index = make(count=3)
    for way in (index.get, index.delete, index.like, lambda given: index.add(draw(1, P, 1), given)):
        with pytest.raises(BayesVLMError, match=r"An id is .*; ids are texts, and not empty"):
            way(ids)


def test_as_many_ids_as_one_likes(make: Make) -> None:
    index = make(count=0)
    names = [f"item {place}" for place in range(2100)]
    index.add(draw(2100, P, 1), names)
    assert len(index.get(names)) == 2100
    version = index._store.items.version
    assert index.delete(names[:1000]) == 1000
    assert index._store.items.version == version + 1, "one commit"
    assert index.delete(names) == 1100


# Columns --------------------------------------------------------------------------------------------------------------


def test_columns_of_a_table(make: Make) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    index = make(count=3, columns=pandas.DataFrame({"year": [1, 2, 3], "album": ["a", None, "c"]}))
    assert {row["id"]: (row["year"], row["album"]) for row in index.rows(columns=["id", "year", "album"])} == {
        "item 0": (1, "a"),
        "item 1": (2, None),
        "item 2": (3, "c"),
    }


def test_single_values_of_all_kinds(make: Make) -> None:
    given = {"day": date(2020, 1, 2), "n": np.int64(3), "none": None, "t": torch.tensor(0.5), "a": np.array(7)}
    index = make(count=2, columns=given)
    expected = {"day": date(2020, 1, 2), "n": 3, "none": None, "t": 0.5, "a": 7}
    assert list(index.rows(columns=list(given))) == [expected, expected]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([{"year": 3}], r"columns is .*year.* \(list\); give a mapping of names to values"),
        ("year", "give a mapping of names to values"),
        ({"year": 2**70}, "The column 'year' cannot be kept"),
        ({"year": [2**70, 1]}, "The column 'year' cannot be kept"),
    ],
)
def test_columns_that_are_none(columns: Any, said: str, make: Make) -> None:
    index = make(count=2)
    with pytest.raises(BayesVLMError, match=said):
        index.add(draw(2, P, 1), ["a", "b"], columns=columns)
    with pytest.raises(BayesVLMError, match=said):
        index.update(["item 0", "item 1"], columns)


# The index itself -----------------------------------------------------------------------------------------------------


def test_a_model_that_is_none(tmp_path: Path, make: Make) -> None:
    with pytest.raises(BayesVLMError, match=r"vlm is 'None' \(NoneType\); an index is of a model with a posterior"):
        Index.create(tmp_path / "new", None)  # type: ignore[arg-type]
    assert not (tmp_path / "new").exists()
    with pytest.raises(BayesVLMError, match="vlm is 'emoji-clip'"):
        Index.open(make(count=1).place, "emoji-clip")  # type: ignore[arg-type]


def test_an_encoder_that_is_not_there(tmp_path: Path, emoji: BayesVLM) -> None:
    Index.create(tmp_path / "index", emoji)
    with pytest.raises(BayesVLMError) as told:
        Index.open(tmp_path / "index", model="/nope")
    assert "/nope" in str(told.value)
    assert "/tmp/tmp" not in str(told.value)


def test_copies_and_pickles(make: Make, texts: Features) -> None:
    index = make()
    expected = index.search(texts[:1], k=3)[0].ids
    for other in (copy.deepcopy(index), pickle.loads(pickle.dumps(index)), copy.copy(index)):
        assert other.search(texts[:1], k=3)[0].ids == expected
        assert len(other) == 60
    index.delete("item 0")
    assert len(pickle.loads(pickle.dumps(index))) == 59
    moved = index.to("cpu")
    assert moved.vlm.device == torch.device("cpu")
    assert len(moved) == 59


def test_it_prints_also_when_its_folder_is_gone(make: Make) -> None:
    index = make(count=3, columns={"year": [1, 2, 3]})
    assert "3 images of" in repr(index)
    assert "year" in index._repr_html_()
    shutil.rmtree(index.place)
    assert "images that cannot be read now, of" in repr(index)
    assert "was not found" in index._repr_html_()


def test_looking_at_all_and_at_some(make: Make, texts: Features) -> None:
    index = make()
    for way in (lambda: index.search(texts, exact=True, probes=5), lambda: index.like("item 1", exact=True, probes=5)):
        with pytest.raises(BayesVLMError, match=r"exact=True .* probes=5 .* give one of the two"):
            way()
    assert len(index.search(draw(1, P_TEXT, 1), k=3, exact=True)[0]) == 3


def test_a_file_as_words(tmp_path: Path, emoji: BayesVLM, photos: Path, recwarn: pytest.WarningsRecorder) -> None:
    index = Index.create(tmp_path / "index", emoji)
    index.add([photos / "A/0.png"])
    file = str(photos / "A/0.png")
    for query in (file, ["a cat", file]):
        with pytest.warns(BayesVLMWarning, match=r"is a file, and is looked for as words; pathlib\.Path"):
            index.search(query, k=1)
    recwarn.clear()
    index.search(file, k=1, tower="text")
    index.search(Path(file), k=1)
    assert not [each for each in recwarn if issubclass(each.category, BayesVLMWarning)]
