"""The pseudo-data count tau: the search for it on the validation set, and what predictions owe to its value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bayesvlm.core.tuning import DEFAULT_TAUS, TauGrid, TauPoint
from bayesvlm.report.blocks import Table
from bayesvlm_paper.catalogue import judged, remarks
from bayesvlm_paper.exhibits import Lines, Panel, Series
from bayesvlm_paper.finding import Finding, Numbers
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import CLIP_BASE, SIGLIP_BASE, Plan, column_of, same_model
from bayesvlm_paper.printed import PublishedTable, published_curves, published_table
from bayesvlm_paper.scoreboard import DECIMALS, figures, with_printed
from bayesvlm_paper.wording import by_name

SEARCH = "gridearch_pseudo_data_count"
TABLE = "pseudo_count_results"
PRINTED_MODELS = {"CLIP-Base": CLIP_BASE, "SigLIP-Base": SIGLIP_BASE}
PAPER_GRID = (1.0, 200.0)
CLEAR = 0.02
"""Nats that both ends of a grid must lie above the best of the whole search for a clear optimum."""
FLAT = 0.01
"""Nats within which a tau is as good as the best."""
PAPER_TAU = 4.0
PAPER_TAUS = (1.0, 3.0, 5.0, 7.0, 9.0)
LIMITS = {"NLPD": 0.1, "ACC": 1.0, "ECE": 3.0}
"""Ranges up to which a prediction counts as stable, in nats and points: what the paper calls so, rounded up."""
ROUNDING = 0.005
"""Half of the last digit that the paper prints: its own range of NLPD lies on the limit."""


# The search ----------------------------------------------------------------------------------------------------------


def printed_curve(model: str) -> Mapping[str, Any] | None:
    """The paper's curve of a model; None for one it has none of."""
    for each in published_curves(SEARCH)["series"]:
        if same_model(model, PRINTED_MODELS[each["model"]]):
            return each  # type: ignore[no-any-return]
    return None


def measure_search(lab: Lab) -> Numbers:
    """Validation NLPD against tau; the models of the lab keep their own."""
    found = {}
    for model in lab.models:
        printed = printed_curve(model)
        taus = (*DEFAULT_TAUS, *PAPER_GRID, *map(float, () if printed is None else printed["x"]))
        _, grid = lab.tuned(model, lab.vlm(model), taus)
        found[model] = {"best": grid.best.tau, "tau": [p.tau for p in grid], "nlpd": [p.nlpd for p in grid]}
    return found


def grid_of(tried: Mapping[str, Any]) -> TauGrid:
    """The search as it was, without lam."""
    points = zip(tried["tau"], tried["nlpd"], strict=True)
    return TauGrid(tuple(TauPoint(tau, nlpd, {}) for tau, nlpd in points))


def rise(grid: TauGrid, low: float = 0.0, high: float = math.inf) -> float:
    """How far the lower of the two ends lies above the best of the whole search, nats: of what was tried, or of a part.

    Never below zero; an end that is the best itself does not lie above it.
    """
    part = [point for point in grid if low <= point.tau <= high]
    return min(part[0].nlpd, part[-1].nlpd) - grid.best.nlpd


def flat(grid: TauGrid) -> tuple[float, float]:
    """The taus tried, around the best without a gap, that are as good as it."""
    points, best = grid.points, grid.points.index(grid.best)
    low = high = best
    while low and points[low - 1].nlpd <= grid.best.nlpd + FLAT:
        low -= 1
    while high + 1 < len(points) and points[high + 1].nlpd <= grid.best.nlpd + FLAT:
        high += 1
    return points[low].tau, points[high].tau


def tell_search(numbers: Mapping[str, Any]) -> Finding:
    """Where the best tau is, and how clear."""
    grids = {model: grid_of(numbers[model]) for model in Plan.of(numbers).models}
    found = [f"{grid.best.tau:.3g} for {model} (NLPD {grid.best.nlpd:.3f})" for model, grid in grids.items()]
    around = [f"{low:.2g} to {high:.2g}" for low, high in map(flat, grids.values())]
    answer = (
        f"The best tau is {' and '.join(found)}; {' and '.join(around)} are as good within {FLAT:g} nats, "
        "as far as they were tried."
    )
    clear, edges = zip(*(_clear_inside(model, grid) for model, grid in grids.items()), strict=True)
    low, high = PAPER_GRID
    claims = judged(SEARCH, (all(clear), "; ".join(edges)), low=low, high=high)
    said = [*remarks(SEARCH), f"About the printed curves: {published_curves(SEARCH)['oddities']}"]
    return Finding(answer, claims, [_search_plot(grids)], said)


def _clear_inside(model: str, grid: TauGrid) -> tuple[bool, str]:
    """Whether the best of the whole search lies inside the paper's grid, and both ends of that clearly above it."""
    low, high = PAPER_GRID
    best, above, needed = grid.best, rise(grid, low, high), f"({CLEAR:g} needed)"
    if low < best.tau < high:
        ends = f"both ends of {low:g} to {high:g} lie at least {above:.2f} nats above it {needed}"
        return above >= CLEAR, f"{model}: tau = {best.tau:.3g}, inside; {ends}"
    within = min(point.nlpd for point in grid if low <= point.tau <= high)
    first, last = grid.points[0].tau, grid.points[-1].tau
    clear = "has a" if not grid.at_edge and rise(grid) >= CLEAR else "has no"
    return False, (
        f"{model}: tau = {best.tau:.3g}, not inside, where the best is {within - best.nlpd:.3f} nats worse; the wider "
        f"grid of {first:g} to {last:g} {clear} clear optimum, its ends lying at least {rise(grid):.2f} nats above "
        f"the best {needed}"
    )


def _search_plot(grids: Mapping[str, TauGrid]) -> Lines:
    panels = []
    for model, grid in grids.items():
        series = [Series("ours", [p.tau for p in grid], [p.nlpd for p in grid])]
        printed = printed_curve(model)
        if printed is not None:
            series.append(Series("paper", printed["x"], printed["y"], dashed=True))
        panels.append(Panel(model, "tau", "validation NLPD", series, log_x=True, mark=grid.best.tau))
    return Lines(
        panels,
        "Negative log predictive density on the validation set against the pseudo-data count; marked: what was chosen.",
        "Validation NLPD against tau, one panel per model, each with its best tau marked.",
    )


# What it does to predictions -----------------------------------------------------------------------------------------


def tried_taus(model: str, tuned: float) -> tuple[float, ...]:
    """The paper's for its model; for others the same multiples of their own tau, as the paper's is 4."""
    return PAPER_TAUS if same_model(model, CLIP_BASE) else tuple(tuned * tau / PAPER_TAU for tau in PAPER_TAUS)


def measure_sensitivity(lab: Lab) -> Numbers:
    """Top-1, NLPD and ECE at five taus on every set."""
    model = lab.models[0]
    vlm = lab.vlm(model)
    taus = tried_taus(model, vlm.tau)
    found = {data: [figures(lab.bayes(model, vlm.replace(tau=tau), data)) for tau in taus] for data in lab.sets}
    spans = {data: ranges(by_tau) for data, by_tau in found.items()}
    return {"taus": list(taus), "tuned": vlm.tau, "sets": found, "ranges": spans}


def ranges(by_tau: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Largest minus smallest of every metric over the taus."""
    return {metric: max(each[metric] for each in by_tau) - min(each[metric] for each in by_tau) for metric in DECIMALS}


def tell_sensitivity(numbers: Mapping[str, Any]) -> Finding:
    """How far the metrics move, and whether that is stable."""
    model, taus, found, spans = Plan.of(numbers).model, numbers["taus"], numbers["sets"], numbers["ranges"]
    widest = {metric: max(spans, key=lambda data: spans[data][metric]) for metric in DECIMALS}
    most = {metric: spans[widest[metric]][metric] for metric in DECIMALS}
    answer = (
        f"Between tau = {taus[0]:.2g} and {taus[-1]:.2g} (the tuned one is {numbers['tuned']:.2g}) NLPD of {model} "
        f"moves by at most {most['NLPD']:.2f} nats ({widest['NLPD']}), top-1 by {most['ACC']:.1f} points "
        f"({widest['ACC']}) and ECE by {most['ECE']:.1f} points ({widest['ECE']})."
    )
    allowed = "NLPD {NLPD:g} nats, top-1 {ACC:g} and ECE {ECE:g} points, up to rounding".format(**LIMITS)
    moved = "; ".join(
        f"{data} {span['NLPD']:.3f} nats, {span['ACC']:.2f} points, ECE {span['ECE']:.1f} points"
        for data, span in spans.items()
    )
    stable = all(most[metric] <= limit + ROUNDING for metric, limit in LIMITS.items())
    claims = judged(TABLE, (stable, f"ranges allowed: {allowed}; found: {moved}"))
    published = published_table(TABLE)
    beside = published if same_model(model, CLIP_BASE) else None
    without = by_name({data: ranges(by_tau[1:])["NLPD"] for data, by_tau in found.items()})
    said = [
        f"Without the smallest tau, from {taus[1]:.2g} on, the ranges of NLPD are {without} nats.",
        _printed_ranges(published),
        *([] if beside else [f"{model} is tried at the paper's multiples of the tuned tau: 1/4, 3/4, ..., 9/4."]),
    ]
    return Finding(answer, claims, [_sensitivity_table(model, taus, found, beside)], said)


def _sensitivity_table(
    model: str,
    taus: Sequence[float],
    found: Mapping[str, Sequence[Mapping[str, float]]],
    published: PublishedTable | None,
) -> Table:
    def cell(place: int, tau: float, data: str, metric: str) -> str:
        row = f"BayesVLM (tau = {tau:g})"
        printed = None if published is None else published.value(metric, column_of(data), row)
        return with_printed(found[data][place][metric], printed, DECIMALS[metric])

    columns = [(data, metric) for data in found for metric in DECIMALS]
    behind = " Behind the bar: the paper's." if published is not None else ""
    return Table(
        ["tau", *(metric for _, metric in columns)],
        [[f"{tau:.3g}", *(cell(place, tau, *column) for column in columns)] for place, tau in enumerate(taus)],
        caption=f"{model}: top-1 and ECE in percent, NLPD in nats.{behind}",
        groups=[("", 1), *((data, len(DECIMALS)) for data in found)],
    )


def _printed_ranges(published: PublishedTable) -> str:
    spans = {}
    for metric in DECIMALS:
        columns = zip(*(row.values for row in published.rows if row.metric == metric), strict=True)
        spans[metric] = [max(given) - min(given) for given in ([v for v in c if v is not None] for c in columns)]
    return (
        f"The paper's ranges over tau = 1 to 9 on its four sets: NLPD {max(spans['NLPD']):.2f} nats, top-1 "
        f"{max(spans['ACC']):.1f} points and ECE {max(spans['ECE']):.1f} points at most; the limits of the claim "
        "are these, rounded up."
    )


ITEMS = {SEARCH: (measure_search, tell_search), TABLE: (measure_sensitivity, tell_sensitivity)}
