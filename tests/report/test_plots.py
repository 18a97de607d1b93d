"""The figures show the numbers they were given, and refuse the ones that cannot be shown."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle, StepPatch

from bayesvlm import BayesVLMError
from bayesvlm.report.plots import (
    Metric,
    distribution_plot,
    heat_maps,
    reliability_plot,
    risk_coverage_plot,
    scores_plot,
    tau_plot,
)
from bayesvlm.report.svg import inline_svg
from bayesvlm.report.theme import NARROW, colour

LONG = "Unseen concepts drawn in a style that nobody has seen before"
ACCURACY = Metric("top1", "Top-1 (%)", "higher", percent=True)
NLPD = Metric("nlpd", "NLPD", "lower")


@dataclass(frozen=True)
class Bins:
    edges: torch.Tensor
    confidence: torch.Tensor
    accuracy: torch.Tensor
    count: torch.Tensor


@dataclass(frozen=True)
class Curve:
    coverage: torch.Tensor
    risk: torch.Tensor


def bins(count: tuple[int, ...] = (0, 2, 6), accuracy: float = 0.9) -> Bins:
    return Bins(
        edges=torch.linspace(0, 1, 4),
        confidence=torch.tensor([math.nan, 0.5, 0.8]),
        accuracy=torch.tensor([math.nan, 0.4, accuracy]),
        count=torch.tensor(count),
    )


def line(axes: Axes, label: str) -> Line2D:
    (found,) = [line for line in axes.lines if line.get_label() == label]
    return found


def segments(axes: Axes) -> list[list[list[float]]]:
    collections = [item for item in axes.collections if isinstance(item, LineCollection)]
    return [segment.tolist() for collection in collections for segment in collection.get_segments()]


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_scores_are_drawn_as_dots_with_error_bars() -> None:
    scores = {
        "seen": {
            "plain": {"top1": (0.9, 0.02), "nlpd": (0.3, None)},
            "Bayes": {"top1": (0.8, None), "nlpd": (0.2, 0.1)},
        },
        "unseen": {"plain": {"top1": (0.5, 0.04), "nlpd": (1.3, None)}, "Bayes": {"nlpd": (1.2, 0.1)}},
    }
    figure = scores_plot(scores, [ACCURACY, NLPD])
    accuracy, nlpd = figure.axes
    assert [axes.get_title("left") for axes in figure.axes] == ["Top-1 (%)", "NLPD"]
    assert [axes.get_xlabel() for axes in figure.axes] == ["higher is better →", "← lower is better"]
    assert line(accuracy, "plain").get_xdata() == pytest.approx([90, 50])
    assert line(accuracy, "Bayes").get_xdata() == pytest.approx([80])
    assert line(nlpd, "Bayes").get_xdata() == pytest.approx([0.2, 1.2])
    assert line(nlpd, "Bayes").get_color() == colour("bayes")
    assert [[x for x, _ in segment] for segment in segments(accuracy)][:2] == [
        pytest.approx([88, 92]),
        pytest.approx([46, 54]),
    ]
    assert texts(figure) == ["seen", "unseen"]
    above, below = (np.asarray(line(accuracy, name).get_ydata())[0] for name in ("plain", "Bayes"))
    assert -0.5 < above < below < 0.5  # ties stay visible
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["plain", "Bayes"]


def test_one_method_and_long_names_fit_at_any_width() -> None:
    scores = {LONG: {"Bayes": {"top1": (0.5, 0.1)}}, LONG + "!": {"Bayes": {"top1": (0.6, None)}}}
    for width in (9.6, NARROW):
        figure = scores_plot(scores, [ACCURACY, Metric("top1", "Again", "higher")], width=width)
        figure.draw_without_rendering()
        assert " ".join(texts(figure)).startswith(LONG)
        boxes = [text.get_window_extent() for text in figure.axes[0].texts]
        assert all(box.x0 >= 0 for box in boxes)
        assert all(upper.y0 >= lower.y1 - 1 for upper, lower in pairwise(boxes))


def test_panels_go_below_each_other_on_a_phone() -> None:
    wide = scores_plot({"a": {"plain": {"top1": (0.5, None), "nlpd": (1.0, None)}}}, [ACCURACY, NLPD])
    narrow = scores_plot({"a": {"plain": {"top1": (0.5, None), "nlpd": (1.0, None)}}}, [ACCURACY, NLPD], width=NARROW)
    assert wide.axes[0].get_position().y0 == pytest.approx(wide.axes[1].get_position().y0)
    assert narrow.axes[0].get_position().y0 > narrow.axes[1].get_position().y1


def test_a_metric_nobody_has_is_refused() -> None:
    with pytest.raises(BayesVLMError, match=r"No score has the metric 'ece'; use one of 'top1'\."):
        scores_plot({"a": {"plain": {"top1": (0.5, None)}}}, [Metric("ece", "ECE", "lower")])


def test_reliability_leaves_out_empty_bins() -> None:
    figure = reliability_plot({"seen": {"plain": bins(), "Bayes": bins(accuracy=0.8)}})
    main, below = figure.axes
    assert line(main, "plain").get_xdata() == pytest.approx([0.5, 0.8])
    assert line(main, "plain").get_ydata() == pytest.approx([0.4, 0.9])
    assert line(main, "Bayes").get_ydata() == pytest.approx([0.4, 0.8])
    assert any(list(item.get_xdata()) == list(item.get_ydata()) == [0, 1] for item in main.lines)  # the diagonal
    steps = [patch for patch in below.patches if isinstance(patch, StepPatch)]
    assert len(steps) == 2
    assert steps[0].get_data().values == pytest.approx([0, 0.25, 0.75])


def test_reliability_panels_are_of_one_size() -> None:
    figure = reliability_plot({"a": {"plain": bins()}, LONG: {"plain": bins()}, "c": {"plain": bins()}})
    figure.draw_without_rendering()
    sizes = [axes.get_window_extent().bounds[2:] for axes in figure.axes[::2]]
    assert sizes[1:] == [pytest.approx(sizes[0]), pytest.approx(sizes[0])]


def test_a_single_panel_does_not_grow_without_bounds() -> None:
    assert reliability_plot({"a": {"plain": bins()}}).get_figwidth() < 4
    assert heat_maps({"m": [[1.0]]}, ["a"], ["b"], "", "").get_figwidth() < 6
    assert reliability_plot({"a": {"plain": bins()}}, width=NARROW).get_figwidth() <= NARROW


def test_reliability_without_answers_or_with_nan_is_refused() -> None:
    with pytest.raises(BayesVLMError, match=r"All bins of 'plain' on 'seen' are empty"):
        reliability_plot({"seen": {"plain": bins(count=(0, 0, 0))}})
    with pytest.raises(BayesVLMError, match=r"^The confidence of 'plain' on 'seen' is or has nan; .*finite numbers\.$"):
        reliability_plot({"seen": {"plain": bins(count=(1, 2, 6))}})
    with pytest.raises(BayesVLMError, match=r"The counts of 'plain' on 'seen' are \(2,\)"):
        reliability_plot({"seen": {"plain": bins(count=(1, 2))}})


def test_risk_coverage_keeps_the_ends_of_a_thinned_curve() -> None:
    coverage = torch.arange(1, 5001) / 5000
    figure = risk_coverage_plot(
        {"seen": {"Bayes": Curve(coverage, coverage**2)}, "other": {"plain": Curve(coverage, coverage)}}
    )
    drawn = np.asarray(line(figure.axes[0], "Bayes").get_xydata())
    assert len(drawn) <= 200
    assert drawn[0] == pytest.approx([1 / 5000, 1 / 5000**2])
    assert drawn[-1] == pytest.approx([1, 1])
    assert drawn[:, 1] == pytest.approx(drawn[:, 0] ** 2, rel=1e-5)
    assert figure.axes[0].get_ylim()[0] == 0


def test_heat_maps_show_the_grid_and_print_what_fits() -> None:
    grid = np.array([[0.1, 0.22, 0.3], [0.4, 0.5, 0.6]])
    figure = heat_maps({"cosine": grid, "deviation": grid / 10}, ["0 %", "50 %"], ["a", "b", "c"], "text", "image")
    first, second = (axes for axes in figure.axes if axes.images)
    assert np.asarray(first.images[0].get_array()) == pytest.approx(grid)
    assert [text.get_text() for text in first.texts] == ["0.10", "0.22", "0.30", "0.40", "0.50", "0.60"]
    assert [text.get_text() for text in second.texts][:2] == ["0.010", "0.022"]
    assert [label.get_text() for label in first.get_yticklabels()] == ["0 %", "50 %"]
    assert (first.get_ylabel(), first.get_xlabel()) == ("text", "image")
    assert first.images[0].colorbar is not None
    assert second.images[0].colorbar is not None
    many = heat_maps(
        {"cosine": np.random.default_rng(0).random((3, 30))}, list("abc"), ["."] * 30, "", "", width=NARROW
    )
    assert not texts(many)


def test_heat_maps_of_one_value_and_of_the_wrong_shape() -> None:
    assert texts(heat_maps({"m": [[2.0]]}, ["a"], ["b"], "", "")) == ["2.0"]
    with pytest.raises(BayesVLMError, match=r"The heat map 'm' is \(1, 2\); its labels want \(1, 1\)"):
        heat_maps({"m": [[2.0, 3.0]]}, ["a"], ["b"], "", "")


def test_distributions_show_quantiles_in_the_colour_of_their_kind() -> None:
    values = np.random.default_rng(0).gamma(2.0, size=1000)
    groups = {"known": values, "new": torch.tensor(values + 1), "single": [3.0]}
    figure = distribution_plot(groups, "deviation", {"known": "seen", "new": "unseen style", "single": "seen"})
    (axes,) = figure.axes
    boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_height() == 0.5]
    for row, box in enumerate(boxes[:2]):
        expected = np.percentile(values, (25, 75)) + row
        assert [box.get_x(), box.get_x() + box.get_width()] == pytest.approx(expected)
    assert [np.asarray(dot.get_xdata())[0] for dot in axes.lines] == pytest.approx(
        [np.median(values), np.median(values) + 1, 3.0]
    )
    assert [x for x, _ in segments(axes)[0]] == pytest.approx(np.percentile(values, (5, 95)))
    shades = [dot.get_color() for dot in axes.lines]
    assert shades == [colour("seen"), colour("unseen-style"), colour("seen")]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["seen", "unseen style"]
    assert axes.get_xlabel() == "deviation"


def test_distributions_without_kinds_have_no_legend() -> None:
    assert not distribution_plot({"a": [1.0, 2.0]}, "x").legends
    with pytest.raises(BayesVLMError, match=r"The group 'b' has no kind"):
        distribution_plot({"a": [1.0], "b": [2.0]}, "x", {"a": "seen"})
    with pytest.raises(BayesVLMError, match=r"The group 'a' is empty"):
        distribution_plot({"a": []}, "x")


def test_tau_is_sorted_on_a_logarithmic_axis_with_the_best_marked() -> None:
    (axes,) = tau_plot([100, 1, 10], [2.0, 3.0, 1.0], 10.0).axes
    curve, best = axes.lines
    assert axes.get_xscale() == "log"
    assert np.asarray(curve.get_xydata()).tolist() == [[1, 3], [10, 1], [100, 2]]
    assert np.asarray(best.get_xdata()).tolist() == [10, 10]
    assert [text.get_text() for text in axes.texts] == ["best: τ = 10"]
    assert texts(tau_plot([1, 1e5], [2.0, 1.0], 12589.3)) == ["best: τ = 12,589"]
    for taus, best_tau in (([1, 0], 1.0), ([1], 1.0), ([1, 2], -1.0)):
        with pytest.raises(BayesVLMError, match="taus above zero"):
            tau_plot(taus, [1.0, 2.0], best_tau)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_cannot_be_drawn_are_refused_by_name(bad: float) -> None:
    curve = Curve(torch.tensor([0.5, 1.0]), torch.tensor([0.0, bad]))
    for draw, name in (
        (lambda: scores_plot({"seen": {"plain": {"top1": (bad, None)}}}, [ACCURACY]), "Top1 of 'plain' on 'seen'"),
        (lambda: scores_plot({"seen": {"plain": {"top1": (0.5, bad)}}}, [ACCURACY]), "The error of top1 of 'plain'"),
        (lambda: reliability_plot({"seen": {"plain": bins(accuracy=bad)}}), "The accuracy of 'plain' on 'seen'"),
        (lambda: risk_coverage_plot({"seen": {"plain": curve}}), "The risk of 'plain' on 'seen'"),
        (lambda: heat_maps({"cosine": [[bad]]}, ["a"], ["b"], "", ""), "The heat map 'cosine'"),
        (lambda: distribution_plot({"noise": [0.1, bad]}, "x"), "The group 'noise'"),
        (lambda: tau_plot([1.0], [bad], 1.0), "Nlpd"),
        (lambda: tau_plot([1.0], [1.0], bad), "Best"),
    ):
        with pytest.raises(BayesVLMError, match=rf"^{name}.* is or has {bad}; a figure needs finite numbers\.$"):
            draw()


def test_nothing_to_draw_is_refused() -> None:
    for draw in (reliability_plot, risk_coverage_plot):
        with pytest.raises(BayesVLMError, match="panels is empty"):
            draw({})
    with pytest.raises(BayesVLMError, match="metrics is empty"):
        scores_plot({"a": {"plain": {"top1": (0.5, None)}}}, [])


def test_pyplot_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it fails
    inline_svg(heat_maps({"m": [[1.0, 2.0]]}, ["a"], ["b", "c"], "", ""), "p", "x")
    inline_svg(reliability_plot({"seen": {"plain": bins()}}), "p", "x")
