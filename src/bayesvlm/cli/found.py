"""What a search found, on a terminal and as json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table

from bayesvlm.cli.output import table
from bayesvlm.cli.queries import seen_from_here
from bayesvlm.report.axes import percent, tenths
from bayesvlm.report.search import unusual
from bayesvlm.retrieval.hits import doubt
from bayesvlm.retrieval.places import KEPT_OF_FILES

if TYPE_CHECKING:
    from bayesvlm.retrieval import Hits

_WIDTH = 28  # letters of a bar
_FURTHER = 3  # columns of an index that are shown
_LETTERS = {True: ("·", "━", "●"), False: (".", "-", "o")}  # nothing, interval, mean


def as_json_of(hits: Hits, level: float, abstain: bool) -> dict[str, Any]:
    """As json keeps it, without what an index keeps for itself."""
    found = hits.to_json()
    low, high = hits.interval(level)
    for place, row in enumerate(found["hits"]):
        row["interval"] = [float(low[place]), float(high[place])]
        row["columns"] = {name: of for name, of in row.pop("columns", {}).items() if name not in KEPT_OF_FILES}
    if abstained(hits, abstain):
        found["hits"] = []
    return {**found, "abstained": abstained(hits, abstain)}


def abstained(hits: Hits, abstain: bool) -> bool:
    """Whether nothing is shown because nothing matches."""
    return abstain and hits.matches is False


def verdict(hits: Hits) -> str:
    """Whether nothing matches, in words; empty where the index is not calibrated."""
    if hits.matches is None:
        return ""
    rare = unusual(hits)
    if hits.matches:
        said = f"not turned away{doubt(hits)}"
    else:
        said = "nothing here matches" + ("" if hits.p_value is None else f" (p = {hits.p_value:.2g})")
    return f"{said}; {rare}" if rare else said


def as_tables(
    hits: list[Hits], level: float, abstain: bool, unicode: bool = True, tower: str = "image"
) -> list[str | Table]:
    """A table per query, and whether anything matches."""
    parts: list[str | Table] = []
    for each in hits:
        said = verdict(each)
        if abstained(each, abstain):
            parts.append(f"{each.query}: {said}; without --abstain the nearest are shown")
            continue
        parts.append(_as_table(each, level, unicode, tower))
        if said:
            parts.append(said)
    return parts


def further(hits: Hits) -> list[str]:
    """The columns that say something of what was found."""
    told = [name for name in hits.columns if name not in KEPT_OF_FILES]
    return [name for name in told if any(value is not None for value in hits.columns[name])][:_FURTHER]


def _as_table(hits: Hits, level: float, unicode: bool, tower: str) -> Table:
    low, high = (bound.tolist() for bound in hits.interval(level))
    axis = tenths(low, high)
    names = further(hits)
    rows = []
    for place, hit in enumerate(hits):
        cells = ["" if hit.columns[name] is None else str(hit.columns[name]) for name in names]
        interval = f"{_short(low[place])}..{_short(high[place])}"
        bar = _bar(low[place], hit.mean, high[place], axis, _LETTERS[unicode])
        match = [] if hit.p_match is None else [percent(hit.p_match)]
        best = percent(hit.p_best)
        rows.append([seen_from_here(hit.id), *cells, f"{hit.mean:.3f}", interval, bar, best, *match])
    scale = f"{axis[0]:.1f}{f'{axis[1]:.1f}':>{_WIDTH - 3}}"
    columns = [tower, *names, "cosine", f"{100 * level:g} %", scale, "best"]
    columns += [] if hits.p_match is None else ["match"]
    return table(hits.query, columns, rows, texts=1 + len(names))


def _short(value: float) -> str:
    return f"{round(value, 2) + 0.0:.2f}"  # and no -0.00


def _bar(low: float, mean: float, high: float, axis: tuple[float, float], letters: tuple[str, str, str]) -> str:
    """An interval on an axis that all rows share."""
    start, middle, end = (
        min(_WIDTH - 1, max(0, round((_WIDTH - 1) * (value - axis[0]) / (axis[1] - axis[0]))))
        for value in (low, mean, high)
    )
    nothing, interval, point = letters
    bar = [interval if start <= place <= end else nothing for place in range(_WIDTH)]
    bar[middle] = point
    return "".join(bar)
