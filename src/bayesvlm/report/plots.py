"""The figures of a report: arrays in, a matplotlib `Figure` out, no global state.

Each takes the `width` it may fill, in inches (`theme.WIDE` for a desk, `theme.NARROW` for a phone), and arranges its
panels to fit. Numbers that are not finite are refused with the name of what holds them.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.report.theme import KINDS, METHODS, WIDE, Mark, colour, drawing_style, series_marks

Numbers = ArrayLike | Tensor

_LETTER = 0.62 / 72  # inches a letter takes, for each point of its size
_STEPS = (1, 2, 2.5, 5, 10)  # between the ticks of an axis, times a power of ten
_LARGEST_PANEL = 3.4  # inches a side
_CURVE_POINTS = 200  # of a curve that are drawn: more cannot be seen
_DARK_LETTERS, _LIGHT_LETTERS = "#111111", "#ffffff"  # on a cell of a heat map, whatever the theme


class ReliabilityLike(Protocol):
    """What `reliability_plot` reads of a `Reliability` of `bayesvlm.evaluation`: bins [B], their edges [B + 1]."""

    @property
    def edges(self) -> Numbers: ...
    @property
    def confidence(self) -> Numbers: ...
    @property
    def accuracy(self) -> Numbers: ...
    @property
    def count(self) -> Numbers: ...


class RiskCoverageLike(Protocol):
    """What `risk_coverage_plot` reads of a `RiskCoverage` of `bayesvlm.evaluation`: a curve of N points."""

    @property
    def coverage(self) -> Numbers: ...
    @property
    def risk(self) -> Numbers: ...


@dataclass(frozen=True)
class Metric:
    """One panel of `scores_plot`: the key in the scores, the panel's title, which way is better."""

    key: str
    title: str
    better: Literal["higher", "lower"]
    percent: bool = False  # shares, shown times a hundred


Score = tuple[float, float | None]  # a value, and the half-length of its error bar where there is one


@drawing_style()
def scores_plot(
    scores: Mapping[str, Mapping[str, Mapping[str, Score]]], metrics: Sequence[Metric], *, width: float = WIDE
) -> Figure:
    """A panel for each metric, a row for each test set, a dot with its error bar for each method.

    Args:
        scores: Set title -> method -> metric key -> (value, error). A method or metric may be absent from a set.
        metrics: The panels, in order; each must occur in the scores.
        width: Of the figure, in inches.
    """
    _not_empty("scores", scores)
    _not_empty("metrics", metrics)
    marks = series_marks((method for methods in scores.values() for method in methods), METHODS)
    rows, columns = arrange(len(metrics), width, panel=2.6)
    letters = _letters(0.24 * width + 0.4, 8.5)
    height = _row_height(scores, letters, least=0.16 + 0.1 * len(marks))
    figure = new_figure(width, 0.5 + rows * (height * len(scores) + 0.8))
    panels = figure.subplots(rows, columns, squeeze=False, sharey=True).flat
    for index, (axes, metric) in enumerate(zip(panels, metrics, strict=False)):
        axes.set_title(metric.title)
        axes.set_xlabel("higher is better →" if metric.better == "higher" else "← lower is better")
        _rows(axes, list(scores), letters if index % columns == 0 else None)
        _score_dots(axes, scores, metric, marks)
    for axes in list(figure.axes)[len(metrics) :]:
        axes.remove()
    _legend(figure, marks, line="")
    return settled(figure)


def _score_dots(
    axes: Axes, scores: Mapping[str, Mapping[str, Mapping[str, Score]]], metric: Metric, marks: Mapping[str, Mark]
) -> None:
    """The dots and error bars of one metric: each method a little below the one before it, so that ties show."""
    drawn = 0
    scale = 100.0 if metric.percent else 1.0
    for offset, (method, mark) in zip(_dodge(len(marks)), marks.items(), strict=True):
        found = [
            (row + offset, *methods[method][metric.key], f"{metric.key} of {method!r} on {title!r}")
            for row, (title, methods) in enumerate(scores.items())
            if metric.key in methods.get(method, {})
        ]
        rows = np.array([row for row, *_ in found])
        values = scale * np.array([_number(what, value) for _, value, _, what in found])
        errors = scale * np.array([_number(f"the error of {what}", error or 0.0) for *_, error, what in found])
        axes.hlines(rows, values - errors, values + errors, color=mark.colour, linewidth=1.5)
        axes.plot(values, rows, mark.marker, color=mark.colour, label=method, markersize=5.2, markeredgewidth=0)
        drawn += len(found)
    if not drawn:
        raise BayesVLMError(f"No score has the metric {metric.key!r}; use one of {_keys_of(scores)}.")


@drawing_style()
def reliability_plot(panels: Mapping[str, Mapping[str, ReliabilityLike]], *, width: float = WIDE) -> Figure:
    """Accuracy against confidence for each method, a panel for each test set; below it, where the answers fall.

    Empty bins are left out. The thin lines below are the share of the answers in each bin of confidence.
    """
    _not_empty("panels", panels)
    marks = series_marks((method for methods in panels.values() for method in methods), METHODS)
    rows, columns = arrange(len(panels), width, panel=1.7)
    side = min(width / columns, _LARGEST_PANEL)
    figure = new_figure(columns * side, 0.6 + rows * (1.15 * side + 0.45))
    grid = figure.add_gridspec(2 * rows, columns, height_ratios=(4, 1) * rows)
    for index, (title, methods) in enumerate(panels.items()):
        row, column = divmod(index, columns)
        main = figure.add_subplot(grid[2 * row, column])
        below = figure.add_subplot(grid[2 * row + 1, column], sharex=main)
        main.set_title(wrapped(title, side - 0.3, 9.5))
        main.plot([0, 1], [0, 1], color=colour("muted"), linewidth=0.9, linestyle=(0, (4, 3)))
        for method, mark in marks.items():
            if method in methods:
                _reliability_lines(main, below, methods[method], f"{method!r} on {title!r}", mark, method)
        main.set(xlim=(0, 1), ylim=(0, 1.02), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
        below.set(ylim=(0, None), yticks=())
        below.grid(visible=False)
        outer_labels(below, index, len(panels), columns, x="confidence", y="share")
        outer_labels(main, index, len(panels), columns, x="", y="accuracy")
        main.tick_params(labelbottom=False)
    _legend(figure, marks, line="-")
    return settled(figure)


def _reliability_lines(main: Axes, below: Axes, bins: ReliabilityLike, what: str, mark: Mark, label: str) -> None:
    edges = checked(f"the edges of {what}", bins.edges)
    counts = checked(f"the counts of {what}", bins.count)
    if counts.shape != (len(edges) - 1,):
        raise BayesVLMError(f"The counts of {what} are {counts.shape}; one diagram has {(len(edges) - 1,)} bins.")
    filled = counts > 0
    if not filled.any():
        raise BayesVLMError(f"All bins of {what} are empty; give at least one answer.")
    confidence = checked(f"the confidence of {what}", _array(bins.confidence)[filled])
    accuracy = checked(f"the accuracy of {what}", _array(bins.accuracy)[filled])
    main.plot(
        confidence, accuracy, mark.marker, linestyle="-", color=mark.colour, label=label, clip_on=False, markersize=4.5
    )
    below.stairs(counts / counts.sum(), edges, color=mark.colour, linewidth=1.2)


@drawing_style()
def risk_coverage_plot(panels: Mapping[str, Mapping[str, RiskCoverageLike]], *, width: float = WIDE) -> Figure:
    """The error rate among the answers a method is surest of, against their share; a panel for each test set."""
    _not_empty("panels", panels)
    marks = series_marks((method for methods in panels.values() for method in methods), METHODS)
    rows, columns = arrange(len(panels), width, panel=1.7)
    side = min(width / columns, _LARGEST_PANEL)
    figure = new_figure(columns * side, 0.6 + rows * (0.85 * side + 0.35))
    grid = figure.add_gridspec(rows, columns)
    for index, (title, methods) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[index])
        axes.set_title(wrapped(title, side - 0.3, 9.5))
        for method, mark in marks.items():
            if method in methods:
                coverage = checked(f"the coverage of {method!r} on {title!r}", methods[method].coverage)
                risk = checked(f"the risk of {method!r} on {title!r}", methods[method].risk)
                kept = _thinned(len(coverage))
                axes.plot(coverage[kept], risk[kept], color=mark.colour, label=method)
        axes.set(xlim=(0, 1), xticks=(0, 0.5, 1))
        axes.set_ylim(0, max(0.02, 1.05 * axes.dataLim.y1))
        axes.yaxis.set_major_locator(MaxNLocator(4, steps=_STEPS))
        outer_labels(axes, index, len(panels), columns, x="coverage", y="error rate", own_y=True)
    _legend(figure, marks, line="-", markers=False)
    return settled(figure)


@drawing_style()
def heat_maps(
    grids: Mapping[str, Numbers],
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    row_axis: str,
    column_axis: str,
    *,
    width: float = WIDE,
) -> Figure:
    """Heat maps [R, C] of the same rows and columns, each with its own colour bar, and its values where they fit."""
    _not_empty("grids", grids)
    shape = (len(row_labels), len(column_labels))
    rows, columns = arrange(len(grids), width, panel=3.2)
    side = min(width / columns, 1.6 * _LARGEST_PANEL)
    cell = (side - 1.5) / shape[1]
    figure = new_figure(columns * side, rows * (max(0.3, min(0.5, cell)) * shape[0] + 0.95))
    for index, (title, values) in enumerate(grids.items()):
        grid = checked(f"the heat map {title!r}", values)
        if grid.shape != shape:
            raise BayesVLMError(f"The heat map {title!r} is {grid.shape}; its labels want {shape} (rows, columns).")
        axes = figure.add_subplot(rows, columns, index + 1)
        axes.set_title(wrapped(title, side - 0.6, 9.5))
        axes.set_xlabel(column_axis)
        axes.set_ylabel(row_axis if index % columns == 0 else "")
        axes.set_xticks(range(shape[1]), column_labels)
        axes.set_yticks(range(shape[0]), _short_lines(row_labels) if index % columns == 0 else [""] * shape[0])
        _cells(figure, axes, grid, cell)
    return settled(figure)


def _cells(figure: Figure, axes: Axes, grid: NDArray[np.float64], cell: float) -> None:
    """The image, hairlines between its cells, its colour bar and, if a cell is wide enough, its values."""
    image = axes.imshow(grid, cmap="cividis", aspect="auto", interpolation="none")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    for line, size in ((axes.axvline, grid.shape[1]), (axes.axhline, grid.shape[0])):
        for edge in range(1, size):
            line(edge - 0.5, color=colour("paper"), linewidth=1.2)
    bar = figure.colorbar(image, ax=axes, pad=0.02, fraction=0.05, aspect=24, ticks=MaxNLocator(5, steps=_STEPS))
    assert bar.solids is not None
    bar.solids.set_rasterized(True)  # else 256 paths
    bar.outline.set_visible(False)
    decimals = _decimals(grid)
    if _LETTER * 7.5 * max(len(f"{value:.{decimals}f}") for value in grid.flat) > 0.95 * cell:
        return
    for (row, column), value in np.ndenumerate(grid):
        red, green, blue, _ = image.to_rgba(np.array(value))
        letters = _DARK_LETTERS if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.45 else _LIGHT_LETTERS
        axes.text(column, row, f"{value:.{decimals}f}", color=letters, size=7.5, ha="center", va="center")


@drawing_style()
def distribution_plot(
    groups: Mapping[str, Numbers], axis: str, highlight: Mapping[str, str] | None = None, *, width: float = WIDE
) -> Figure:
    """A row for each group: its median (dot), quartiles (bar), and 5th to 95th percentile (line).

    Args:
        groups: Group name -> its values; the rows, top to bottom.
        axis: What the values are.
        highlight: Group name -> its kind, such as "seen" or "unseen style": a colour each, with a legend.
        width: Of the figure, in inches.
    """
    _not_empty("groups", groups)
    kinds = dict.fromkeys(groups, "") if highlight is None else highlight
    missing = [group for group in groups if group not in kinds]
    if missing:
        raise BayesVLMError(f"The group {missing[0]!r} has no kind; give every group one, or none.")
    marks = series_marks((kinds[group] for group in groups), KINDS if highlight else METHODS[::-1])
    letters = _letters(0.25 * width + 0.3, 8.5)
    height = _row_height(groups, letters, least=0.27)
    figure = new_figure(width, 0.75 + height * len(groups) + (0.25 if highlight else 0))
    axes = figure.add_subplot()
    _rows(axes, list(groups), letters)
    for row, (group, values) in enumerate(groups.items()):
        numbers = checked(f"the group {group!r}", values)
        if not numbers.size:
            raise BayesVLMError(f"The group {group!r} is empty; leave it out.")
        low, first, median, third, high = np.percentile(numbers, (5, 25, 50, 75, 95))
        shade, marker = marks[kinds[group]]
        axes.hlines(row, low, high, color=shade, linewidth=1.2)
        axes.barh(row, third - first, left=first, height=0.5, color=shade, alpha=0.35, linewidth=0)
        axes.plot([median], [row], marker, color=shade, markersize=6.5)
    axes.set_xlabel(axis)
    if highlight:
        _legend(figure, marks, line="")
    return settled(figure)


@drawing_style()
def tau_plot(taus: Numbers, nlpd: Numbers, best: float, *, width: float = WIDE * 0.7) -> Figure:
    """Validation NLPD against the pseudo-data count tau on a logarithmic axis, with the one that was chosen."""
    x, y = checked("taus", taus), checked("nlpd", nlpd)
    chosen = _number("best", best)
    if x.shape != y.shape or not x.size or min(x.min(), chosen) <= 0:
        raise BayesVLMError(
            f"{x.size} taus and {y.size} NLPDs; give as many of each, at least one, and taus above zero."
        )
    order = np.argsort(x)
    figure = new_figure(width, 0.42 * width if width > 5 else 0.7 * width)
    axes = figure.add_subplot()
    axes.set_xscale("log")
    axes.plot(x[order], y[order], "o-", color=colour("bayes"), markersize=5)
    axes.axvline(chosen, color=colour("muted"), linewidth=1, linestyle=(0, (4, 3)))
    right = math.log(chosen) > math.log(x.min() * x.max()) / 2
    axes.annotate(
        f"best: τ = {chosen:.3g}" if chosen < 1000 else f"best: τ = {chosen:,.0f}",
        (chosen, 1),
        xycoords=axes.get_xaxis_transform(),
        xytext=(-6 if right else 6, -4),
        textcoords="offset points",
        ha="right" if right else "left",
        va="top",
    )
    axes.set_xlabel("pseudo-data count τ")
    axes.set_ylabel("validation NLPD")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:g}")
    return settled(figure)


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches that lays itself out."""
    figure = Figure(figsize=(width, height), layout="constrained")
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(w_pad=0.06, h_pad=0.06, wspace=0.03, hspace=0.04)
    return figure


def settled(figure: Figure) -> Figure:
    """Lay the figure out once and for all: matplotlib would move it a little every time it is drawn."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


def arrange(panels: int, width: float, panel: float) -> tuple[int, int]:
    """Rows and columns of panels at least `panel` inches wide, the rows as even as can be."""
    most = max(1, int(width / panel))
    rows = math.ceil(panels / most)
    return rows, math.ceil(panels / rows)


def _rows(axes: Axes, names: Sequence[str], letters: int | None) -> None:
    """One row per name, the first on top, every other on a band; names at the left, in lines of so many letters.

    A line is a text of its own: lines of one text are placed by the widths of matplotlib's font, not the page's.
    """
    axes.set(ylim=(len(names) - 0.5, -0.5), yticks=())
    axes.grid(visible=True, axis="x")
    axes.margins(x=0.07)
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
    axes.spines["left"].set_visible(False)
    for row in range(0, len(names), 2):
        axes.axhspan(row - 0.5, row + 0.5, color=colour("surface"), linewidth=0, zorder=0)
    for row, name in enumerate(names if letters else ()):
        lines = textwrap.wrap(name, letters or 1) or [""]
        for index, line in enumerate(lines):
            axes.annotate(
                line,
                (0, row),
                xycoords=axes.get_yaxis_transform(),
                xytext=(-7, 10.5 * ((len(lines) - 1) / 2 - index)),
                textcoords="offset points",
                size=8.5,
                ha="right",
                va="center_baseline",
            )


def _row_height(names: Iterable[str], letters: int, least: float) -> float:
    """Inches a row needs for the name with the most lines."""
    return max(least, 0.08 + 0.15 * max(len(textwrap.wrap(name, letters)) for name in names))


def outer_labels(axes: Axes, index: int, panels: int, columns: int, x: str, y: str, own_y: bool = False) -> None:
    """Axis labels at the left and at the lowest panel of each column only; ticks elsewhere speak for themselves."""
    if index + columns >= panels:
        axes.set_xlabel(x)
    if index % columns == 0:
        axes.set_ylabel(y)
    elif not own_y:
        axes.tick_params(labelleft=False)


def _legend(figure: Figure, marks: Mapping[str, Mark], line: Literal["-", ""], markers: bool = True) -> None:
    handles = [
        Line2D([], [], color=mark.colour, linestyle=line, marker=mark.marker if markers else "", label=name)
        for name, mark in marks.items()
    ]
    entries = [0.45 + _LETTER * 9 * len(name) for name in marks]
    width = figure.get_figwidth()
    columns = len(marks) if sum(entries) < width else max(1, int(width / max(entries)))
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, borderpad=0.1)


def _dodge(count: int) -> NDArray[np.float64]:
    """Offsets of `count` series inside a row of height one."""
    return (np.arange(count, dtype=np.float64) - (count - 1) / 2) * min(0.26, 0.72 / count)


def _thinned(size: int) -> NDArray[np.int64]:
    """At most `_CURVE_POINTS` indices of a curve, both ends among them."""
    return np.unique(np.linspace(0, size - 1, min(size, _CURVE_POINTS)).round().astype(np.int64))


def _decimals(grid: NDArray[np.float64]) -> int:
    """Decimals that tell the cells of a heat map apart: two digits of its span."""
    span = float(np.ptp(grid)) or abs(float(grid.flat[0])) or 1.0
    return int(np.clip(1 - math.floor(math.log10(span)), 0, 6))


def _letters(inches: float, size: float) -> int:
    """How many letters of a size fit."""
    return max(8, int(inches / (_LETTER * size)))


def wrapped(title: str, inches: float, size: float) -> str:
    """A panel's title in lines that fit."""
    return textwrap.fill(title, _letters(inches, 1.1 * size))  # bold is wider


def _short_lines(labels: Sequence[str]) -> list[str]:
    """Labels that leave room for the cells beside them."""
    return [textwrap.fill(label, 16) for label in labels]


def _number(what: str, value: float) -> float:
    return float(checked(what, value))


def _array(values: Numbers) -> NDArray[np.float64]:
    return np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values, dtype=np.float64)


def checked(what: str, values: Numbers) -> NDArray[np.float64]:
    """An array of floats, if all are finite."""
    numbers = _array(values)
    bad = numbers[~np.isfinite(numbers)]
    if bad.size:
        raise BayesVLMError(f"{what[:1].upper()}{what[1:]} is or has {bad.flat[0]}; a figure needs finite numbers.")
    return numbers


def _not_empty(what: str, values: Mapping[str, object] | Sequence[object]) -> None:
    if not values:
        raise BayesVLMError(f"{what} is empty; a figure needs at least one.")


def _keys_of(scores: Mapping[str, Mapping[str, Mapping[str, Score]]]) -> str:
    keys: Iterator[str] = (key for methods in scores.values() for metrics in methods.values() for key in metrics)
    return ", ".join(map(repr, dict.fromkeys(keys)))
