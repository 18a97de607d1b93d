"""Lines against lines: panels of series with bands, as findings of the reproduction describe them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.report.plots import arrange, checked, new_figure, settled, wrapped
from bayesvlm.report.theme import METHODS, WIDE, Mark, colour, drawing_style, series_marks
from bayesvlm_paper.findings import Lines, Panel

_MARKED = 16  # points of a line beyond which markers are noise


@drawing_style()
def lines_plot(lines: Lines, *, width: float = WIDE) -> Figure:
    """A panel for each of `lines.panels`; a solid line has a colour of its own, a dashed one that of its solid twin."""
    if not lines.panels or not all(panel.series for panel in lines.panels):
        raise BayesVLMError("A panel without a series cannot be drawn; give each at least one.")
    names = {series.name: series.dashed for panel in lines.panels for series in panel.series}
    twins = {name: _twin(name, names) for name in names}
    by_twin = series_marks(twins.values(), METHODS)
    marks = {name: by_twin[twin] for name, twin in twins.items()}
    rows, columns = arrange(len(lines.panels), width, panel=2.4 if len(lines.panels) > 3 else 2.9)
    figure = new_figure(width, 0.6 + rows * 2.35)
    grid = figure.add_gridspec(rows, columns)
    for index, panel in enumerate(lines.panels):
        axes = figure.add_subplot(grid[index])
        axes.set_title(wrapped(panel.title, width / columns - 0.5, 9.5))
        _draw(axes, panel, marks)
        axes.set_xlabel(panel.x)
        axes.set_ylabel(panel.y)
    handles = [
        Line2D([], [], color=marks[name].colour, linestyle=_dash(dashed), label=name) for name, dashed in names.items()
    ]
    longest = max(map(len, names))
    figure.legend(
        handles=handles, loc="outside upper left", ncols=max(1, int(width / (0.6 + 0.078 * longest))), borderpad=0.1
    )
    return settled(figure)


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
