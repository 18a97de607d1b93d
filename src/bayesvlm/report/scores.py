"""The figures every evaluation is shown with: scores, reliability, risk and coverage."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from bayesvlm.experiments.scoring import Scores
from bayesvlm.report.plots import Metric, reliability_plot, risk_coverage_plot, scores_plot

METRICS = (
    Metric("top1", "Top-1 (%)", "higher", percent=True),
    Metric("nlpd", "NLPD (nats)", "lower"),
    Metric("ece", "ECE (%)", "lower", percent=True),
)

BySet = Mapping[str, Mapping[str, Scores]]  # a set's title -> method -> its scores


def score_figures(rows: BySet, panels: BySet, width: float) -> dict[str, Figure]:
    """Dots for all sets in `rows`, and a panel for each set in `panels` for what a dot cannot say."""
    dots = {
        title: {
            method: {
                "top1": (found.top1.value, found.top1.standard_error),
                "nlpd": (found.nlpd.value, found.nlpd.standard_error),
                "ece": (found.ece, None),
            }
            for method, found in of.items()
        }
        for title, of in rows.items()
    }
    reliability = {title: {name: found.reliability for name, found in of.items()} for title, of in panels.items()}
    coverage = {title: {name: found.risk_coverage for name, found in of.items()} for title, of in panels.items()}
    return {
        "scores": scores_plot(dots, METRICS, width=width),
        "reliability": reliability_plot(reliability, width=width),
        "risk-coverage": risk_coverage_plot(coverage, width=width),
    }
