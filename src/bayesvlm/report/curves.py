"""Learning curves: a score against the number of labels, for every strategy, with its standard error over the seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.report.plots import Metric, Score, arrange, checked, new_figure, outer_labels, settled
from bayesvlm.report.theme import MARKERS, WIDE, colour, drawing_style

_COLOURS = {"random": "plain", "entropy": "temperature", "bald": "unseen-style", "epig": "bayes"}
"""A colour for what is scored; strategies that rank the pool are dashed, those that look at the target are not."""

Curves = Mapping[str, Mapping[str, Mapping[int, Score]]]  # metric -> strategy -> labels -> value and error


@drawing_style()
def learning_curves(curves: Curves, metrics: Sequence[Metric], *, width: float = WIDE) -> Figure:
    """A panel for each metric, a line for each strategy; bands are standard errors."""
    if not curves or not metrics:
        raise BayesVLMError("There are no curves to draw; run at least one strategy.")
    strategies = list(dict.fromkeys(name for of in curves.values() for name in of))
    rows, columns = arrange(len(metrics), width, panel=2.6)
    figure = new_figure(width, 0.7 + rows * 2.5)
    grid = figure.add_gridspec(rows, columns)
    for index, metric in enumerate(metrics):
        axes = figure.add_subplot(grid[index])
        arrow = "higher is better" if metric.better == "higher" else "lower is better"
        axes.set_title(f"{metric.title}, {arrow}")
        scale = 100.0 if metric.percent else 1.0
        for strategy, points in curves[metric.key].items():
            shade, style, marker = _look(strategy)
            labels = sorted(points)
            what = f"{metric.key} of {strategy!r}"
            values = scale * checked(what, [points[count][0] for count in labels])
            errors = scale * checked(f"the error of {what}", [points[count][1] or 0.0 for count in labels])
            axes.fill_between(labels, values - errors, values + errors, color=shade, alpha=0.15, linewidth=0)
            axes.plot(labels, values, linestyle=style, color=shade, marker=marker, markersize=4.5)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        outer_labels(axes, index, len(metrics), columns, x="labels", y="", own_y=True)
    handles = [
        Line2D([], [], color=shade, linestyle=style, marker=marker, label=strategy)
        for strategy in strategies
        for shade, style, marker in [_look(strategy)]
    ]
    figure.legend(handles=handles, loc="outside upper left", ncols=4 if width > 5 else 2, borderpad=0.1)
    return settled(figure)


def _look(strategy: str) -> tuple[str, Literal["-", "--"], str]:
    score = strategy.removeprefix("targeted-")
    aimed = strategy.startswith("targeted-") or score == "epig"
    place = list(_COLOURS).index(score)
    return colour(_COLOURS[score]), "-" if aimed else "--", MARKERS[place]
