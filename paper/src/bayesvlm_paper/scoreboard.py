"""The scoreboard: rows (methods, posteriors, settings) against labelled sets, and the scores where they meet.

Items fill it while they measure, keep it among their numbers, and read it again to judge claims and to print tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from bayesvlm.evaluation import not_worse_than_best
from bayesvlm.experiments.methods import losses
from bayesvlm.experiments.scoring import Scores
from bayesvlm.experiments.zero_shot import LEVEL
from bayesvlm.report.blocks import Table
from bayesvlm_paper.wording import not_on, signed

METRICS = {"ACC": ("top1", 100.0), "NLPD": ("nlpd", 1.0), "ECE": ("ece", 100.0)}
"""The paper's name of a metric -> ours, and what to multiply it by: percent, nats, percent."""
DECIMALS = {"ACC": 1, "NLPD": 2, "ECE": 1}
BEST = "not worse than the best"
"""Among the scores of a row on a set: the metrics in which no other row is better there."""
BOLD = f"Bold: not worse than the best by a paired t-test (p = {LEVEL}); of ECE, the smallest."

Cell = Mapping[str, Any]
Printed = Callable[[str, str, str], float | None]  # row, metric, set -> what the paper prints there


def figures(scores: Scores) -> dict[str, float]:
    """Scores as tables print them: percent, nats, percent."""
    return {"ACC": 100 * scores.top1.value, "NLPD": scores.nlpd.value, "ECE": 100 * scores.ece}


def winners(scores: Mapping[str, Scores]) -> dict[str, list[str]]:
    """Row -> metrics in which it is not worse than the best on a set, by a paired t-test; of ECE the smallest."""
    least = min(found.ece for found in scores.values())
    best = {
        "ACC": not_worse_than_best(losses(scores, "top1"), LEVEL),
        "NLPD": not_worse_than_best(losses(scores, "nlpd"), LEVEL),
        "ECE": frozenset(row for row, found in scores.items() if found.ece == least),
    }
    return {row: [metric for metric, rows in best.items() if row in rows] for row in scores}


def numbers_of(scores: Mapping[str, Scores], judged: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
    """Row -> everything measured of it on one set, for json.

    Args:
        judged: the rows among which the best is looked for; None takes all.
    """
    compared = scores if judged is None else {row: scores[row] for row in judged}
    best = winners(compared)
    return {row: {**found.numbers(), BEST: best.get(row, [])} for row, found in scores.items()}


@dataclass(frozen=True)
class Scoreboard:
    """Set -> row -> scores, with top1, nlpd and ece among them, as numbers keep them."""

    cells: Mapping[str, Mapping[str, Cell]]

    @property
    def sets(self) -> list[str]:
        return list(self.cells)

    @property
    def rows(self) -> list[str]:
        return list(next(iter(self.cells.values())))

    def value(self, row: str, data: str, metric: str) -> float:
        """One number, as tables print it."""
        name, scale = METRICS[metric]
        return scale * float(self.cells[data][row][name])

    def mean(self, row: str, metric: str) -> float:
        """Over the sets."""
        return sum(self.value(row, data, metric) for data in self.sets) / len(self.sets)

    def changes(self, row: str, other: str, metric: str) -> list[float]:
        """One row minus another, set by set."""
        return [self.value(row, data, metric) - self.value(other, data, metric) for data in self.sets]

    def lost(self, row: str, other: str) -> str:
        """What a row costs in top-1 against another, at worst, in words."""
        return f"top-1 {signed(min(self.changes(row, other, 'ACC')), 1)} points at worst"

    def matches(self, row: str, others: Iterable[str], metric: str, slack: float = 0.0) -> Where:
        """The sets on which a row is not worse than any of the others in a metric, but for some slack."""
        sign, named = -1 if metric == "ACC" else 1, list(others)
        worth = {each: {data: sign * self.value(each, data, metric) for data in self.sets} for each in (row, *named)}
        return self.where(lambda data: all(worth[row][data] <= worth[other][data] + slack for other in named))

    def where(self, holds: Callable[[str], bool]) -> Where:
        """The sets on which something is so."""
        return Where({data: holds(data) for data in self.sets})

    def only(self, sets: Iterable[str]) -> Scoreboard:
        """A part of the sets."""
        return Scoreboard({data: self.cells[data] for data in sets})

    def table(
        self,
        caption: str,
        *,
        printed: Printed | None = None,
        decimals: Mapping[str, int] = DECIMALS,
        mean: bool = False,
        titles: Mapping[str, str] | None = None,
    ) -> Table:
        """Rows below one another by metric, sets as columns; bold what is not worse than the best.

        Args:
            printed: the paper's values, which go behind a bar.
            mean: whether the mean over the sets is the last column.
            titles: row -> what the table calls it.
        """
        rows: list[list[str]] = []
        best: set[tuple[int, int]] = set()
        for metric, row in product(METRICS, self.rows):
            cells = []
            for place, data in enumerate(self.sets, start=1):
                if metric in self.cells[data][row].get(BEST, ()):
                    best.add((len(rows), place))
                beside = None if printed is None else printed(row, metric, data)
                cells.append(with_printed(self.value(row, data, metric), beside, decimals[metric]))
            cells += [f"{self.mean(row, metric):.{decimals[metric]}f}"] if mean else []
            rows.append([f"{metric} {(titles or {}).get(row, row)}", *cells])
        behind = " Behind the bar: the paper's." if printed is not None else ""
        return Table(["", *self.sets, *(["mean"] if mean else [])], rows, frozenset(best), caption + behind)


@dataclass(frozen=True)
class Where:
    """On which sets something is so."""

    holds: Mapping[str, bool]

    @property
    def count(self) -> int:
        return sum(self.holds.values())

    @property
    def everywhere(self) -> bool:
        return all(self.holds.values())

    def __and__(self, other: Where) -> Where:
        return Where({data: so and other.holds[data] for data, so in self.holds.items()})

    def __str__(self) -> str:
        """How often, and where not: "2 of 3 (not on b)"."""
        return f"{self.count} of {len(self.holds)}{not_on([data for data, so in self.holds.items() if not so])}"


def with_printed(value: float, printed: float | None, decimals: int) -> str:
    """A number, and the paper's behind a bar where it prints one: with no more than the two decimals it has."""
    return f"{value:.{decimals}f}" + ("" if printed is None else f" | {printed:.{min(decimals, 2)}f}")
