"""Beyond the paper: other links than its probit. Do they help, and how far is each from Monte Carlo?"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from bayesvlm.evaluation import nlpd
from bayesvlm.report.blocks import Table
from bayesvlm.vlm import BayesVLM
from bayesvlm_paper.catalogue import judged
from bayesvlm_paper.comparison import TRUER, Compared
from bayesvlm_paper.draws import DRAWS, drawn_probabilities, total_variation
from bayesvlm_paper.finding import Finding
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.variants import Made, default_of, measured, on_some, truth_data, tuned, walked
from bayesvlm_paper.wording import by_name

MOST_IMAGES, FEW = 300, 128
"""A set's images on which links are compared, for Monte Carlo is slow; and its draws, `classify`'s own number."""
LINKS = ("probit", "centred", "plain")
"""What is held against Monte Carlo at the same tau; "plain" is the softmax without a posterior."""


def make(lab: Lab, model: str) -> Made:
    """Probit, centred probit and Monte Carlo."""
    default, measure = default_of(lab, model), on_some(lab, model, MOST_IMAGES)
    first = tuned(lab, model, default, measure)
    variants = {
        "probit": first,
        "centred": tuned(lab, model, default.replace(link="centred"), measure),
        "mc": walked(lab, model, default.replace(link="mc"), measure, first.vlm.tau),
    }
    return variants, truth(lab, model, first.vlm, variants["mc"].vlm)


def truth(lab: Lab, model: str, default: BayesVLM, mc: BayesVLM) -> dict[str, dict[str, float]]:
    """Distances to many draws at the default's tau; and what many draws would do to Monte Carlo's NLPD at its own."""
    images, classes, labels = truth_data(lab, model, None)
    labels = labels.to(default.device)
    probit, few = default.classify(images, classes).probs, mc.classify(images, classes, draws=FEW).probs
    drawn, noise = drawn_probabilities(default, images, classes, DRAWS)
    many, _ = drawn_probabilities(mc, images, classes, DRAWS)
    centred = default.replace(link="centred").classify(images, classes).probs
    probs = dict(zip(LINKS, (probit, centred, default.plain(images, classes)), strict=True))
    answer = drawn.argmax(dim=1)
    scored = {"probit": probit, f"{FEW} draws": few, f"{DRAWS} draws": many}
    return {
        "distance": {**{name: total_variation(found, drawn) for name, found in probs.items()}, "noise": noise},
        "flips": {name: float((found.argmax(dim=1) != answer).double().mean()) for name, found in probs.items()},
        "NLPD": {name: nlpd(found, labels).value for name, found in scored.items()},
    }


def tell(numbers: Mapping[str, Any]) -> Finding:
    """Probit against centred probit and Monte Carlo."""
    compared = Compared(numbers)
    images = compared.truth_size(classes=False)
    far, flips, scored = (
        {model: compared.truth(model)[what] for model in compared.models} for what in ("distance", "flips", "NLPD")
    )
    left = {model: of[f"{DRAWS} draws"] - of["probit"] for model, of in scored.items()}
    distances = "; ".join(
        f"{model} {of['probit']:.3f} probit, {of['centred']:.3f} centred, {of['plain']:.3f} plain softmax"
        for model, of in far.items()
    )
    answer = (
        f"Each with its own tau, the centred probit {compared.effect('centred')}; Monte Carlo with {FEW} draws "
        f"{compared.effect('mc')}; with {DRAWS} draws, on {images}, its NLPD differs from the probit's by "
        f"{by_name(left, signs=True)} nats. "
        f"Mean total variation distance to {DRAWS} draws at the probit's tau: {distances}."
    )
    figure = f"total variation distance to Monte Carlo: {distances}"
    flipped = [
        f"{model} {100 * of['probit']:.0f} % of the images probit, {100 * of['centred']:.0f} % centred"
        for model, of in flips.items()
    ]
    claims = judged(
        "link",
        (all(of["plain"] - of["probit"] > TRUER for of in far.values()), figure),
        (all(of["probit"] - of["centred"] > TRUER for of in far.values()), figure),
        (all(of["centred"] < of["probit"] for of in flips.values()), "; ".join(flipped)),
        compared.no_gain("centred"),
        compared.no_gain("mc"),
        truer=TRUER,
    )
    names = list(next(iter(far.values())))
    table = Table(
        ["", *names, *LINKS],
        [
            [model, *(f"{of[name]:.3f}" for name in names), *(f"{100 * flips[model][name]:.0f} %" for name in LINKS)]
            for model, of in far.items()
        ],
        caption=f"Against the probabilities of {DRAWS} draws at the probit's tau, {images} and all classes: "
        "mean total variation distance (noise: what those draws themselves are off by), and images with another most "
        "probable class.",
        groups=[("", 1), ("total variation", len(names)), ("another class", len(LINKS))],
    )
    remarks = [
        f"The links are compared on {MOST_IMAGES} images of each set at most, chosen at random and the same for all; "
        f"Monte Carlo takes {FEW} draws, and its tau from steps of a quarter of a decade. Few draws raise its NLPD, "
        "for the logarithm of a noisy mean is lower on average.",
        *(f"{model}: NLPD on {images}, each link with its own tau: {by_name(of)}." for model, of in scored.items()),
    ]
    return compared.finding(answer, claims, [table], remarks, f" At most {MOST_IMAGES} images of each set.")


ITEMS = {"link": (partial(measured, make=make), tell)}
