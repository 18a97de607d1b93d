"""The palette, once, for pages and figures alike; and the matplotlib settings that go with it.

A figure is drawn in the light shades. They are all different, so `svg.inline_svg` can replace each by its CSS
variable, and one drawing serves light pages, dark pages and paper.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import NamedTuple

import matplotlib

from bayesvlm.core.errors import BayesVLMError

WIDE = 9.6
"""Inches: a figure for a desk."""
NARROW = 3.6
"""Inches: a figure for a phone."""
PIXELS_PER_INCH = 100  # on a page: 9 point letters come out 12.5 pixels tall


class Shade(NamedTuple):
    """One colour of the palette, on a light and on a dark page."""

    light: str
    dark: str


PALETTE: Mapping[str, Shade] = MappingProxyType(
    {
        "paper": Shade("#fdfdfb", "#14171a"),
        "surface": Shade("#f3f4f1", "#1d2125"),
        "grid": Shade("#dcdfe2", "#343a41"),
        "muted": Shade("#5a636d", "#a0a9b3"),
        "ink": Shade("#1c2228", "#e9ebed"),
        "accent": Shade("#1b5fb4", "#7db7ff"),
        "plain": Shade("#7b838c", "#a3abb4"),
        "temperature": Shade("#c96f00", "#f2a33c"),
        "bayes": Shade("#1769d2", "#5ea6ff"),
        "seen": Shade("#1a9a89", "#56d6c3"),
        "unseen-style": Shade("#7f63dc", "#a98bf0"),
        "unseen-concept": Shade("#98175c", "#e2508c"),
        "out-of-domain": Shade("#9c7010", "#dcbf7c"),
    }
)
METHODS = ("plain", "temperature", "bayes")
KINDS = ("seen", "unseen-style", "unseen-concept", "out-of-domain")
MARKERS = ("o", "s", "D", "^", "v", "P", "X")  # a second sign beside the colour


class Mark(NamedTuple):
    """How one series is drawn: its colour (the light shade) and its marker."""

    colour: str
    marker: str


def colour(name: str) -> str:
    """The light shade of a colour of the palette, which `svg.inline_svg` makes theme-aware."""
    return PALETTE[name].light


def series_marks(names: Iterable[str], family: tuple[str, ...]) -> dict[str, Mark]:
    """A colour and a marker for each series: its own if the palette knows its name, else the next one left.

    Args:
        names: Series names such as "Bayes" or "unseen style"; case and spaces do not matter.
        family: The part of the palette to look in first, `METHODS` or `KINDS`.
    """
    names = list(dict.fromkeys(names))
    order = family + tuple(name for name in METHODS + KINDS if name not in family)
    if len(names) > len(order):
        raise BayesVLMError(f"{len(names)} series are too many to tell apart; draw at most {len(order)} in a figure.")
    owners = {slug: name for name in reversed(names) if (slug := "-".join(name.lower().split())) in family}
    known = {name: slug for slug, name in owners.items()}
    spare = iter([slug for slug in order if slug not in owners])
    slugs = {name: known.get(name) or next(spare) for name in names}
    return {name: Mark(colour(slug), MARKERS[order.index(slug)]) for name, slug in slugs.items()}


def css_variables(theme: str) -> str:
    """The palette as CSS declarations (`--ink: #1c2228; ...`) for the theme "light" or "dark"."""
    return " ".join(f"--{name}: {getattr(shade, theme)};" for name, shade in PALETTE.items())


@contextmanager
def drawing_style() -> Iterator[None]:
    """The matplotlib settings of every figure here, while the context lasts: to make it and to save it.

    They start from matplotlib's own defaults, so that a user's matplotlibrc changes nothing.
    """
    ink, muted, grid, paper = (colour(name) for name in ("ink", "muted", "grid", "paper"))
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a browser has more letters than matplotlib
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(
            {
                "font.family": "DejaVu Sans",  # comes with matplotlib: the same layout on every machine
                "font.size": 9,
                "text.color": ink,
                "text.parse_math": False,  # a dollar in a name is a dollar
                "axes.formatter.useoffset": False,
                "axes.labelcolor": muted,
                "axes.labelsize": 8.5,
                "axes.titlecolor": ink,
                "axes.titlelocation": "left",
                "axes.titlesize": 9.5,
                "axes.titleweight": "bold",
                "axes.titlepad": 7,
                "axes.edgecolor": grid,
                "axes.facecolor": "none",
                "axes.linewidth": 0.8,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.axisbelow": True,
                "axes.grid": True,
                "grid.color": grid,
                "grid.linewidth": 0.7,
                "xtick.color": grid,
                "ytick.color": grid,
                "xtick.labelcolor": muted,
                "ytick.labelcolor": muted,
                "xtick.labelsize": 8,
                "ytick.labelsize": 8,
                "xtick.major.size": 0,
                "ytick.major.size": 0,
                "xtick.minor.size": 0,
                "ytick.minor.size": 0,
                "lines.linewidth": 1.6,
                "lines.markersize": 6,
                "lines.markeredgecolor": paper,  # a rim, so that neighbours stay apart
                "lines.markeredgewidth": 0.7,
                "legend.frameon": False,
                "legend.fontsize": 9,
                "legend.handletextpad": 0.4,
                "legend.columnspacing": 1.6,
                "figure.facecolor": "none",
                "savefig.facecolor": paper,
                "svg.fonttype": "none",
                "svg.hashsalt": "bayesvlm",
            }
        )
        yield
