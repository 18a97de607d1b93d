"""Beyond the paper: full covariances of the embeddings in the place of diagonal ones. Do they help, are they truer?"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from bayesvlm.core.settings import Covariance
from bayesvlm.vlm import BayesVLM
from bayesvlm_paper.catalogue import judged
from bayesvlm_paper.comparison import TRUER, Compared, named_ratios, truer
from bayesvlm_paper.draws import DRAWS, DrawnSpread
from bayesvlm_paper.exhibits import Lines, Panel, Series
from bayesvlm_paper.finding import Finding
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.variants import TEXTS, Made, default_of, measured, truth_data, tuned

TIMES = (1.0, 10.0, 100.0, 1000.0, 10000.0)
"""Times the default's tau: the more the data count, the less the prior hides the shape of B."""
COVARIANCES: tuple[Covariance, ...] = ("diagonal", "full")


def make(lab: Lab, model: str) -> Made:
    """Diagonal and full."""
    default, measure = default_of(lab, model), partial(lab.bayes, model)
    variants = {str(name): tuned(lab, model, default.replace(covariance=name), measure) for name in COVARIANCES}
    return variants, truth(lab, model, variants["diagonal"].vlm)


def truth(lab: Lab, model: str, default: BayesVLM) -> dict[str, dict[str, dict[str, float]]]:
    """tau -> covariance -> ratio; both covariances face the same draws."""
    images, texts, _ = truth_data(lab, model, TEXTS)
    found = {}
    for times in TIMES:
        vlm = default.replace(tau=times * default.tau)
        drawn = DrawnSpread.of(vlm, images, texts, DRAWS if times == 1 else DRAWS // 2)
        found[f"{vlm.tau:.4g}"] = {
            str(name): drawn.ratio(vlm.replace(covariance=name), images, texts).numbers() for name in COVARIANCES
        }
    return found


def tell(numbers: Mapping[str, Any]) -> Finding:
    """Diagonal against full."""
    compared = Compared(numbers)
    ratios = {
        model: {str(name): [by_covariance[name] for by_covariance in by_tau.values()] for name in COVARIANCES}
        for model, by_tau in compared.ratios().items()
    }
    first, last = (
        {str(name): {model: of[name][place] for model, of in ratios.items()} for name in COVARIANCES}
        for place in (0, -1)
    )
    answer = (
        f"With a tau of its own the full covariance {compared.effect('full')}. Analytic over drawn standard deviation "
        f"of a cosine at the default's tau: {named_ratios(first)}; at {TIMES[-1]:,.0f} times that tau: "
        f"{named_ratios(last)}."
    )
    truths = [
        (
            all(truer(at["full"][model], at["diagonal"][model]) for model in ratios),
            f"analytic over drawn standard deviation of the cosine: {named_ratios(at)}",
        )
        for at in (first, last)
    ]
    claims = judged("covariance", *truths, compared.no_gain("full"), truer=TRUER, most=TIMES[-1])
    panels = []
    for model, of in ratios.items():
        tau = compared.variants(model)["diagonal"]["tau"]
        series = [
            Series(name, [times * tau for times in TIMES], [r.median for r in found], [r.error for r in found])
            for name, found in of.items()
        ]
        panels.append(Panel(model, "tau", "analytic / drawn std", series, log_x=True, mark=tau))
    lines = Lines(
        panels,
        f"Standard deviation of the cosine, analytic over that of {DRAWS // 2} draws of the projections ({DRAWS} at "
        f"the default's tau, which is marked): median over {compared.truth_size()}.",
        "Ratio of the analytic to the drawn standard deviation against tau, one panel per model",
    )
    return compared.finding(answer, claims, [lines])


ITEMS = {"covariance": (partial(measured, make=make), tell)}
