"""Notebooks are kept as they ran: outputs are small and name no machine, and nothing is on the error stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def on_error_stream(notebook: Any) -> list[str]:
    """What its cells wrote to the error stream."""
    outputs = [output for cell in code_cells(notebook) for output in cell["outputs"]]
    return ["".join(output["text"]) for output in outputs if output.get("name") == "stderr"]


def executed(notebook: Any, folder: Path) -> Any:
    client = pytest.importorskip("nbclient", reason="runs notebooks; comes with the extra dev")
    pytest.importorskip("ipykernel", reason="what notebooks run in")
    return client.NotebookClient(notebook, timeout=280, resources={"metadata": {"path": str(folder)}}).execute()


def test_there_are_three() -> None:
    assert len(NOTEBOOKS) == 3


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_outputs_are_kept_and_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    kept = json.loads(text)
    cells = code_cells(kept)
    assert len(text.encode()) < 200_000
    assert sum(bool(cell["outputs"]) for cell in cells) >= len(cells) - 1
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), "run it anew, from the top"
    assert not on_error_stream(kept)
    assert all(output["output_type"] != "error" for cell in cells for output in cell["outputs"])
    assert "site-packages" not in text
    assert [cell["metadata"] for cell in cells] == [{}] * len(cells)


def test_imports_say_nothing_on_the_error_stream(tmp_path: Path) -> None:
    """In the kernel of a reader, who may have no ipywidgets: tqdm's complaint of that was in the first cell once.

    nbmake, which runs all of all notebooks, does not look at the error stream.
    """
    nbformat = pytest.importorskip("nbformat", reason="comes with nbclient")
    notebook = nbformat.read(NOTEBOOKS[0], as_version=4)
    notebook["cells"] = code_cells(notebook)[:1]
    run = executed(notebook, tmp_path)
    assert not on_error_stream(run)
    assert code_cells(run)[0]["outputs"]
