"""Self-contained HTML reports: the palette, the figures, the page and its blocks.

The plots are pure functions from arrays to matplotlib figures; `render` sets blocks of text, tables, plots, pictures
and commands on one page that needs no network, in light and dark, on a phone and on paper.
"""

from bayesvlm.report.blocks import Answer, Card, Commands, Findings, Found, Gallery, Page, Plot, Section, Table, Text
from bayesvlm.report.page import render, write_page
from bayesvlm.report.plots import (
    Metric,
    distribution_plot,
    heat_maps,
    reliability_plot,
    risk_coverage_plot,
    scores_plot,
    tau_plot,
)
from bayesvlm.report.svg import inline_svg, save_png
from bayesvlm.report.theme import NARROW, WIDE

__all__ = [
    "NARROW",
    "WIDE",
    "Answer",
    "Card",
    "Commands",
    "Findings",
    "Found",
    "Gallery",
    "Metric",
    "Page",
    "Plot",
    "Section",
    "Table",
    "Text",
    "distribution_plot",
    "heat_maps",
    "inline_svg",
    "reliability_plot",
    "render",
    "risk_coverage_plot",
    "save_png",
    "scores_plot",
    "tau_plot",
    "write_page",
]
