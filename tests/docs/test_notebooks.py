"""Notebooks are kept with their outputs, which are small and say nothing of the machine that made them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def test_there_are_three() -> None:
    assert len(NOTEBOOKS) == 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_kept_and_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert len(text.encode()) < 200_000
    assert sum(bool(cell["outputs"]) for cell in cells) >= len(cells) - 1
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert all(output.get("name") != "stderr" and output["output_type"] != "error" for output in outputs)
    assert "site-packages" not in text
    assert [cell["metadata"] for cell in cells] == [{}] * len(cells)
