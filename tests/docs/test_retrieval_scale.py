"""The section "Scale and faults" of docs/retrieval.md says what was measured."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

FIGURES = Path(__file__).parents[2] / "docs" / "figures"


def test_the_page_says_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FIGURES))
    tables = importlib.import_module("retrieval_scale")
    page = tables.PAGE.read_text(encoding="utf-8")
    assert tables.written(page, json.loads(tables.KEPT.read_text())) == page, (
        "run python docs/figures/retrieval_scale.py"
    )


def test_what_the_page_promises_was_measured() -> None:
    found = json.loads((FIGURES / "retrieval-scale.json").read_text())
    for kind in ("clustered", "isotropic"):
        assert found[kind]["rows"] == 1_000_000
        assert found[kind]["recall"] >= 0.99
    assert found["world"]["recall"] >= 0.99
    assert found["kills"]["points"] >= 20
    assert {found["kills"][name] for name in ("lost", "twice", "half_written", "unreadable")} == {0}
    assert found["writers"] | {"rows": 2000, "twice": 0} == found["writers"]
    assert found["soak"]["rows"] == 200_000
    assert found["soak"]["failures"] == 0
    adding, once, twice = (max(held) for held in found["soak"]["resident_mib"])
    assert max(once, twice) < 1.3 * adding, "memory grows with what is written"
    for kind in ("clustered", "isotropic"):
        assert found[kind]["build_ratio"] <= 1.3
        assert found[kind]["query_ratio"] <= 1.35  # and the page has the number
