"""What there is to see of a finding: tables, and drawings that draw themselves at any width.

The terminal prints the tables, the page shows everything; both take the same objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.report.adaptation import METRICS
from bayesvlm.report.blocks import Table
from bayesvlm.report.curves import learning_curves
from bayesvlm.report.entropy import Answers, quadrants_plot
from bayesvlm.report.plots import arrange, checked, heat_maps, new_figure, settled, wrapped
from bayesvlm.report.theme import METHODS, WIDE, Mark, colour, drawing_style, series_marks

_MARKED = 16  # points of a line beyond which markers are noise


@dataclass(frozen=True)
class Series:
    """One line; `error` is drawn as a band around it."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None
    dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """Lines that share their axes; `mark` is an x that is pointed out, such as what was chosen."""

    title: str
    x: str
    y: str
    series: Sequence[Series]
    log_x: bool = False
    mark: float | None = None


@dataclass(frozen=True)
class Lines:
    """Panels of lines, one legend for all of them."""

    panels: Sequence[Panel]
    caption: str
    alt: str

    @drawing_style()
    def draw(self, width: float = WIDE) -> Figure:
        """Every panel; a solid line has a colour of its own, a dashed one that of its solid twin."""
        if not self.panels or not all(panel.series for panel in self.panels):
            raise BayesVLMError("A panel without a series cannot be drawn; give each at least one.")
        names = {series.name: series.dashed for panel in self.panels for series in panel.series}
        twins = {name: _twin(name, names) for name in names}
        by_twin = series_marks(twins.values(), METHODS)
        marks = {name: by_twin[twin] for name, twin in twins.items()}
        rows, columns = arrange(len(self.panels), width, panel=2.4 if len(self.panels) > 3 else 2.9)
        figure = new_figure(width, 0.6 + rows * 2.35)
        grid = figure.add_gridspec(rows, columns)
        for index, panel in enumerate(self.panels):
            axes = figure.add_subplot(grid[index])
            axes.set_title(wrapped(panel.title, width / columns - 0.5, 9.5))
            _draw(axes, panel, marks)
            axes.set_xlabel(panel.x)
            axes.set_ylabel(panel.y)
        handles = [
            Line2D([], [], color=marks[name].colour, linestyle=_dash(dashed), label=name)
            for name, dashed in names.items()
        ]
        columns = max(1, int(width / (0.6 + 0.078 * max(map(len, names)))))
        figure.legend(handles=handles, loc="outside upper left", ncols=columns, borderpad=0.1)
        return settled(figure)


@dataclass(frozen=True)
class HeatMaps:
    """Grids of numbers side by side: title -> [rows, columns]."""

    grids: Mapping[str, Sequence[Sequence[float]]]
    rows: Sequence[str]
    columns: Sequence[str]
    row_title: str
    column_title: str
    caption: str
    alt: str

    def draw(self, width: float = WIDE) -> Figure:
        """The grids, each with a colour bar."""
        return heat_maps(self.grids, self.rows, self.columns, self.row_title, self.column_title, width=width)


@dataclass(frozen=True)
class LearningCurves:
    """Scores against labels: metric -> strategy -> labels -> [mean, standard error over the seeds, or None]."""

    curves: Mapping[str, Mapping[str, Mapping[str, tuple[float, float | None]]]]
    caption: str
    alt: str

    def draw(self, width: float = WIDE) -> Figure:
        """A panel for each metric."""
        curves = {
            metric: {
                strategy: {int(labels): (value, error) for labels, (value, error) in points.items()}
                for strategy, points in of.items()
            }
            for metric, of in self.curves.items()
        }
        return learning_curves(curves, [metric for metric in METRICS if metric.key in curves], width=width)


@dataclass(frozen=True)
class Quadrants:
    """Error against entropy: panel -> {"entropy": [N], "error": [N], "correct": [N]}; `classes` to choose from."""

    title: str
    answers: Mapping[str, Mapping[str, Sequence[float]]]
    classes: int
    caption: str
    alt: str

    def draw(self, width: float = WIDE) -> Figure:
        """A histogram for each panel."""
        answers = {
            name: Answers(of["entropy"], of["error"], of["correct"], self.classes) for name, of in self.answers.items()
        }
        return quadrants_plot({self.title: answers}, width=width)


Drawing = Lines | HeatMaps | LearningCurves | Quadrants
Exhibit = Table | Drawing


def _draw(axes: Axes, panel: Panel, marks: dict[str, Mark]) -> None:
    if panel.log_x:
        axes.set_xscale("log")
    else:
        whole = all(float(x).is_integer() for series in panel.series for x in series.x)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=whole))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    for series in panel.series:
        what = f"{series.name!r} of {panel.title!r}"
        x, y = checked(f"the x of {what}", series.x), checked(what, series.y)
        mark = marks[series.name]
        marker = mark.marker if len(x) <= _MARKED else ""
        if series.error is not None:
            error = checked(f"the error of {what}", series.error)
            axes.fill_between(x, y - error, y + error, color=mark.colour, alpha=0.15, linewidth=0)
        axes.plot(x, y, color=mark.colour, linestyle=_dash(series.dashed), marker=marker, markersize=4.5)
    if panel.log_x:
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter("{x:g}")
    if panel.mark is not None:
        axes.axvline(panel.mark, color=colour("muted"), linewidth=1, linestyle=(0, (4, 3)))


def _twin(name: str, names: Mapping[str, bool]) -> str:
    """The solid line that a dashed one goes with: "EPIG, Wasserstein" or "EPIG" for "EPIG, cosine"; else itself."""
    stem = name.rpartition(",")[0]
    if not names[name] or not stem:
        return name
    solid = [other for other, dashed in names.items() if not dashed]
    return next((other for other in solid if stem in (other, other.rpartition(",")[0])), name)


def _dash(dashed: bool) -> Literal["-", "--"]:
    return "--" if dashed else "-"
