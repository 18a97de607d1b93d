"""Beyond the paper: lam by the corrected evidence, or by that of the authors' first release, and what tuning hides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

from bayesvlm.core.estimation import TOWERS, Tower
from bayesvlm.core.evidence import Evidence, Objective
from bayesvlm.core.tuning import TauGrid, search_tau
from bayesvlm.experiments.scoring import Scores
from bayesvlm.report.blocks import Table
from bayesvlm.vlm import BayesVLM
from bayesvlm_paper.catalogue import judged
from bayesvlm_paper.comparison import Compared
from bayesvlm_paper.finding import Finding
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.variants import WIDE_TAUS, Made, default_of, measured, scored, tuned
from bayesvlm_paper.wording import by_name, each_of

HIDDEN = 0.02
"""Nats of NLPD, in the mean over the sets, that a tuned tau may leave and still be said to hide a difference."""
OFFICIAL, SAME_TAU = "official", "official, same tau"


def make(lab: Lab, model: str) -> Made:
    """The corrected evidence, and that of the first release with its own tau and with the same."""
    default, measure = default_of(lab, model), partial(lab.bayes, model)
    first = tuned(lab, model, default, measure)
    own, grid = official_tuned(lab, model, default)
    fixed = official(default, first.vlm.tau)
    variants = {
        "evidence": first,
        OFFICIAL: scored(lab, own, grid, measure),
        SAME_TAU: scored(lab, fixed, None, measure),
    }
    return variants, lam_facts(fixed, own)


def lams(vlm: BayesVLM, objective: Objective) -> dict[str, float]:
    """The prior precision of both towers by either objective, at the tau and with the structure of the posterior."""
    return {tower: evidence_of(vlm, tower, objective).best_lam() for tower in TOWERS}


def evidence_of(vlm: BayesVLM, tower: Tower, objective: Objective = "evidence") -> Evidence:
    """The objective of one tower as a function of log lam."""
    factors, norm = vlm.factors[tower], getattr(vlm, tower).norm_squared
    spectra = (factors.A_spectrum.values, factors.B_spectrum.values)
    return Evidence(*spectra, norm, vlm.tau, vlm.settings.structure, objective)


def official(vlm: BayesVLM, tau: float) -> BayesVLM:
    """The posterior with a tau, and the lam that the authors' first release would give it there."""
    moved = vlm.replace(tau=tau)
    return moved.replace(lam=lams(moved, "official"))


def official_tuned(
    lab: Lab, model: str, vlm: BayesVLM, taus: tuple[float, ...] = WIDE_TAUS, refine: bool = True
) -> tuple[BayesVLM, TauGrid]:
    """tau by the validation NLPD, lam by the first release's objective at each tau."""
    found, classes = lab.validation(model), lab.classes(model, lab.validation_set)
    labels = found.labels.to(vlm.device)

    def evaluate(tau: float) -> tuple[float, dict[str, float]]:
        candidate = official(vlm, tau)
        return Scores.of(candidate.classify(found.features, classes).probs, labels).nlpd.value, candidate.lam

    grid = search_tau(evaluate, taus, refine=refine, advance=lambda steps: None)
    return official(vlm, grid.best.tau), grid


def lam_facts(fixed: BayesVLM, own: BayesVLM) -> dict[str, dict[str, float]]:
    """The first release's lam over the corrected one, and what it costs in evidence, both at the same tau.

    Args:
        fixed: the first release's posterior at the tau tuned for the corrected one.
        own: the same at its own.
    """
    ratios, lost = {}, {}
    for name, vlm in {"same tau": fixed, "own tau": own}.items():
        corrected = lams(vlm, "evidence")
        ratios[f"lam, {name}"] = {str(tower): vlm.lam[tower] / corrected[tower] for tower in TOWERS}
        lost[f"log evidence lost, {name}"] = lost_evidence(vlm)
    return {**ratios, **lost}


def lost_evidence(vlm: BayesVLM) -> dict[str, float]:
    """Nats of log evidence that each tower's lam falls short of the best one at the posterior's tau."""
    best, objective = lams(vlm, "evidence"), {tower: evidence_of(vlm, tower).value for tower in TOWERS}
    return {str(t): of(math.log(best[t])) - of(math.log(vlm.lam[t])) for t, of in objective.items()}


def tell(numbers: Mapping[str, Any]) -> Finding:
    """The first release against the corrected evidence."""
    compared = Compared(numbers)
    facts = {model: compared.truth(model) for model in compared.models}
    ratios, lost = (
        "; ".join(f"{model} {each_of({t: form.format(v) for t, v in of[name].items()})}" for model, of in facts.items())
        for name, form in (("lam, same tau", "{:.3g}"), ("log evidence lost, same tau", "{:,.0f}"))
    )
    same, own = compared.versus(SAME_TAU), compared.versus(OFFICIAL)
    gap = {model: found.nlpd for model, found in own.items()}
    answer = (
        f"At the same tau the first release's lam is {ratios} times the corrected one, which changes the mean NLPD by "
        f"{by_name({model: found.nlpd for model, found in same.items()}, signs=True)} nats; with a tau of its own the "
        f"first release {compared.effect(OFFICIAL)}."
    )
    claims = judged(
        "evidence",
        (
            all(max(of["log evidence lost, same tau"].values()) < 1 for of in facts.values()),
            f"nats of log evidence that its lam falls short of the best at the same tau: {lost}",
        ),
        (all(found.hurts for found in same.values()), f"the first release against it: {compared.against(SAME_TAU)}"),
        (
            all(abs(value) <= HIDDEN for value in gap.values()),
            f"first release minus corrected: {by_name(gap, signs=True)} nats",
        ),
        (all(found.hurts for found in own.values()), f"the first release against it: {compared.against(OFFICIAL)}"),
        hidden=HIDDEN,
    )
    names = list(next(iter(facts.values())))
    table = Table(
        ["", *(tower for _ in names for tower in TOWERS)],
        [[model, *(f"{of[name][tower]:.3g}" for name in names for tower in TOWERS)] for model, of in facts.items()],
        caption="The first release's lam over the corrected one at the same tau, which has the most evidence, and the "
        "nats of log evidence it falls short of that; at the tau tuned for the corrected one (same tau), and at the "
        "first release's own.",
        groups=[("", 1), *((name, len(TOWERS)) for name in names)],
    )
    return compared.finding(answer, claims, [table])


ITEMS = {"evidence": (partial(measured, make=make), tell)}
