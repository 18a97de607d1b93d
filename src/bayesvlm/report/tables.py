"""Results as tables people put in a paper: Markdown, LaTeX (booktabs), csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from bayesvlm.core.errors import BayesVLMError, check_choice
from bayesvlm.experiments.scoring import Scores
from bayesvlm.experiments.zero_shot import Result

Format = Literal["md", "latex", "csv"]
FORMATS: tuple[Format, ...] = ("md", "latex", "csv")


class Cell(NamedTuple):
    """One figure: its value, its standard error where it has one, whether it is set in bold."""

    value: float
    error: float | None
    best: bool


class Row(NamedTuple):
    """One metric of one model and method on every set; None where it was not measured."""

    model: str
    metric: str
    method: str
    cells: list[Cell | None]


class ScoreTable(NamedTuple):
    """Rows by model, metric and method; columns are the sets."""

    sets: list[str]
    rows: list[Row]


METRICS: dict[str, tuple[str, int, Callable[[Scores], tuple[float, float | None]]]] = {
    "top1": ("ACC %", 2, lambda found: (100 * found.top1.value, 100 * found.top1.standard_error)),
    "nlpd": ("NLPD", 2, lambda found: (found.nlpd.value, found.nlpd.standard_error)),
    "ece": ("ECE %", 2, lambda found: (100 * found.ece, None)),
}
"""What the paper's tables hold: title, decimals, and value with error."""


def collect(results: Sequence[Result]) -> ScoreTable:
    """Results side by side, in the order in which models, methods and sets first occur."""
    if not results:
        raise BayesVLMError("There are no results to tabulate; run `bayesvlm eval` first.")
    models, sets = (list(dict.fromkeys(names)) for names in zip(*((r.model, r.data) for r in results), strict=True))
    found = {(result.model, result.data): result for result in results}
    rows = []
    for model in models:
        methods = dict.fromkeys(name for result in results if result.model == model for name in result.scores)
        for metric, (title, _, value) in METRICS.items():
            winners = {name: found[model, name].winners(metric) for name in sets if (model, name) in found}
            for method in methods:
                cells: list[Cell | None] = []
                for name in sets:
                    scores = found[model, name].scores.get(method) if (model, name) in found else None
                    cells.append(None if scores is None else Cell(*value(scores), method in winners[name]))
                rows.append(Row(model, title, method, cells))
    return ScoreTable(sets, rows)


def render_table(results: Sequence[Result], kind: Format) -> str:
    """The table as text.

    Bold: not significantly worse than the best (paired t-test over the images, p = 0.05); of ECE, which is no mean over
    images, the smallest.
    """
    check_choice("kind", kind, FORMATS)
    return {"md": _markdown, "latex": _latex, "csv": _csv}[kind](collect(results))


def _markdown(table: ScoreTable) -> str:
    lines = [_line(["model", "metric", "method", *table.sets]), _line(["---"] * (3 + len(table.sets)))]
    for row in table.rows:
        cells = [_shown(cell, row.metric, "±") for cell in row.cells]
        bold = [f"**{text}**" if cell and cell.best else text for cell, text in zip(row.cells, cells, strict=True)]
        lines.append(_line([row.model, row.metric, row.method, *bold]))
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _latex(table: ScoreTable) -> str:
    lines = [r"\begin{tabular}{lll" + "r" * len(table.sets) + "}", r"\toprule"]
    lines.append(" & ".join(["model", "metric", "method", *map(_escaped, table.sets)]) + r" \\")
    before: tuple[str, str] | None = None
    for row in table.rows:
        if (row.model, row.metric) != before:
            lines.append(r"\midrule")
        first = (row.model, row.metric) != before
        before = (row.model, row.metric)
        cells = [_shown(cell, row.metric, r"{\scriptstyle \pm}") for cell in row.cells]
        marked = [
            f"$\\mathbf{{{text}}}$" if cell and cell.best else f"${text}$" if cell else "--"
            for cell, text in zip(row.cells, cells, strict=True)
        ]
        names = [_escaped(row.model), _escaped(row.metric)] if first else ["", ""]
        lines.append(" & ".join([*names, _escaped(row.method), *marked]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _escaped(text: str) -> str:
    words = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    return "".join(words.get(letter, f"\\{letter}" if letter in "&%$#_{}" else letter) for letter in text)


def _csv(table: ScoreTable) -> str:
    """Long form, one figure a line, at full precision."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "data", "method", "metric", "value", "standard_error", "not_worse_than_best"])
    for row in table.rows:
        for name, cell in zip(table.sets, row.cells, strict=True):
            if cell is not None:
                error = "" if cell.error is None else repr(cell.error)
                writer.writerow([row.model, name, row.method, row.metric, repr(cell.value), error, int(cell.best)])
    return text.getvalue()


def _shown(cell: Cell | None, metric: str, sign: str) -> str:
    if cell is None:
        return "-"
    decimals = next(places for title, places, _ in METRICS.values() if title == metric)
    error = "" if cell.error is None else f" {sign} {cell.error:.{decimals}f}"
    return f"{cell.value:.{decimals}f}{error}"
