"""The tables of docs/retrieval.md are those of the numbers that are kept beside them."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

FIGURES = Path(__file__).parents[2] / "docs" / "figures"


@pytest.fixture
def retrieval(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """docs/figures/retrieval.py, by its file: the tests of the room are called so, too."""
    spec = importlib.util.spec_from_file_location("figures_retrieval", FIGURES / "retrieval.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_the_page_says_what_was_measured(retrieval: ModuleType) -> None:
    found = json.loads(retrieval.KEPT.read_text())
    page = retrieval.PAGE.read_text(encoding="utf-8")
    assert retrieval.written(page, found) == page, "run python docs/figures/retrieval.py --tables"
    for model in found.values():
        for of in model.values():
            for rules in of["decisions"].values():
                for rule in ("cosine", "both"):  # the mean of 20 halves of some 380 queries: error 0.004 at most
                    assert rules[rule]["turned away"][0] < 0.05 + 0.02, "more are turned away than was promised"
