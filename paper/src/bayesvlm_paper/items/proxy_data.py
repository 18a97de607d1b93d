"""Does the posterior need the training data? Estimated on them, and on pairs the model was not trained on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from bayesvlm.evaluation import paired_t_test
from bayesvlm.experiments.methods import Methods
from bayesvlm.experiments.zero_shot import LEVEL
from bayesvlm_paper import catalogue
from bayesvlm_paper.catalogue import Judgement, judged
from bayesvlm_paper.finding import Finding, Numbers
from bayesvlm_paper.lab import Lab, shuffled
from bayesvlm_paper.plans import CC12M, CLIP_BASE, LAION, Plan, column_of, same_model
from bayesvlm_paper.printed import published_table
from bayesvlm_paper.scoreboard import Scoreboard, numbers_of
from bayesvlm_paper.wording import all_of, counted, from_to, not_on, signed

NAME = "uq_results_base_laion_vs_cc12m"
SLIGHT = 0.05
"""Nats of NLPD that count as a slight degradation."""
ROWS = ("plain", "training", "proxy")
_PRINTED = {LAION: "BayesVLM (LAION-400M)", CC12M: "BayesVLM (CC12M)"}
"""Source of pairs -> the paper's row."""


def measure(lab: Lab) -> Numbers:
    """Both posteriors, tau tuned for each, and the model without one, on every set."""
    model = lab.models[0]
    sources = {"training": lab.source(0), "proxy": lab.source(1)}
    fits = {row: lab.fitted(model, source) for row, source in sources.items()}
    sets, nlpd = {}, {}
    for data in lab.sets:
        found, classes = lab.images(model, data), lab.classes(model, data)
        scores = Methods(fits["training"]).scores(found.features, found.labels, classes, ("plain",))
        scores |= {row: lab.bayes(model, vlm, data) for row, vlm in fits.items()}
        nlpd[data] = scores["training"].nlpd.value
        sets[data] = {
            **numbers_of(scores, judged=sources),
            "nlpd_worse": scores["proxy"].nlpd.value - nlpd[data],
            "p": paired_t_test(scores["proxy"].nll, scores["training"].nll).p,
        }
    facts = {sources[r]: {"tau": v.tau, "lam": v.lam, "pairs": v.factors["image"].n} for r, v in fits.items()}
    numbers: Numbers = {"posteriors": facts, "sets": sets}
    images, texts = lab.pairs(model, sources["training"])
    fewer = len(lab.pairs(model, sources["proxy"])[0])
    if fewer < len(images):  # what it changes to estimate on so few of the training pairs
        rows = shuffled(len(images), seed=0)[:fewer]
        lab.say(f"fit       {model} on {fewer} pairs of {sources['training']}, then tau on {lab.validation_set}")
        vlm = lab.fitted_on(model, images[rows], texts[rows], {"source": sources["training"], "pairs": fewer})
        changes = {data: lab.bayes(model, vlm, data).nlpd.value - nlpd[data] for data in lab.sets}
        numbers["as_few_training_pairs"] = changes
    return numbers


def tell(numbers: Mapping[str, Any]) -> Finding:
    """What the proxy costs, and whether that is slight."""
    plan = Plan.of(numbers)
    model, (training, proxy) = plan.model, plan.pairs[:2]
    board = Scoreboard({data: {row: of[row] for row in ROWS} for data, of in numbers["sets"].items()})
    ece = {row: board.mean(row, "ECE") for row in ROWS}
    answer = (
        f"Estimated on {proxy} instead of {training}, the posterior of {model} changes NLPD by "
        f"{from_to(board.changes('proxy', 'training', 'NLPD'))} nats on {counted(len(board.sets), 'set')}, where that "
        f"differs from the plain model's by {from_to(board.changes('proxy', 'plain', 'NLPD'), 2)} nats; its mean ECE "
        f"is {ece['proxy']:.1f} % (training data {ece['training']:.1f} %, plain {ece['plain']:.1f} %)."
    )
    table = board.table(
        f"{model}, its posterior from {training} and from {proxy}. Bold: of the two, not worse than the better by a "
        f"paired t-test (p = {LEVEL}); of ECE, the smaller.",
        printed=partial(printed_value, plan) if same_model(model, CLIP_BASE) else None,
        decimals={"ACC": 1, "NLPD": 3, "ECE": 1},
        titles={"training": training, "proxy": proxy},
    )
    return Finding(answer, judged(NAME, slight(board)), [table], remarks(plan, numbers))


def slight(board: Scoreboard) -> Judgement:
    """Slight: at most `SLIGHT` nats worse, and better than the plain model."""
    rows = (("proxy", "training"), ("plain", "proxy"))
    worse, gained = (dict(zip(board.sets, board.changes(*each, "NLPD"), strict=True)) for each in rows)
    failing = [data for data in board.sets if worse[data] > SLIGHT or gained[data] <= 0]
    worst = max(worse, key=worse.__getitem__)
    even_so = " even so" if gained[worst] > 0 and worse[worst] > 0 else ""
    return (
        not failing,
        f"at most {SLIGHT} nats worse than with the training data and better than plain on "
        f"{len(worse) - len(failing)} of {counted(len(worse), 'set')}{not_on(failing)}; at worst "
        f"{signed(worse[worst])} nats on {worst}, {abs(gained[worst]):.2f} nats "
        f"{'below' if gained[worst] > 0 else 'above'} plain{even_so}",
    )


def printed_value(plan: Plan, row: str, metric: str, data: str) -> float | None:
    """What the paper prints for the posterior from the same pairs; None where it prints nothing."""
    source = {"training": plan.pairs[0], "proxy": plan.pairs[1]}.get(row, "")
    return published_table(NAME).value(metric, column_of(data), _PRINTED.get(Path(source).name, ""))


def remarks(plan: Plan, numbers: Mapping[str, Any]) -> list[str]:
    """What a reader should know."""
    posteriors = numbers["posteriors"]
    sizes = " and ".join(f"{each['pairs']} of {source} (tau {each['tau']:.3g})" for source, each in posteriors.items())
    said = [f"Pairs: {sizes}; tau is tuned on {plan.validation} for each."]
    if changes := numbers.get("as_few_training_pairs"):
        said.append(
            f"The proxy has fewer pairs; {posteriors[plan.pairs[1]]['pairs']} training pairs, drawn at random, change "
            f"NLPD by {from_to(list(changes.values()))} nats against all of them."
        )
    inside = [data for data in plan.sets if data in plan.pairs[1].split("+")]
    if inside:
        be, it = ("is", "it") if len(inside) == 1 else ("are", "them")
        said.append(f"{all_of(inside)} {be} tested on and among the proxy's pairs: leave {it} out on one side.")
    if same_model(plan.model, CLIP_BASE):
        return [*said, published_table(NAME).oddities]
    if (plan.model, plan.pairs) == ("emoji-clip", ("train", "emojione-colour+openmoji-colour")):
        stands = "The colour drawings of two vendors whose work was never trained on stand for CC12M"
        said.append(f"{stands}." if inside else f"{stands}, so the sets are without them.")
        if {"emojione-black", "openmoji-black"} <= set(plan.sets):
            said.append(
                "emojione-black and openmoji-black are the same drawings in black and white (29 of openmoji-black have "
                "no colour to lose and are the very same images), which may help the proxy there."
            )
    return [*said, *catalogue.remarks(NAME)]


ITEMS = {NAME: (measure, tell)}
