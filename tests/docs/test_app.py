"""The figures of docs/app.md are those of the load test that is kept beside it."""

from __future__ import annotations

import json
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_is_what_was_measured() -> None:
    found = json.loads((DOCS / "figures/app-load.json").read_text())
    memory = found["memory_mb"]
    cells = [
        found["clients"],
        sum(found["errors"].values()),
        found["answers_per_second"],
        f"{found['median_seconds']:.1f} s",
        f"{found['p95_seconds']:.1f} s",
    ]
    page = (DOCS / "app.md").read_text()
    assert "| " + " | ".join(map(str, cells)) + " |" in page
    said = {
        "as soon as it listens": "fresh",
        "after one visitor": "one_client",
        "at the start of the load": "start",
        "at most": "most",
        "at the end of the load": "end",
        "30 s after it": "after",
    }
    for words, name in said.items():
        assert f"| {words} | {memory[name]:,} MB |" in page
    assert f"The load leaves {memory['after'] - memory['start']} MB more" in page


def test_memory_came_back_and_nothing_failed() -> None:
    found = json.loads((DOCS / "figures/app-load.json").read_text())
    assert not found["errors"]
    assert found["memory_mb"]["after"] < 1.05 * found["memory_mb"]["start"]


def test_the_picture_is_small() -> None:
    assert (DOCS / "figures/app-ask.png").stat().st_size <= 60 * 1024
