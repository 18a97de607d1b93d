"""Beyond the paper: the exact posterior in the place of the damped one. Does it help, and is it at least truer?"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from bayesvlm.report.blocks import Table
from bayesvlm_paper.catalogue import judged
from bayesvlm_paper.comparison import TRUER, Compared, each_ratio, named_ratios, truer
from bayesvlm_paper.draws import DRAWS, DrawnSpread
from bayesvlm_paper.finding import Finding
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.variants import TEXTS, Made, Variant, default_of, measured, truth_data, tuned

DAMPED, EXACT, FULL = "damped", "exact", "exact, full"
ITSELF, ALIKE = "itself", "exact posterior at the same tau and lam"
"""What the analytic standard deviation of a variant is held against: draws of either."""


def make(lab: Lab, model: str) -> Made:
    """Damped and exact, with diagonal and with full covariances."""
    default, measure = default_of(lab, model), partial(lab.bayes, model)
    exact = default.replace(structure="exact")
    variants = {
        DAMPED: tuned(lab, model, default, measure),
        EXACT: tuned(lab, model, exact, measure),
        FULL: tuned(lab, model, exact.replace(covariance="full"), measure),
    }
    return variants, truth(lab, model, variants)


def truth(lab: Lab, model: str, variants: Mapping[str, Variant]) -> dict[str, dict[str, dict[str, float]]]:
    """Against draws of the variant itself, and of the exact posterior at the damped one's tau and lam."""
    images, texts, _ = truth_data(lab, model, TEXTS)
    damped = variants[DAMPED].vlm
    exact = damped.replace(structure="exact", lam=damped.lam)
    drawn = DrawnSpread.of(exact, images, texts, DRAWS)
    alike = {DAMPED: damped, EXACT: exact, FULL: exact.replace(covariance="full")}
    found = {}
    for name, variant in variants.items():
        itself = DrawnSpread.of(variant.vlm, images, texts, DRAWS).ratio(variant.vlm, images, texts)
        found[name] = {ITSELF: itself.numbers(), ALIKE: drawn.ratio(alike[name], images, texts).numbers()}
    return found


def tell(numbers: Mapping[str, Any]) -> Finding:
    """Damped against exact."""
    compared = Compared(numbers)
    ratios = compared.ratios()
    alike = {model: of[DAMPED][ALIKE] for model, of in ratios.items()}
    own = {name: {model: of[name][ITSELF] for model, of in ratios.items()} for name in (DAMPED, EXACT, FULL)}
    answer = (
        f"With a tau of its own the exact posterior {compared.effect(EXACT)}; with full covariances as well it "
        f"{compared.effect(FULL)}. At the same tau and lam the damped standard deviation of a cosine is "
        f"{each_ratio(alike)} times that of the exact posterior, which it approximates."
    )
    figure = f"analytic over drawn standard deviation of the cosine: {named_ratios(own)}"
    claims = judged(
        "structure",
        compared.no_gain(EXACT),
        compared.no_gain(FULL),
        (
            all(ratio.median < 1 - TRUER for ratio in alike.values()),
            f"standard deviation of the cosine, damped over draws of the exact: {each_ratio(alike)}",
        ),
        (all(truer(own[EXACT][model], own[DAMPED][model]) for model in ratios), figure),
        (all(truer(own[FULL][model], own[EXACT][model]) for model in ratios), figure),
    )
    table = Table(
        ["", "draws of itself", f"draws of the {ALIKE}"],
        [
            [f"{model}, {name}", *(f"{ratio} ({ratio.low:.2f} to {ratio.high:.2f})" for ratio in of.values())]
            for model, variants in ratios.items()
            for name, of in variants.items()
        ],
        caption=f"Standard deviation of the cosine, analytic over that of {DRAWS} draws of the projections: median "
        f"over {compared.truth_size()}, and the middle 90 % of the pairs. Left each at its own tau; "
        "right all at the damped posterior's tau and lam.",
    )
    return compared.finding(answer, claims, [table])


ITEMS = {"structure": (partial(measured, make=make), tell)}
