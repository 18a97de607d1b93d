"""The tables of "Evaluation" in docs/retrieval.md are those of the numbers that are kept beside them."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

FIGURES = Path(__file__).parents[2] / "docs" / "figures"


def test_the_page_says_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("figures_captions", FIGURES / "captions.py")  # others are called so
    assert spec is not None
    assert spec.loader is not None
    captions = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, captions)
    spec.loader.exec_module(captions)
    found = json.loads(captions.KEPT.read_text())
    page = captions.PAGE.read_text(encoding="utf-8")
    assert captions.written(page, found) == page, "run python docs/figures/captions.py --tables"
