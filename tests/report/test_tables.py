"""Tables for a paper: the figures of the results, bold where the paired test says so, in three formats."""

from __future__ import annotations

import csv
import io

import pytest
from report.results import result, scores

from bayesvlm import BayesVLMError
from bayesvlm.experiments.zero_shot import Result
from bayesvlm.report.tables import collect, render_table


@pytest.fixture(scope="module")
def results() -> list[Result]:
    """Bayes is plain with half a nat less on every image of the first set, and half a nat more on the second."""
    return [
        result("food_101", {"plain": scores(1), "Bayes": scores(1, shift=-0.5)}),
        result("pets", {"plain": scores(1), "Bayes": scores(1, shift=0.5)}),
        result("pets", {"plain": scores(2)}, model="other"),
    ]


def test_rows_and_columns(results: list[Result]) -> None:
    table = collect(results)
    assert table.sets == ["food_101", "pets"]
    assert [(row.model, row.metric, row.method) for row in table.rows] == [
        (model, metric, method)
        for model, methods in (("some-model", ["plain", "Bayes"]), ("other", ["plain"]))
        for metric in ("ACC %", "NLPD", "ECE %")
        for method in methods
    ]
    nlpd = next(row for row in table.rows if row.metric == "NLPD" and row.method == "Bayes")
    assert nlpd.cells[0] is not None
    assert nlpd.cells[0].value == results[0].scores["Bayes"].nlpd.value
    assert nlpd.cells[0].error == results[0].scores["Bayes"].nlpd.standard_error
    assert [cell.best for cell in nlpd.cells if cell] == [True, False]
    assert table.rows[-1].cells[0] is None, "the other model was not measured on the first set"


def test_markdown(results: list[Result]) -> None:
    lines = render_table(results, "md").splitlines()
    assert lines[0] == "| model | metric | method | food_101 | pets |"
    assert len({line.count("|") for line in lines}) == 1
    found = results[0].scores
    plain, bayes = (f"{found[name].nlpd.value:.2f} ± {found[name].nlpd.standard_error:.2f}" for name in found)
    (line,) = [line for line in lines if "| NLPD | plain" in line and "some-model" in line]
    assert f"| {plain} |" in line
    (line,) = [line for line in lines if "| NLPD | Bayes" in line]
    assert f"| **{bayes}** |" in line
    (line,) = [line for line in lines if "other | ECE" in line]
    assert "| - |" in line


def test_latex(results: list[Result]) -> None:
    text = render_table(results, "latex")
    assert text.startswith("\\begin{tabular}{lllrr}\n\\toprule\n")
    assert text.endswith("\\bottomrule\n\\end{tabular}\n")
    rows = [line for line in text.splitlines() if line.endswith("\\\\")]
    assert {line.count("&") for line in rows} == {4}
    assert "food\\_101" in text
    assert "ACC \\%" in text
    found = results[0].scores["Bayes"].nlpd
    assert f"$\\mathbf{{{found.value:.2f} {{\\scriptstyle \\pm}} {found.standard_error:.2f}}}$" in text
    assert text.count("{") == text.count("}")


def test_csv_keeps_every_digit(results: list[Result]) -> None:
    rows = list(csv.DictReader(io.StringIO(render_table(results, "csv"))))
    assert len(rows) == 2 * 3 * 2 + 3
    (row,) = [r for r in rows if (r["data"], r["method"], r["metric"]) == ("pets", "Bayes", "NLPD")]
    assert float(row["value"]) == results[1].scores["Bayes"].nlpd.value
    assert float(row["standard_error"]) == results[1].scores["Bayes"].nlpd.standard_error
    assert row["not_worse_than_best"] == "0"
    assert [r["standard_error"] for r in rows if r["metric"] == "ECE %"] == [""] * 5


def test_nothing_to_tabulate() -> None:
    with pytest.raises(BayesVLMError, match="There are no results to tabulate; run `bayesvlm eval` first"):
        render_table([], "md")


def test_unknown_format(results: list[Result]) -> None:
    with pytest.raises(BayesVLMError, match="kind='html' is not known; use 'md', 'latex' or 'csv'"):
        render_table(results, "html")  # type: ignore[arg-type]
