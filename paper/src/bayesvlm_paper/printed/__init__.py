"""The paper's own numbers: its tables, and the curves whose values are in its source. As printed, never corrected.

tables.json and curves.json were transcribed from the LaTeX of *Post-hoc Probabilistic Vision-Language Models*; what
looks wrong there is noted under `oddities`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from bayesvlm.core.errors import check_choice

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Row:
    """One metric of one method: values and standard errors, one per column; None where the paper prints none."""

    metric: str
    method: str
    values: tuple[float | None, ...]
    errors: tuple[float | None, ...]


@dataclass(frozen=True)
class PublishedTable:
    """A table of the paper.

    Args:
        columns: data sets, or levels of a distortion.
        unit: metric -> "percent", "nats", ...
        oddities: what a reader should know of the printed numbers.
    """

    columns: tuple[str, ...]
    unit: dict[str, str]
    rows: tuple[Row, ...]
    oddities: str = ""

    def value(self, metric: str, column: str | None, *methods: str) -> float | None:
        """What is printed for the first of these methods that the table has: percent, nats, ...; None for nothing."""
        for row in self.rows:
            if row.metric == metric and row.method in methods and column in self.columns:
                value = row.values[self.columns.index(column)]
                return value if value is None or self.unit[metric] != "fraction" else 100 * value
        return None


def published_names() -> tuple[str, ...]:
    """The tables there are."""
    return tuple(_read("tables.json")["tables"])


def published_table(name: str) -> PublishedTable:
    """A table by its label in the paper, without prefix: "uq_results_clip"."""
    check_choice("name", name, published_names())
    raw = _read("tables.json")["tables"][name]
    rows = tuple(Row(row["metric"], row["method"], tuple(row["values"]), tuple(row["errors"])) for row in raw["rows"])
    return PublishedTable(tuple(raw["columns"]), raw["unit"], rows, raw.get("oddities", ""))


def published_curves(name: str) -> dict[str, Any]:
    """A figure by its label without prefix, as in curves.json: `series` with `x` and `y`, and what they stand for."""
    figures = _read("curves.json")["figures"]
    check_choice("name", name, tuple(figures))
    found: dict[str, Any] = figures[name]
    return found


@cache
def _read(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((HERE / name).read_text(encoding="utf-8"))
    return read
