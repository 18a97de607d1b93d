"""The tables of near-duplicates and of linearised variances are those of the numbers that are kept beside them."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "docs" / "figures" / "duplicates.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("duplicates_figures", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def kept(script: ModuleType) -> dict:
    return json.loads((script.HERE / "duplicates.json").read_text())


def test_the_pages_say_what_was_measured(script: ModuleType, kept: dict) -> None:
    for page, tables in script.pages(kept).items():
        text = (script.DOCS / page).read_text(encoding="utf-8")
        assert script.written(text, tables) == text, "run python docs/figures/duplicates.py --tables"


def test_what_the_text_says_of_the_tables(script: ModuleType, kept: dict) -> None:
    for model in script.MODELS:
        for style in script.STYLES:
            rules = kept["pairs"][model][style]["rules"]
            flat = rules["flat, same recall"]
            assert 0.925 < flat["threshold"] < 0.935, "the interval reaches 0.95 where the cosine is 0.93"
            assert abs(flat["precision"] - rules["upper end"]["precision"]) < 0.0035
    linearised = kept["linearised"][1:]
    assert all(abs(row["all"] - 1) < 0.02 for row in linearised if row["ratio"] <= 0.01)
    assert all(row["held mean off"] < 0.001 for row in linearised)
    groups = [kept["groups"][style][level] for style in script.STYLES for level in ("0.95", "0.9")]
    assert all(of[way]["not near what is kept"] == 0 for of in groups for way in ("stars", "complete linkage"))
    text = (script.DOCS / "retrieval.md").read_text(encoding="utf-8")
    assert re.search(
        r"least variance of the ten is the undistorted one in\n<!-- duplicates: kept -->\n0\.5 to 13\.5 %", text
    )


def test_a_page_without_a_place_for_a_table_is_an_error(script: ModuleType) -> None:
    with pytest.raises(SystemExit, match="no place for the table 'pairs'"):
        script.written("nothing", {"pairs": ["| |"]})


def test_average_precision_is_scikit_learns(script: ModuleType) -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    generator = torch.Generator().manual_seed(0)
    score, same = torch.randn(500, generator=generator).double(), torch.rand(500, generator=generator) < 0.1
    found = script.average_precision(score, same, int(same.sum()))
    assert found == pytest.approx(metrics.average_precision_score(same, score), abs=1e-12)
    weight = torch.randint(0, 3, (500,), generator=generator).double()
    positives = float(weight[same].sum())
    found = script.average_precision(score, same, positives, weight)
    expected = metrics.average_precision_score(same, score, sample_weight=weight)
    assert found == pytest.approx(expected, abs=1e-12)
