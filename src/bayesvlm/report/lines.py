"""Lines against lines: panels of series with bands, as findings of the reproduction describe them."""

from __future__ import annotations

from typing import Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.experiments.reproduction.findings import Lines, Panel
from bayesvlm.report.plots import arrange, checked, new_figure, settled, wrapped
from bayesvlm.report.theme import METHODS, WIDE, Mark, colour, drawing_style, series_marks

_MARKED = 16  # points of a line beyond which markers are noise


@drawing_style()
def lines_plot(lines: Lines, *, width: float = WIDE) -> Figure:
    """A panel for each of `lines.panels`; a series keeps its colour, and dashes tell its variants apart."""
    if not lines.panels or not all(panel.series for panel in lines.panels):
        raise BayesVLMError("A panel without a series cannot be drawn; give each at least one.")
    marks = series_marks((_family(series.name) for panel in lines.panels for series in panel.series), METHODS)
    rows, columns = arrange(len(lines.panels), width, panel=2.4 if len(lines.panels) > 3 else 2.9)
    figure = new_figure(width, 0.6 + rows * 2.35)
    grid = figure.add_gridspec(rows, columns)
    for index, panel in enumerate(lines.panels):
        axes = figure.add_subplot(grid[index])
        axes.set_title(wrapped(panel.title, width / columns - 0.5, 9.5))
        _draw(axes, panel, marks)
        axes.set_xlabel(panel.x)
        axes.set_ylabel(panel.y)
    names = {series.name: series.dashed for panel in lines.panels for series in panel.series}
    handles = [
        Line2D([], [], color=marks[_family(name)].colour, linestyle=_dash(dashed), label=name)
        for name, dashed in names.items()
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
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    for series in panel.series:
        what = f"{series.name!r} of {panel.title!r}"
        x, y = checked(f"the x of {what}", series.x), checked(what, series.y)
        mark = marks[_family(series.name)]
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


def _family(name: str) -> str:
    """What a series shares its colour with: "EPIG, cosine" and "EPIG, Wasserstein" are told apart by dashes alone."""
    return name.partition(",")[0]


def _dash(dashed: bool) -> Literal["-", "--"]:
    return "--" if dashed else "-"
