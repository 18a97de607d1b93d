"""What the entropy of an answer tells of its error: two figures for each way to predict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.report.plots import Numbers, arrange, checked, new_figure, outer_labels, settled, wrapped
from bayesvlm.report.theme import METHODS, WIDE, colour, drawing_style, series_marks

_BINS = 24


class Answers(NamedTuple):
    """The answers of one method on one set."""

    entropy: Numbers  # [N], nats
    error: Numbers  # [N], 1 - the probability of the right answer
    correct: Numbers  # [N], 1 where the answer is right, else 0
    classes: int


@drawing_style()
def entropy_plot(panels: Mapping[str, Mapping[str, Answers]], *, width: float = WIDE) -> Figure:
    """How the entropies of right (full lines) and wrong answers (dashed) are spread, a panel for each set.

    Each line encloses its share of all answers, so that one can see how many errors are made in good faith.
    """
    marks = series_marks((method for methods in panels.values() for method in methods), METHODS)
    rows, columns = arrange(len(panels), width, panel=1.9)
    figure = new_figure(width, 0.75 + rows * 1.75)
    grid = figure.add_gridspec(rows, columns)
    for index, (title, methods) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[index])
        axes.set_title(wrapped(title, width / columns - 0.3, 9.5))
        for method, answers in methods.items():
            entropy, correct = _columns(answers, f"{method!r} on {title!r}")
            edges = np.linspace(0, math.log(answers.classes), _BINS + 1)
            for right, style in ((True, "-"), (False, (0, (3, 2)))):
                share = np.histogram(entropy[correct == right], edges)[0] / len(entropy)
                axes.stairs(share, edges, color=marks[method].colour, linestyle=style, linewidth=1.3)
        axes.set(xlim=(0, None), ylim=(0, None))
        axes.yaxis.set_major_locator(MaxNLocator(4))
        outer_labels(axes, index, len(panels), columns, x="entropy (nats)", y="share of answers", own_y=True)
    handles = [Line2D([], [], color=mark.colour, label=method) for method, mark in marks.items()]
    handles += [Line2D([], [], color=colour("muted"), label="right")]
    handles += [Line2D([], [], color=colour("muted"), linestyle=(0, (3, 2)), label="wrong")]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles) if width > 5 else 3, borderpad=0.1)
    return settled(figure)


@drawing_style()
def quadrants_plot(panels: Mapping[str, Mapping[str, Answers]], *, width: float = WIDE) -> Figure:
    """Error against entropy, a panel for each set and method, with the share of answers in each quarter.

    Top left are answers that are wrong and sure of it, which a calibrated model does not give; bottom left those that
    are right and sure; on the right those that say they do not know.
    """
    cells = [(title, method, answers) for title, of in panels.items() for method, answers in of.items()]
    if not cells:
        raise BayesVLMError("panels is empty; a figure needs at least one.")
    marks = series_marks((_kind(method) for _, method, _ in cells), METHODS)
    rows, columns = arrange(len(cells), width, panel=1.9)
    if len(panels) > 1 and columns >= (each := max(map(len, panels.values()))):
        columns = columns // each * each  # the methods of a set stay in one row
        rows = math.ceil(len(cells) / columns)
    figure = new_figure(width, 0.3 + rows * 1.95)
    grid = figure.add_gridspec(rows, columns)
    for index, (title, method, answers) in enumerate(cells):
        axes = figure.add_subplot(grid[index])
        axes.set_title(wrapped(f"{title}, {method}", width / columns - 0.3, 9.5))
        _quarters(axes, answers, marks[_kind(method)].colour, f"{method!r} on {title!r}")
        outer_labels(axes, index, len(cells), columns, x="entropy (nats)", y="error 1 - p(right)")
    return settled(figure)


def _kind(method: str) -> str:
    """What "Bayes, zero-shot" and "Bayes, 200 labels" share their colour as."""
    return method.partition(",")[0]


def _quarters(axes: Axes, answers: Answers, shade: str, what: str) -> None:
    entropy, error = checked(f"the entropy of {what}", answers.entropy), checked(f"the error of {what}", answers.error)
    most = math.log(answers.classes)
    counts, _, _ = np.histogram2d(entropy, error, bins=(_BINS, _BINS), range=((0, most), (0, 1)))
    shares = np.log1p(counts.T) / np.log1p(counts.max())
    shades = np.empty((*shares.shape, 4))
    shades[..., :3] = to_rgb(shade)
    shades[..., 3] = np.where(shares > 0, 0.15 + 0.85 * shares, 0)  # the page shows through, in light and in dark
    axes.imshow(shades, origin="lower", extent=(0, most, 0, 1), aspect="auto", interpolation="none")
    axes.grid(visible=False)
    axes.axvline(most / 2, color=colour("muted"), linewidth=0.8)
    axes.axhline(0.5, color=colour("muted"), linewidth=0.8)
    for sure in (True, False):
        for wrong in (True, False):
            share = np.mean(((entropy < most / 2) == sure) & ((error > 0.5) == wrong))
            axes.text(
                0.03 if sure else 0.97,
                0.96 if wrong else 0.04,
                f"{share:.0%}",
                transform=axes.transAxes,
                ha="left" if sure else "right",
                va="top" if wrong else "bottom",
                size=8.5,
                bbox={"facecolor": colour("paper"), "edgecolor": "none", "pad": 1.5},
            )
    axes.set(xlim=(0, most), ylim=(0, 1), yticks=(0, 0.5, 1))


def _columns(answers: Answers, what: str) -> tuple[np.ndarray, np.ndarray]:
    entropy = checked(f"the entropy of {what}", answers.entropy)
    return entropy, checked(f"the answers of {what}", answers.correct) > 0.5
