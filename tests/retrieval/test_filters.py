"""Conditions: what they select, against the same condition in Python; and that no value breaks out of one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bayesvlm import Features
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.retrieval import Index
from bayesvlm.retrieval.filters import as_sql
from retrieval.conftest import P, draw

ROWS: list[dict[str, Any]] = [
    {
        "id": f"item {place}",
        "year": 2010 + place if place != 3 else None,
        "weight": place / 4 if place != 5 else None,
        "album": ["holiday", "it's work", 'say "hi"', "100%", None][place % 5],
        "ok": place % 2 == 0,
        "day": date(2020, 1, 1 + place),
        "when": datetime(2020, 1, 1 + place, 12, 30),
    }
    for place in range(20)
]


@pytest.fixture
def index(make: Callable[..., Index]) -> Index:
    return make(count=20, columns={name: [row[name] for row in ROWS] for name in ROWS[0] if name != "id"})


@pytest.mark.parametrize(
    ("where", "holds"),
    [
        ({"year": 2015}, lambda row: row["year"] == 2015),
        ({"year": 2015.0}, lambda row: row["year"] == 2015),
        ({"year": np.int64(2015)}, lambda row: row["year"] == 2015),
        ({"year": (">=", 2015)}, lambda row: (row["year"] or 0) >= 2015),
        ({"year": (">", 2015.5)}, lambda row: (row["year"] or 0) > 2015.5),
        ({"year": ("!=", 2015)}, lambda row: row["year"] != 2015),
        ({"year": ("!=", 2015.5)}, lambda row: True),
        ({"year": ("!=", None)}, lambda row: row["year"] is not None),
        ({"year": ("=", None)}, lambda row: row["year"] is None),
        ({"album": ("!=", "holiday")}, lambda row: row["album"] != "holiday"),
        ({"album": ("!=", "holiday"), "ok": True}, lambda row: row["album"] != "holiday" and row["ok"]),
        ({"album": ["holiday", None]}, lambda row: row["album"] in ("holiday", None)),
        ({"album": [None]}, lambda row: row["album"] is None),
        ({"year": np.array([2015, 2016])}, lambda row: row["year"] in (2015, 2016)),
        ({"year": range(2015, 2018)}, lambda row: row["year"] in (2015, 2016, 2017)),
        ({"album": np.array(["holiday", "100%"])}, lambda row: row["album"] in ("holiday", "100%")),
        ({"day": np.array(["2020-01-10"], "datetime64[D]")}, lambda row: row["day"] == date(2020, 1, 10)),
        ({"when": np.datetime64("2020-01-05T12:30", "ns")}, lambda row: row["when"] == datetime(2020, 1, 5, 12, 30)),
        ({"year": [2015, 2016.0, 2099]}, lambda row: row["year"] in (2015, 2016)),
        ({"year": [2015, 2016.5]}, lambda row: row["year"] == 2015),
        ({"year": None}, lambda row: row["year"] is None),
        ({"weight": ("<", 1)}, lambda row: row["weight"] is not None and row["weight"] < 1),
        ({"weight": ("<=", np.float32(0.5))}, lambda row: row["weight"] is not None and row["weight"] <= 0.5),
        ({"album": "it's work"}, lambda row: row["album"] == "it's work"),
        ({"album": {"holiday", 'say "hi"'}}, lambda row: row["album"] in ("holiday", 'say "hi"')),
        ({"album": ("like", "it's%")}, lambda row: (row["album"] or "").startswith("it's")),
        ({"album": ("LIKE", "%o%")}, lambda row: "o" in (row["album"] or "")),
        ({"album": ("like", "h_liday")}, lambda row: row["album"] == "holiday"),
        ({"album": ("like", "100\\%")}, lambda row: row["album"] == "100%"),
        ({"ok": True}, lambda row: row["ok"]),
        ({"ok": ("!=", True)}, lambda row: not row["ok"]),
        ({"day": (">=", date(2020, 1, 10))}, lambda row: row["day"] >= date(2020, 1, 10)),
        ({"day": "2020-01-10"}, lambda row: row["day"] == date(2020, 1, 10)),
        ({"when": ("<", datetime(2020, 1, 5, 12, 30))}, lambda row: row["when"] < datetime(2020, 1, 5, 12, 30)),
        ({"when": (">", date(2020, 1, 5))}, lambda row: row["when"] > datetime(2020, 1, 5)),
        ({"when": [datetime(2020, 1, 5, 12, 30)]}, lambda row: row["when"] == datetime(2020, 1, 5, 12, 30)),
        ({"id": ["item 1", "item 19"], "ok": False}, lambda row: row["id"] in ("item 1", "item 19")),
        ({"path": None}, lambda row: True),
        (
            "year % 2 = 0 OR album = 'holiday'",
            lambda row: (row["year"] is not None and row["year"] % 2 == 0) or row["album"] == "holiday",
        ),
    ],
)
def test_a_condition_selects_what_it_says(where: Any, holds: Callable[[Any], bool], index: Index) -> None:
    expected = {row["id"] for row in ROWS if holds(row)}
    assert expected, "a condition that nothing meets tests nothing"
    assert {row["id"] for row in index.rows(where)} == expected
    found = index.search(draw(1, P, 4), k=20, tower="image", where=where)[0]
    assert set(found.ids) == expected
    some = [row["id"] for row in ROWS[:8]]
    assert {row["id"] for row in index.rows(where, ids=some)} == expected & set(some)
    assert index.delete(where=where) == len(expected)
    assert len(index) == 20 - len(expected)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ({"nope": 1}, "names the column 'nope'; the index has"),
        ({"year": "abc"}, "compares 'year' with 'abc' \\(str\\); the column holds whole numbers"),
        ({"year": True}, "the column holds whole numbers"),
        ({"year": float("nan")}, "the column holds whole numbers"),
        ({"year": 10**30}, "the column holds whole numbers"),
        ({"year": [1, "a"]}, "the column holds whole numbers"),
        ({"album": 3}, "the column holds text"),
        ({"album": "\udcff"}, "is no text"),
        ({"ok": 1}, "the column holds True or False"),
        ({"day": "yesterday"}, "the column holds dates"),
        ({"when": 3}, "the column holds times"),
        ({"vector": 3}, "the column holds lists"),
        ({"year": []}, "is an empty list"),
        ({"year": ("about", 2010)}, "with one of = != < <= > >= like"),
        ({"year": ("like", "20%")}, "like only for text"),
        ({"year": (">=",)}, "it must be a value"),
        ({}, "must be a mapping"),
        ([], "must be a mapping"),
        (" ", "where is empty"),
        ("year =", "compare columns that it has"),
        ("nope = 3", "No field named nope"),
    ],
)
def test_conditions_that_are_none(where: Any, said: str, index: Index) -> None:
    for way in (
        lambda: index.search(draw(1, P, 4), k=3, tower="image", where=where),
        lambda: list(index.rows(where)),
        lambda: index.delete(where=where),
    ):
        with pytest.raises(BayesVLMError, match=said):
            way()
    assert len(index) == 20


def test_a_series_is_a_list(index: Index) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    found = {row["id"] for row in index.rows({"album": pandas.Series(["holiday", None])})}
    assert found == {row["id"] for row in ROWS if row["album"] in ("holiday", None)}


EAST, WEST = timezone(timedelta(hours=2)), timezone(timedelta(hours=-5))
NOON = datetime(2020, 1, 1, 12)


@pytest.mark.parametrize("zone", [None, UTC, EAST, ZoneInfo("Europe/Helsinki")])
def test_times_with_an_offset(zone: tzinfo | None, make: Callable[..., Index]) -> None:
    """An hour is the same hour wherever it was noted, and wherever it is asked for; without an offset it is UTC."""
    hours = [(NOON + timedelta(hours=place)).replace(tzinfo=UTC) for place in range(20)]
    index = make(
        count=20, columns={"when": [at.replace(tzinfo=None) if zone is None else at.astimezone(zone) for at in hours]}
    )
    index.update(["item 19"], {"when": [hours[19].astimezone(WEST)]})
    for asked in (UTC, EAST, WEST, None):
        fifth = hours[5].replace(tzinfo=None) if asked is None else hours[5].astimezone(asked)
        for wanted in (fifth, fifth.isoformat(), [fifth], ("=", fifth)):
            assert [row["id"] for row in index.rows({"when": wanted})] == ["item 5"]
        assert len(list(index.rows({"when": ("<", fifth)}))) == 5
        assert len(index.search(draw(1, P, 4), k=20, tower="image", where={"when": (">=", fifth)})[0]) == 15
    kept = index.get("item 5", ["when"])[0]["when"]
    assert kept.replace(tzinfo=UTC) == hours[5]
    assert (kept.tzinfo is None) == (zone is None)
    with pytest.raises(BayesVLMError, match="the column holds times"):
        list(index.rows({"when": datetime.min.replace(tzinfo=EAST)}))


def test_days_of_early_years(make: Callable[..., Index]) -> None:
    index = make(count=3, columns={"day": [date(99, 1, 1), date(99, 1, 2), date(1999, 1, 1)]})
    assert [row["id"] for row in index.rows({"day": date(99, 1, 2)})] == ["item 1"]
    assert [row["id"] for row in index.rows({"day": datetime(99, 1, 2, 12)})] == ["item 1"]
    assert {row["id"] for row in index.rows({"day": (">", date(99, 1, 1))})} == {"item 1", "item 2"}


HOSTILE = [
    "' OR 1=1 --",
    "'; DROP TABLE items; --",
    "\\' OR '1'='1",
    "x') OR (1=1",
    "''",
    "'",
    "\\",
    '"',
    "`",
    "%",
    "a\nb",
    "\x00",
    "{id}",
    "$1",
    "/* */",
    "ü😀",
]


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory, vlm: Any) -> Index:
    index = Index.create(tmp_path_factory.mktemp("hostile") / "index", vlm)
    index.add(draw(len(HOSTILE), P, 1), HOSTILE, paths=[Path(f"photos/{name}") for name in HOSTILE])
    return index


@pytest.mark.parametrize("name", HOSTILE)
def test_no_value_breaks_out(name: str, named: Index) -> None:
    asked = draw(1, P, 4)
    assert named.search(asked, k=5, tower="image", where={"id": name})[0].ids == (name,)
    assert named.search(asked, k=5, tower="image", where={"path": Path(f"photos/{name}")})[0].ids == (name,)
    assert [row["id"] for row in named.rows({"id": [name, "nothing"]})] == [name]
    assert name in named
    assert named.delete(where={"id": f"{name} OR true"}) == 0
    assert named.delete([f"{name} OR true"]) == 0
    assert len(named) == len(HOSTILE)


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=20))
@example("'")
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_text_is_one_literal(text: str) -> None:
    """The SQL ends where the value does: no odd quote is left, whatever the text."""
    sql = as_sql({"path": text}, {"path": "text"})
    assert sql is not None
    inside = sql.removeprefix("(`path` = '").removesuffix("')")
    assert inside.replace("''", "").count("'") == 0
    assert inside.replace("''", "'") == text


def test_a_column_may_have_any_name(make: Callable[..., Index], images: Features) -> None:
    names = ["it's", 'say "hi"', "with space", "SELECT", "Album", "album", "größe"]
    index = make(count=4, columns={name: [0, 1, 2, 3] for name in names})
    for name in names:
        assert [row["id"] for row in index.rows({name: (">", 2)})] == ["item 3"]
