"""The tables of docs/unknown.md are those of the numbers that are kept beside them."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

FIGURES = Path(__file__).parents[2] / "docs" / "figures"


def test_the_page_says_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FIGURES))
    tables = importlib.import_module("unknown_tables")
    kept = [json.loads((FIGURES / f"{name}.json").read_text()) for name in tables.KEPT]
    page = tables.PAGE.read_text(encoding="utf-8")
    assert tables.written(page, *kept) == page, "run python docs/figures/unknown_tables.py"
    numbers = json.loads((FIGURES / "unknown-guarantees.json").read_text())["sets"]
    for of in numbers.values():
        for key, found in of.items():
            if key.endswith("new-drawing"):
                assert abs(found["coverage"] - float(key.split(", ")[2])) < 0.01, f"{key} is more than a point off"
