"""Figures of what is familiar and what is not: scores in and out, ROC, and what prediction sets hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.report.plots import (
    Metric,
    Numbers,
    Score,
    arrange,
    checked,
    new_figure,
    outer_labels,
    scores_plot,
    settled,
    wrapped,
)
from bayesvlm.report.theme import KINDS, METHODS, WIDE, colour, drawing_style, series_marks

_BINS = 40
_LARGEST_PANEL = 3.4  # inches a side
_CURVE_POINTS = 300  # of a curve that are drawn
_CLASSES = 60  # that have room in a row each
Dashes = Literal["-"] | tuple[float, Sequence[float]]


class Curve(NamedTuple):
    """A receiver operating characteristic: the share of unknown images that are found, against that of known ones
    that are flagged with them."""

    false: NDArray[np.float64]  # [P], of the familiar images
    true: NDArray[np.float64]  # [P], of the unfamiliar ones


def roc(inside: Numbers, outside: Numbers) -> Curve:  # [N], [M], higher = familiar
    """Both shares at every threshold, from none flagged to all; equal scores are flagged together."""
    known, unknown = checked("the familiar scores", inside), checked("the unfamiliar scores", outside)
    if not known.size or not unknown.size:
        raise BayesVLMError("A curve needs images of both kinds; give at least one of each.")
    levels = np.unique(np.concatenate([known, unknown]))
    shares = [np.searchsorted(np.sort(scores), levels, side="right") / len(scores) for scores in (known, unknown)]
    return Curve(*(np.concatenate([[0.0], share]) for share in shares))


@drawing_style()
def familiarity_plot(
    panels: Mapping[str, Mapping[str, Numbers]],
    kinds: Mapping[str, str],
    thresholds: Mapping[str, float] | None = None,
    *,
    width: float = WIDE,
) -> Figure:
    """How the scores of each set are spread, a panel for each score; every line encloses the same area.

    Args:
        panels: Score -> set -> its values, higher = familiar.
        kinds: Set -> what it is, "seen", "unseen style" (known, but shifted) or "out of domain": the colour.
        thresholds: Score -> where images begin to be flagged, drawn where it is known.
        width: Of the figure, in inches.
    """
    if not panels:
        raise BayesVLMError("panels is empty; a figure needs at least one score.")
    sets = list(dict.fromkeys(name for of in panels.values() for name in of))
    marks = series_marks(dict.fromkeys(kinds[name] for name in sets), KINDS)
    styles = _line_styles(sets, kinds)
    rows, columns = arrange(len(panels), width, panel=2.6)
    names = _legend_rows(sets, width)
    figure = new_figure(width, 0.45 + 0.19 * names + rows * 1.75)
    grid = figure.add_gridspec(rows, columns)
    for index, (score, of) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[index])
        axes.set_title(wrapped(score, width / columns - 0.3, 9.5))
        values = {name: checked(f"the {score} of {name!r}", found) for name, found in of.items()}
        low, high = (float(end(list(map(end, values.values())))) for end in (np.min, np.max))
        edges = np.linspace(low, high if high > low else low + 1, _BINS + 1)
        for name, found in values.items():
            share = np.histogram(found, edges)[0] / len(found)
            axes.stairs(share, edges, color=marks[kinds[name]].colour, linestyle=styles[name], linewidth=1.3)
            if kinds[name] == "seen":
                axes.stairs(share, edges, color=marks[kinds[name]].colour, alpha=0.15, fill=True)
        if thresholds and score in thresholds:
            axes.axvline(thresholds[score], color=colour("ink"), linewidth=0.9, linestyle=(0, (1, 1.5)))
        axes.set(xlim=(edges[0], edges[-1]), ylim=(0, None))
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.yaxis.set_major_locator(MaxNLocator(3))
        outer_labels(axes, index, len(panels), columns, x="more familiar →", y="share", own_y=True)
    handles = [
        Line2D([], [], color=marks[kinds[name]].colour, linestyle=styles[name], label=_shortened(name)) for name in sets
    ]
    if thresholds:
        handles.append(Line2D([], [], color=colour("ink"), linewidth=0.9, linestyle=(0, (1, 1.5)), label="threshold"))
    _figure_legend(figure, handles, width)
    return settled(figure)


@drawing_style()
def roc_plot(panels: Mapping[str, Mapping[str, Curve]], *, width: float = WIDE) -> Figure:
    """Unknown images that are found against known ones flagged with them, a panel for each set, a line per score."""
    if not panels:
        raise BayesVLMError("panels is empty; a figure needs at least one set.")
    marks = series_marks((score for of in panels.values() for score in of), METHODS[::-1])
    rows, columns = arrange(len(panels), width, panel=1.9)
    side = min(width / columns, _LARGEST_PANEL)
    figure = new_figure(columns * side, 0.45 + 0.19 * _legend_rows(list(marks), columns * side) + rows * (side + 0.2))
    grid = figure.add_gridspec(rows, columns)
    for index, (title, of) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[index])
        axes.set_title(wrapped(title, side - 0.3, 9.5))
        axes.plot([0, 1], [0, 1], color=colour("muted"), linewidth=0.9, linestyle=(0, (4, 3)))
        for score, curve in of.items():
            kept = np.unique(np.linspace(0, len(curve.true) - 1, _CURVE_POINTS).round().astype(int))
            axes.plot(curve.false[kept], curve.true[kept], color=marks[score].colour, linewidth=1.4, label=score)
        axes.set(xlim=(0, 1), ylim=(0, 1.01), xticks=(0, 0.5, 1), yticks=(0, 0.5, 1))
        outer_labels(axes, index, len(panels), columns, x="known, flagged", y="unknown, found")
    handles = [Line2D([], [], color=mark.colour, label=score) for score, mark in marks.items()]
    _figure_legend(figure, handles, columns * side)
    return settled(figure)


@drawing_style()
def sizes_plot(
    sets: Mapping[str, Mapping[str, Score]],
    coverage: Mapping[str, Mapping[str, Score]],
    nominal: float,
    *,
    width: float = WIDE,
) -> Figure:
    """The mean size of prediction sets, and the share that holds the right class, a row for each set, a dot per method.

    Args:
        sets: Set -> method -> mean size and its standard error; the familiar set first, then by how far it is shifted.
        coverage: The same of the share of sets that hold the right class.
        nominal: The share that was asked for.
        width: Of the figure, in inches.
    """
    both = {
        name: {method: {"size": sets[name][method], "coverage": coverage[name][method]} for method in sets[name]}
        for name in sets
    }
    metrics = [
        Metric("size", "Classes in a set", "lower"),
        Metric("coverage", "Sets with the right class (%)", "higher", True),
    ]
    figure = scores_plot(both, metrics, width=width)
    figure.axes[1].axvline(100 * nominal, color=colour("ink"), linewidth=0.9, linestyle=(0, (1, 1.5)))
    figure.axes[1].set_xlabel(f"{100 * nominal:g} % were asked for (dotted)")
    return settled(figure)


@drawing_style()
def class_coverage_plot(
    names: Sequence[str], covered: Numbers, counts: Numbers, nominal: float, *, width: float = WIDE
) -> Figure:
    """The share of a class's images whose prediction set holds it: a dot per class, from the least covered on.

    Args:
        names: Of the classes, [C].
        covered: Images whose set holds their class, [C].
        counts: Images of the class, [C]; classes without any are left out.
        nominal: The share that was asked for.
        width: Of the figure, in inches.
    """
    hits, images = checked("covered", covered), checked("counts", counts)
    if hits.shape != images.shape or len(names) != len(images):
        raise BayesVLMError(f"{len(names)} names, {hits.shape} covered and {images.shape} counts; give one per class.")
    there = np.flatnonzero(images)
    if not there.size:
        raise BayesVLMError("No class has an image; a figure needs at least one.")
    shares = hits[there] / images[there]
    order = np.lexsort((images[there], shares))
    few = len(there) <= _CLASSES and width > 5
    figure = new_figure(width, 2.6 if few else 2.2)
    axes = figure.add_subplot()
    area = 12 + 60 * images[there][order] / images[there].max()
    places = np.arange(len(there))
    axes.scatter(places, 100 * shares[order], s=area, color=colour("bayes"), alpha=0.6, linewidth=0, clip_on=False)
    axes.axhline(100 * nominal, color=colour("ink"), linewidth=0.9, linestyle=(0, (1, 1.5)))
    axes.set(ylim=(-2, 103), xlim=(-0.5, len(there) - 0.5))
    axes.set_ylabel("% of its images covered")
    if few:
        axes.set_xticks(places, [_shortened(names[there[row]], 22) for row in order], rotation=60, ha="right", size=7.5)
    else:
        axes.set_xlabel(f"{len(there)} classes, the least covered first")
    axes.grid(visible=few, axis="x")
    return settled(figure)


def _line_styles(sets: Sequence[str], kinds: Mapping[str, str]) -> dict[str, Dashes]:
    """Sets of one kind share its colour and differ in their dashes."""
    dashes: list[Dashes] = ["-", (0, (4, 2)), (0, (1, 1)), (0, (6, 2, 1, 2)), (0, (2, 3))]
    seen: dict[str, int] = {}
    found: dict[str, Dashes] = {}
    for name in sets:
        found[name] = dashes[seen.get(kinds[name], 0) % len(dashes)]
        seen[kinds[name]] = seen.get(kinds[name], 0) + 1
    return found


def _columns(names: Sequence[str], width: float) -> int:
    longest = max(len(_shortened(name)) for name in names)
    return max(1, min(len(names), int(width / (0.5 + 0.078 * longest))))


def _legend_rows(names: Sequence[str], width: float) -> int:
    return -(-len(names) // _columns(names, width))


def _figure_legend(figure: Figure, handles: Sequence[Line2D], width: float) -> None:
    columns = _columns([str(handle.get_label()) for handle in handles], width)
    figure.legend(handles=list(handles), loc="outside upper left", ncols=columns, borderpad=0.1)


def _shortened(name: str, letters: int = 34) -> str:
    return name if len(name) <= letters else f"{name[: letters - 1]}…"


@drawing_style()
def p_value_plot(p_values: Numbers, level: float, *, width: float = WIDE * 0.7) -> Figure:
    """How p-values are spread, with the level below which images are flagged, and how familiar images would be."""
    values = checked("the p-values", p_values)
    if not values.size or values.min() < 0 or values.max() > 1:
        raise BayesVLMError("There are no p-values to draw, or some are not between 0 and 1.")
    figure = new_figure(width, 2.1)
    axes = figure.add_subplot()
    share = np.histogram(values, 20, range=(0, 1))[0] / len(values)
    axes.stairs(share, np.linspace(0, 1, 21), color=colour("out-of-domain"), fill=True, alpha=0.3)
    axes.stairs(share, np.linspace(0, 1, 21), color=colour("out-of-domain"), linewidth=1.3)
    axes.axhline(1 / 20, color=colour("seen"), linewidth=1, linestyle=(0, (4, 3)))
    axes.axvline(level, color=colour("ink"), linewidth=0.9, linestyle=(0, (1, 1.5)))
    axes.set(xlim=(0, 1), ylim=(0, None))
    axes.set_xlabel("p-value")
    axes.set_ylabel("share")
    axes.yaxis.set_major_locator(MaxNLocator(3))
    return settled(figure)
