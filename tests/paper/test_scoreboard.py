"""The scoreboard: what is printed, what is bold, where something holds."""

from __future__ import annotations

import pytest
import torch

from bayesvlm.experiments.scoring import Scores
from bayesvlm_paper.scoreboard import BEST, Scoreboard, Where, figures, numbers_of, winners, with_printed


def scores(confidence: float, right: int) -> Scores:
    """Two hundred answers among three classes, so many of ten right, all as sure as that."""
    rest = (1 - confidence) / 2
    return Scores.of(
        torch.tensor([confidence, rest, rest]).repeat(200, 1), torch.tensor(20 * ([0] * right + [1] * (10 - right)))
    )


SURE, CALM = scores(0.99, 6), scores(0.6, 6)
BOARD = Scoreboard({data: numbers_of({"plain": SURE, "Bayes": CALM}) for data in ("a", "b")})


def test_numbers_are_printed_in_percent_and_nats() -> None:
    assert figures(CALM) == pytest.approx({"ACC": 60.0, "NLPD": CALM.nlpd.value, "ECE": 0.0}, abs=1e-5)
    assert BOARD.value("plain", "a", "ECE") == pytest.approx(39.0)
    assert BOARD.mean("plain", "ACC") == pytest.approx(60.0)
    assert BOARD.changes("Bayes", "plain", "ECE") == pytest.approx([-39.0] * 2, abs=1e-5)
    assert BOARD.lost("Bayes", "plain") == "top-1 +0.0 points at worst"


def test_the_best_are_those_not_worse_by_a_test() -> None:
    assert winners({"plain": SURE, "Bayes": CALM}) == {"plain": ["ACC"], "Bayes": ["ACC", "NLPD", "ECE"]}
    assert BOARD.cells["a"]["Bayes"][BEST] == ["ACC", "NLPD", "ECE"]


def test_the_table() -> None:
    table = BOARD.table(
        "m.", printed=lambda row, metric, data: 1.23 if (row, data) == ("plain", "b") else None, mean=True
    )
    assert list(table.columns) == ["", "a", "b", "mean"]
    assert [row[0] for row in table.rows] == [
        f"{m} {row}" for m in ("ACC", "NLPD", "ECE") for row in ("plain", "Bayes")
    ]
    assert list(table.rows[0]) == ["ACC plain", "60.0", "60.0 | 1.2", "60.0"]
    assert table.best == {(0, 1), (0, 2), (1, 1), (1, 2), (3, 1), (3, 2), (5, 1), (5, 2)}
    assert table.caption == "m. Behind the bar: the paper's."
    assert BOARD.table("m.", titles={"plain": "train"}).rows[0][0] == "ACC train"


def test_the_paper_prints_two_decimals_and_no_more_are_made_up() -> None:
    assert with_printed(0.6812, 0.68, 3) == "0.681 | 0.68"
    assert with_printed(80.4321, 80.43, 1) == "80.4 | 80.4"
    assert with_printed(1.0, None, 2) == "1.00"


def test_where_something_holds() -> None:
    some = Where({"a": True, "b": False})
    assert (str(some), some.count, some.everywhere) == ("1 of 2 (not on b)", 1, False)
    assert str(Where({"a": True})) == "1 of 1"
    assert (some & Where({"a": False, "b": True})).count == 0
    assert BOARD.matches("Bayes", ["plain"], "ECE").everywhere
    assert not BOARD.matches("plain", ["Bayes"], "ECE").everywhere
    assert BOARD.matches("plain", ["Bayes"], "ECE", slack=40).everywhere
    assert BOARD.only(["b"]).sets == ["b"]
