"""What goes into an index, what comes out of it, and what is refused."""

from __future__ import annotations

import builtins
import subprocess
import sys
from collections.abc import Callable
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bayesvlm import BayesVLM, Features
from bayesvlm.core.errors import BayesVLMError, BayesVLMWarning
from bayesvlm.retrieval import Index
from retrieval.conftest import P_TEXT, P, draw, model

Make = Callable[..., Index]


def ids_of(index: Index) -> list[str]:
    return sorted(row["id"] for row in index.rows())


def test_what_was_added_is_there(make: Make, images: Features, texts: Features) -> None:
    index = make()
    assert len(index) == 60
    assert ids_of(index) == sorted(f"item {place}" for place in range(60))
    assert "item 3" in index
    assert "item 60" not in index
    assert "" not in index
    assert 3 not in index
    assert index.get(["item 3", "nothing"]) == [{"id": "item 3", "path": None}]
    assert index.info() | {"rows": 60, "d": 16, "p": P, "tower": "image", "vector_index": None} == index.info()
    assert str(index).startswith("Index(")


def test_hits_carry_ids_paths_and_columns(make: Make, texts: Features) -> None:
    days = [date(2020, 1, 1 + place % 28) for place in range(60)]
    index = make(
        paths=[Path(f"folder/it's {place}.jpg") for place in range(60)],
        columns={"year": list(range(60)), "album": "holiday", "day": days, "none": [None] * 60},
    )
    for hit in index.search(texts[:1], k=5)[0]:
        place = int(hit.id.removeprefix("item "))
        assert hit.path == f"folder/it's {place}.jpg"
        assert hit.columns == {"year": place, "album": "holiday", "day": days[place], "none": None}
    assert index.columns == ("year", "album", "day", "none")


def test_paths_are_ids_unless_told(tmp_path: Path, emoji: BayesVLM) -> None:
    files = [tmp_path / f'it\'s "{place}".png' for place in range(3)]
    for place, file in enumerate(files):
        Image.new("RGB", (32, 32), (80 * place, 0, 0)).save(file)
    index = Index.create(tmp_path / "index", emoji)
    missing = tmp_path / "missing.png"
    with pytest.warns(BayesVLMWarning, match="1 of 3 items cannot be read"):
        added = index.add([files[0], missing, files[1]])
    assert (added.rows, int(added), list(added.unreadable)) == (2, 2, [1])
    assert "missing.png" in added.unreadable[1]
    with pytest.warns(BayesVLMWarning, match="1 of 4 items cannot be read"):
        again = index.add([files[0], missing, files[1], files[2]], existing="skip")
    assert (again.rows, again.skipped, list(again.unreadable)) == (1, 2, [1])
    assert ids_of(index) == sorted(map(str, files))
    assert {row["path"] for row in index.rows()} == {str(file) for file in files}
    with pytest.raises(BayesVLMError, match=r"missing\.png"):
        index.add([missing], strict=True)
    hits = index.search(files[2], k=1)
    assert hits.ids == (str(files[2]),)
    assert float(hits.mean[0]) == pytest.approx(1, abs=1e-5)


def test_an_index_of_texts(tmp_path: Path, emoji: BayesVLM) -> None:
    index = Index.create(tmp_path / "index", emoji, tower="text")
    index.add(["a cat", "a dog", "a house"])
    assert ids_of(index) == ["a cat", "a dog", "a house"]
    assert [row["path"] for row in index.rows()] == [None] * 3
    assert index.search("a dog", k=1).ids == ("a dog",)
    assert len(index.search(Image.new("RGB", (32, 32)), k=2)) == 2
    with pytest.raises(BayesVLMError, match="Item 1 is ''"):
        index.add(["a tree", ""])
    with pytest.raises(BayesVLMError, match="Item 0 is Image"):
        index.add([Image.new("RGB", (32, 32))], ["picture"])


@pytest.mark.parametrize("existing", ["replace", "skip", "error"])
def test_ids_that_are_there_already(existing: str, make: Make) -> None:
    index = make(count=10, columns={"year": list(range(10)), "album": "old"})
    fresh = draw(5, P, 77)
    ids = ["item 8", "item 9", "item 10", "item 11", "item 12"]
    before = index.search(fresh[:1], k=1, tower="image")[0]
    if existing == "error":
        with pytest.raises(BayesVLMError, match="'item 8' already, and 1 more"):
            index.add(fresh, ids)
        assert len(index) == 10
        return
    added = index.add(fresh, ids, columns={"year": list(range(100, 105))}, existing=existing)
    assert len(index) == 13
    assert len(set(ids_of(index))) == 13
    years = {row["id"]: (row["year"], row["album"]) for row in index.rows(columns=["id", "year", "album"])}
    nearest = index.search(fresh[:1], k=1, tower="image")[0]
    if existing == "replace":
        assert (added.rows, added.skipped) == (5, 0)
        assert years["item 8"] == (100, None), "a row that is replaced keeps nothing of the old one"
        assert nearest.ids == ("item 8",)
        assert float(nearest.std[0]) < 1e-6
    else:
        assert (added.rows, added.skipped) == (3, 2)
        assert years["item 8"] == (8, "old")
        assert float(nearest.mean[0]) == pytest.approx(float(before.mean[0]), abs=1e-6) or nearest.ids[0] in ids[2:]
    assert years["item 12"] == (104, None)


def test_a_column_that_comes_later_is_empty_before(make: Make) -> None:
    index = make(count=4)
    index.add(draw(2, P, 5), ["a", "b"], columns={"weight": [1.5, None]})
    index.add(draw(2, P, 6), ["c", "d"], columns={"weight": [2, 3]})
    found = {row["id"]: row["weight"] for row in index.rows(columns=["id", "weight"])}
    assert found == {f"item {place}": None for place in range(4)} | {"a": 1.5, "b": None, "c": 2.0, "d": 3.0}
    assert index.update(["a", "nothing"], {"weight": [9, 9], "note": ["kept", "x"]}) == 1
    assert index.get("a", ["weight", "note"]) == [{"weight": 9.0, "note": "kept"}]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"year": ["abc"]}, "holds int64 in this index, and 'abc' \\(string\\)"),
        ({"year": [3.5]}, "holds int64 in this index, and '3.5'"),
        ({"year": [1, 2]}, "has 2 values for 1 items"),
        ({"x": [object()]}, "cannot be kept"),
        ({"alpha": [1]}, "'alpha'; it must be"),
        ({"_rowid": [1]}, "'_rowid'; it must be"),
        ({"a.b": [1]}, "'a.b'; it must be"),
        ({"a`b": [1]}, "it must be text without dots and backticks"),
        ({3: [1]}, "3; it must be text"),
    ],
)
def test_columns_that_cannot_be_kept(columns: Any, said: str, make: Make) -> None:
    index = make(count=3, columns={"year": [1, 2, 3]})
    with pytest.raises(BayesVLMError, match=said):
        index.add(draw(1, P, 9), ["new"], columns=columns)
    assert len(index) == 3


@pytest.mark.parametrize(
    ("ids", "said"),
    [
        (["a", "a"], "'a' is given twice"),
        (["a"], "1 ids for 2 items"),
        (["a", ""], "An id is ''"),
        (["a", 3], "An id is 3"),
        (["a", "b\udcff"], "is no text"),
        (None, "ids are missing"),
    ],
)
@pytest.mark.parametrize("existing", ["error", "skip", "replace"])
def test_ids_that_are_none(ids: Any, said: str, existing: str, make: Make) -> None:
    index = make(count=0)
    with pytest.raises(BayesVLMError, match=said):
        index.add(draw(2, P, 9), ids, existing=existing)
    assert len(index) == 0


def test_what_cannot_be_added(make: Make) -> None:
    index = make(count=0)
    with pytest.raises(BayesVLMError, match="25 wide but this tower's projection takes 24"):
        index.add(draw(2, P + 1, 9), ["a", "b"])
    with pytest.raises(BayesVLMError, match="NaN or Inf"):
        index.add(Features(torch.full((1, P), float("nan"))), ["a"])
    with pytest.raises(BayesVLMError, match="no items to add"):
        index.add([], [])
    with pytest.raises(BayesVLMError, match="is no text"):
        index.add(draw(1, P, 9), ["a"], paths=["b\udcff.jpg"])
    assert len(index) == 0


@pytest.mark.parametrize("size", [1e20, 1e30, 1e-30])
@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_activations_that_cannot_be_computed_with(
    size: float, covariance: str, vlm: BayesVLM, images: Features, texts: Features, tmp_path: Path
) -> None:
    """A row of them would be kept, and end every search that finds it."""
    index = Index.create(tmp_path / "index", vlm.replace(covariance=covariance))
    odd = Features(torch.cat([images.activations[:2], images.activations[2:3] * size, images.activations[3:5]]))
    with pytest.raises(BayesVLMError, match=r"^'item 2' has activations up to .*e[+-].*no length.*; check that input"):
        index.add(odd, [f"item {place}" for place in range(5)])
    assert len(index) == 0
    index.add(images[:20], [f"item {place}" for place in range(20)])
    with pytest.raises(BayesVLMError, match=r"^'text 1' has activations up to"):
        index.search(Features(texts.activations[:2] * torch.tensor([[1.0], [size]])), k=3)
    assert len(index.search(texts[:1], k=20)[0]) == 20


@pytest.mark.parametrize("size", [1e-17, 1e-10, 1e10, 1e17])
def test_the_scale_of_activations_says_nothing(size: float, make: Make, images: Features) -> None:
    """The posterior knows no constant here: what is longer is as uncertain, in proportion."""
    index = make()
    index.add(Features(images.activations[:3] * size), ["a", "b", "c"])
    index.add(images[:3], ["d", "e", "f"])
    found = index.search(images[:3], k=2, tower="image", where={"id": list("abcdef")})
    for hits, pair in zip(found, ("ad", "be", "cf"), strict=True):
        assert set(hits.ids) == set(pair)
        torch.testing.assert_close(hits.mean, torch.ones(2, dtype=torch.float64), atol=1e-6, rtol=0)
        assert float(hits.std.max()) < 1e-3, "a copy has no variance, if its direction is kept"


def test_deleted_items_are_not_found(make: Make, images: Features) -> None:
    index = make(columns={"year": list(range(60))})
    assert index.delete(["item 7", "nothing"]) == 1
    assert index.delete(where={"year": (">=", 50)}) == 10
    assert index.delete([]) == 0
    assert len(index) == 49
    found = index.search(images[7:8], k=49, tower="image")[0].ids
    assert len(set(found)) == 49
    assert "item 7" not in found
    assert "item 55" not in found
    index.compact()
    assert len(index) == 49
    assert index.add(draw(1, P, 3), ["item 7"]).rows == 1
    with pytest.raises(BayesVLMError, match="either ids"):
        index.delete()
    with pytest.raises(BayesVLMError, match="either ids"):
        index.delete(["a"], where={"year": 3})


def test_more_than_there_are_and_nothing_at_all(make: Make, texts: Features) -> None:
    few, none = make("few", count=3), make("none", count=0)
    with pytest.warns(BayesVLMWarning, match="k is 10 and there are 3 items") as warned:
        hits = few.search(texts[:1])[0]
    assert warned[0].filename == __file__
    assert len(hits) == 3
    assert float(hits.p_best.sum()) == pytest.approx(1)
    with pytest.warns(BayesVLMWarning, match="there are 0 items"):
        nothing = none.search(texts)
    assert [len(each) for each in nothing] == [0] * len(texts)
    assert nothing[0].p_best.shape == (0,)
    assert nothing[0].to_json()["hits"] == []
    assert len(few.search(texts[:1], k=10, where={"id": "item 1"})[0]) == 1, "a condition is no reason to warn"


@pytest.mark.parametrize("k", [20_000, 2**31, 2**32, 2**64])
@pytest.mark.parametrize("rank", ["mean", "lower", "upper"])
def test_however_many_are_asked_for(k: int, rank: str, make: Make, texts: Features) -> None:
    index = make()
    for asked, arguments in ((texts[:1], {}), (texts, {}), (texts[:1], {"exact": True})):
        with pytest.warns(BayesVLMWarning, match=f"k is {k} and there are 60 items: all of them are returned"):
            found = index.search(asked, k=k, rank=rank, **arguments)
        assert all(set(hits.ids) == set(ids_of(index)) for hits in found)
    assert len(index.search(texts[:1], k=k, where={"id": "item 1"})[0]) == 1
    with pytest.warns(BayesVLMWarning, match="there are 0 items"):
        assert not len(make("none", count=0).search(texts[:1], k=k, rank=rank)[0])


def test_many_queries_find_what_each_finds(make: Make) -> None:
    index = make()
    asked = draw(150, P_TEXT, 12)
    together = index.search(asked, k=4)
    assert len(together) == 150
    for row in (0, 63, 64, 127, 128, 149):
        alone = index.search(asked[row : row + 1], k=4)[0]
        assert alone.ids == together[row].ids
        torch.testing.assert_close(alone.mean, together[row].mean, atol=1e-6, rtol=0)
        torch.testing.assert_close(alone.std, together[row].std, atol=1e-6, rtol=0)


@pytest.mark.parametrize("rank", ["lower", "upper"])
def test_order_by_a_bound(rank: str, make: Make, texts: Features) -> None:
    index = make()
    for level in (0.5, 0.99):
        for hits, all_of_them in zip(
            index.search(texts, k=5, rank=rank, level=level), index.search(texts, k=60), strict=True
        ):
            bounds = all_of_them.interval(level)[0 if rank == "lower" else 1]
            best = [all_of_them.ids[place] for place in bounds.argsort(descending=True)[:5]]
            assert list(hits.ids) == best


def test_it_opens_again_with_the_model_and_without(make: Make, vlm: BayesVLM, texts: Features, tmp_path: Path) -> None:
    index = make(columns={"year": list(range(60))})
    there = index.search(texts, k=3)
    for again in (
        Index.open(tmp_path / "index", vlm),
        Index.open(tmp_path / "index"),
        Index.open(f"file://{tmp_path}/index"),
    ):
        assert len(again) == 60
        assert again.columns == ("year",)
        for one, other in zip(there, again.search(texts, k=3), strict=True):
            assert one.ids == other.ids
            torch.testing.assert_close(one.mean, other.mean, atol=1e-6, rtol=0)
            torch.testing.assert_close(one.std, other.std, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda vlm: model(seed=1), "the projections of the model given"),
        (lambda vlm: vlm.replace(tau=3.0), "another posterior"),
        (lambda vlm: vlm.replace(covariance="full"), "another posterior"),
        (lambda vlm: vlm.replace(lam={"image": 7.0, "text": 7.0}), "another posterior"),
        (lambda vlm: vlm.copy().fit([(draw(64, P, 1), draw(64, P_TEXT, 2))], negatives=64, progress=False), "another"),
    ],
)
def test_another_posterior_is_refused(other: Any, said: str, make: Make, vlm: BayesVLM, tmp_path: Path) -> None:
    make()
    with pytest.raises(BayesVLMError, match=said):
        Index.open(tmp_path / "index", other(vlm))


def test_places_that_hold_no_index(make: Make, vlm: BayesVLM, tmp_path: Path) -> None:
    with pytest.raises(BayesVLMError, match="holds no index"):
        Index.open(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists(), "opening makes nothing"
    (tmp_path / "file").touch()
    for way in (Index.open, lambda place: Index.create(place, vlm)):
        with pytest.raises(BayesVLMError, match="is a file"):
            way(tmp_path / "file")
    with pytest.raises(BayesVLMError, match="has no name"):
        Index.create("", vlm)
    with pytest.raises(BayesVLMError, match="No object store provider found"):
        Index.create("nosuchscheme://bucket/index", vlm)
    make("made")
    with pytest.raises(BayesVLMError, match="holds an index already"):
        Index.create(tmp_path / "made", vlm)
    assert len(Index.create(tmp_path / "made", vlm, overwrite=True)) == 0
    with pytest.raises(BayesVLMError, match="no posterior yet"):
        Index.create(tmp_path / "x", vlm.without_posterior())
    with pytest.raises(BayesVLMError, match="no covariance shape"):
        Index.create(tmp_path / "x", vlm.replace(structure="exact"))


def test_a_place_below_the_home_folder(vlm: BayesVLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    index = Index.create("~/index", vlm)
    index.add(draw(5, P, 1), list("abcde"))
    assert [file.name for file in home.iterdir()] == ["index"]
    assert not list(here.iterdir())
    assert len(Index.open("~/index", vlm)) == len(Index.open(home / "index", vlm)) == 5
    with pytest.raises(BayesVLMError, match="holds an index already"):
        Index.create(home / "index", vlm)


def test_a_place_stays_where_it_was_named(vlm: BayesVLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    index = Index.create("index", vlm)
    monkeypatch.chdir(tmp_path / "other")
    index.add(draw(5, P, 1), list("abcde"))
    index.compact()
    assert len(index) == 5
    assert len(Index.open(tmp_path / "index", vlm)) == 5
    assert not list((tmp_path / "other").iterdir())


def test_object_storage(vlm: BayesVLM, images: Features, texts: Features) -> None:
    """By URL, where there is no folder to lock: LanceDB's store in shared memory stands for a bucket."""
    place = "shared-memory://a-bucket/index"
    index = Index.create(place, vlm, overwrite=True)
    index.add(images[:20], [f"item {place}" for place in range(20)])
    again = Index.open(place, vlm)
    again.add(images[20:30], [f"item {place}" for place in range(20, 30)])
    assert len(index) == 30
    assert index.search(texts, k=3)[0].ids == again.search(texts, k=3)[0].ids
    with pytest.raises(BayesVLMError, match="holds an index already"):
        Index.create(place, vlm)


def test_searches_from_threads(make: Make, texts: Features) -> None:
    from concurrent.futures import ThreadPoolExecutor

    index = make()
    alone = [hits.ids for hits in index.search(texts, k=5)]
    with ThreadPoolExecutor(8) as pool:
        rows = [row % len(texts) for row in range(40)]
        found = list(pool.map(lambda row: index.search(texts[row : row + 1], k=5)[0].ids, rows))
    assert found == [alone[row] for row in rows]


def test_without_lancedb(vlm: BayesVLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "lancedb":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(BayesVLMError, match=r"pip install 'bayesvlm\[retrieval\]'"):
        Index.create(tmp_path / "index", vlm)


def test_the_room_imports_neither_lancedb_nor_arrow() -> None:
    """Where the extra is not installed, `import bayesvlm.retrieval` works, and says what is missing when it is used."""
    code = "import sys, bayesvlm.retrieval; sys.exit('lancedb' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_times_and_truths_survive(make: Make) -> None:
    when = [datetime(2020, 1, 1, 12, place) for place in range(4)]
    index = make(count=4, columns={"when": when, "ok": [True, False, None, True]})
    found = {row["id"]: (row["when"], row["ok"]) for row in index.rows(columns=["id", "when", "ok"])}
    assert found["item 1"] == (when[1], False)
    assert found["item 2"] == (when[2], None)


def test_columns_as_numpy_and_pandas_have_them() -> None:
    from datetime import datetime

    import pandas as pd

    from bayesvlm.retrieval.columns import check_columns

    days = np.array(["2020-01-01", "NaT"], dtype="datetime64[ns]")
    for values, kind, expected in (
        (days, "timestamp[us]", [datetime(2020, 1, 1), None]),
        (pd.Series(days), "timestamp[us]", [datetime(2020, 1, 1), None]),
        (np.array([1, 2], dtype=np.int16), "int64", [1, 2]),
        (torch.tensor([0.5, 1]), "double", [0.5, 1]),
        (pd.Series(["x", float("nan")], dtype=object), "string", ["x", None]),
        (pd.Series(["a", "b"], dtype="category"), "string", ["a", "b"]),
    ):
        column = check_columns({"of": values}, 2)["of"]
        assert (str(column.type), column.to_pylist()) == (kind, expected)


def test_hits_as_a_table_of_pandas(make: Callable[..., Index], texts: Features) -> None:
    pandas = pytest.importorskip("pandas", reason="tables of pandas (extra pandas)")
    index = make(columns={"year": list(range(60)), "id of old": ["x"] * 60})
    hits = index.search(texts, k=4)
    table = pandas.concat([each.to_pandas(0.5) for each in hits])
    assert list(table.columns) == ["query", "id", "path", "mean", "std", "low", "high", "p_best", "year", "id of old"]
    assert len(table) == 4 * len(texts)
    first = table.iloc[0]
    assert (first["id"], first["query"]) == (hits[0].ids[0], hits[0].query)
    assert (first["low"], first["high"]) == pytest.approx([float(bound[0]) for bound in hits[0].interval(0.5)])
    assert table.groupby("query")["p_best"].sum().to_numpy() == pytest.approx(1.0)
    assert len(index.search(texts[:1], k=4, where={"year": -1})[0].to_pandas()) == 0
