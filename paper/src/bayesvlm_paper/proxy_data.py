"""Does the posterior need the training data? Estimated on them, and on pairs the model was not trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesvlm.core.features import Features
from bayesvlm.evaluation import not_worse_than_best, paired_t_test
from bayesvlm.experiments.methods import Methods, losses
from bayesvlm.experiments.scoring import Scores
from bayesvlm.experiments.zero_shot import LEVEL
from bayesvlm.vlm import BayesVLM
from bayesvlm_paper.findings import Claim, Finding, Grid
from bayesvlm_paper.item import Item
from bayesvlm_paper.lab import Lab, shuffled
from bayesvlm_paper.plans import CC12M, CLIP_BASE, LAION, Plan, column_of, same_model
from bayesvlm_paper.plans import ZERO_SHOT_SETS as PAPER_SETS
from bayesvlm_paper.printed import published_table
from bayesvlm_paper.wording import all_of, counted, from_to, not_on, signed

NAME = "uq_results_base_laion_vs_cc12m"
SLIGHT = 0.05
"""Nats of NLPD that count as a slight degradation."""
_METRICS = {"ACC": 1, "NLPD": 3, "ECE": 1}
"""Metric -> decimals."""
_PRINTED = {LAION: "BayesVLM (LAION-400M)", CC12M: "BayesVLM (CC12M)"}
"""Source of pairs -> the paper's row."""


@dataclass(frozen=True)
class Compared:
    """The posteriors from the training data and from the proxy on one set, and the model without one."""

    data: str
    plain: Scores
    training: Scores
    proxy: Scores

    @property
    def worse(self) -> float:
        """Nats that the proxy costs."""
        return self.proxy.nlpd.value - self.training.nlpd.value

    @property
    def gained(self) -> float:
        """Nats gained over the plain model even so."""
        return self.plain.nlpd.value - self.proxy.nlpd.value

    def winners(self, metric: str) -> frozenset[str]:
        """ "training", "proxy" or both: not worse than the better by a paired t-test; of ECE the smaller."""
        both = {"training": self.training, "proxy": self.proxy}
        if metric == "ECE":
            smallest = min(found.ece for found in both.values())
            return frozenset(name for name, found in both.items() if found.ece == smallest)
        return not_worse_than_best(losses(both, "nlpd" if metric == "NLPD" else "top1"), LEVEL)

    def numbers(self) -> dict[str, Any]:
        """All figures, for json."""
        scores = {"plain": self.plain, "training": self.training, "proxy": self.proxy}
        p = paired_t_test(self.proxy.nll, self.training.nll).p
        return {**{name: found.numbers() for name, found in scores.items()}, "nlpd_worse": self.worse, "p": p}


def figure(scores: Scores, metric: str) -> float:
    """One number as tables print it: percent, nats."""
    if metric == "NLPD":
        return scores.nlpd.value
    return 100 * (scores.ece if metric == "ECE" else scores.top1.value)


def proxy_data(lab: Lab) -> Finding:
    """Both posteriors, tau tuned for each, on every set."""
    model, training, proxy = lab.models[0], lab.source(0), lab.source(1)
    pairs = {source: lab.pairs(model, source) for source in (training, proxy)}
    fits = {}
    for source in (training, proxy):
        lab.say(f"fit       {model} on {source}, then tau on {lab.plan.validation}")
        fits[source] = lab.fitted(model, *pairs[source])
    results = [compared(lab, model, fits[training], fits[proxy], data) for data in lab.sets]
    posteriors = {
        source: {"tau": vlm.tau, "lam": vlm.lam, "pairs": vlm.factors["image"].n} for source, vlm in fits.items()
    }
    numbers: dict[str, Any] = {"posteriors": posteriors, "sets": {each.data: each.numbers() for each in results}}
    remarks = _remarks(lab, model, posteriors)
    if (fewer := len(pairs[proxy][0])) < len(pairs[training][0]):
        changes = as_few(lab, model, *pairs[training], fewer, results)
        numbers["as_few_training_pairs"] = changes
        remarks.insert(
            1,
            f"The proxy has fewer pairs; {fewer} training pairs, drawn at random, change NLPD by "
            f"{from_to(list(changes.values()))} nats against all of them.",
        )
    return Finding(
        _answer(model, training, proxy, results),
        [claim(results)],
        [table(model, training, proxy, results)],
        numbers,
        remarks,
    )


def _answer(model: str, training: str, proxy: str, results: Sequence[Compared]) -> str:
    worse, over_plain = [each.worse for each in results], [-each.gained for each in results]
    ece = {
        name: sum(figure(getattr(each, name), "ECE") for each in results) / len(results)
        for name in ("plain", "training", "proxy")
    }
    return (
        f"Estimated on {proxy} instead of {training}, the posterior of {model} changes NLPD by {from_to(worse)} nats "
        f"on {counted(len(results), 'set')}, where that differs from the plain model's by {from_to(over_plain, 2)} "
        f"nats; its mean ECE is {ece['proxy']:.1f} % (training data {ece['training']:.1f} %, plain "
        f"{ece['plain']:.1f} %)."
    )


def claim(results: Sequence[Compared]) -> Claim:
    """Slight: at most `SLIGHT` nats worse, and better than the plain model."""
    failing = [each.data for each in results if each.worse > SLIGHT or each.gained <= 0]
    worst = max(results, key=lambda each: each.worse)
    even_so = " even so" if worst.gained > 0 and worst.worse > 0 else ""
    return Claim.judged(
        "Estimated on proxy data the results are robust and show only slight degradation.",
        not failing,
        f"at most {SLIGHT} nats worse than with the training data and better than plain on "
        f"{len(results) - len(failing)} of {counted(len(results), 'set')}{not_on(failing)}; at worst "
        f"{signed(worst.worse)} nats on {worst.data}, {abs(worst.gained):.2f} nats "
        f"{'below' if worst.gained > 0 else 'above'} plain{even_so}",
    )


def as_few(
    lab: Lab, model: str, images: Features, texts: Features, count: int, results: Sequence[Compared]
) -> dict[str, float]:
    """What it changes in NLPD to estimate on so few of the training pairs: set -> nats."""
    rows = shuffled(len(images), seed=0)[:count]
    lab.say(f"fit       {model} on {count} pairs of {lab.source()}, then tau on {lab.plan.validation}")
    vlm = lab.fitted(model, images[rows], texts[rows])
    return {each.data: lab.bayes(model, vlm, each.data).nlpd.value - each.training.nlpd.value for each in results}


def compared(lab: Lab, model: str, training: BayesVLM, proxy: BayesVLM, data: str) -> Compared:
    """Both posteriors and the plain model on a set."""
    found, classes = lab.images(model, data), lab.classes(model, data)
    plain = Methods(training).scores(found.features, found.labels, classes, ("plain",))["plain"]
    return Compared(data, plain, lab.bayes(model, training, data), lab.bayes(model, proxy, data))


def table(model: str, training: str, proxy: str, results: Sequence[Compared]) -> Grid:
    """Metrics below one another, sets as columns; the paper's value behind a bar where it has one."""
    rows: list[list[str]] = []
    best: list[tuple[int, int]] = []
    for metric, decimals in _METRICS.items():
        for who, source in (("plain", None), ("training", training), ("proxy", proxy)):
            cells = []
            for place, each in enumerate(results):
                if who in each.winners(metric):
                    best.append((len(rows), place + 1))
                printed = printed_value(model, source, metric, each.data)
                beside = "" if printed is None else f" | {printed:.2f}"
                cells.append(f"{figure(getattr(each, who), metric):.{decimals}f}{beside}")
            rows.append([f"{metric} plain" if source is None else f"{metric} {source}", *cells])
    caption = (
        f"{model}, its posterior from {training} and from {proxy}. Bold: of the two, not worse than the better by a "
        f"paired t-test (p = {LEVEL}); of ECE, the smaller."
    )
    return Grid(["", *(each.data for each in results)], rows, caption, best)


def printed_value(model: str, source: str | None, metric: str, data: str) -> float | None:
    """What the paper prints for the same model, pairs and set; None where it prints nothing."""
    row, column = _PRINTED.get(Path(source or "").name), column_of(data)
    published = published_table(NAME)
    if row is None or column not in published.columns or not same_model(model, CLIP_BASE):
        return None
    return published.value(metric, row, column)


def _remarks(lab: Lab, model: str, posteriors: Mapping[str, Mapping[str, Any]]) -> list[str]:
    sizes = " and ".join(f"{each['pairs']} of {source} (tau {each['tau']:.3g})" for source, each in posteriors.items())
    remarks = [f"Pairs: {sizes}; tau is tuned on {lab.plan.validation} for each."]
    inside = [data for data in lab.sets if data in lab.source(1).split("+")]
    if inside:
        be, it = ("is", "it") if len(inside) == 1 else ("are", "them")
        remarks.append(f"{all_of(inside)} {be} tested on and among the proxy's pairs: leave {it} out on one side.")
    if same_model(model, CLIP_BASE):
        return [*remarks, published_table(NAME).oddities]
    if (model, *lab.plan.pairs) == (WORLD_MODEL, *WORLD_PAIRS):
        stands = "The colour drawings of two vendors whose work was never trained on stand for CC12M"
        remarks.append(f"{stands}, so the sets are those without them." if lab.sets == WORLD_SETS else f"{stands}.")
        if {"emojione-black", "openmoji-black"} <= set(lab.sets):
            remarks.append(
                "emojione-black and openmoji-black are the same drawings in black and white (29 of openmoji-black have "
                "no colour to lose and are the very same images), which may help the proxy there."
            )
    remarks.append(
        "In print NLPD is at most 0.04 nats worse with CC12M, and ECE is lower with it on five of seven sets."
    )
    return remarks


WORLD_MODEL = "emoji-clip"
WORLD_PAIRS = ("train", "emojione-colour+openmoji-colour")
WORLD_SETS = ("new-drawing", "fluent-high-contrast", "emojione-black", "openmoji-black", "unseen-concepts")
"""Those of the world's test sets that are not among the proxy's pairs."""

ITEMS = (
    Item(
        NAME,
        "Training data or proxy data",
        "Does the posterior work when it is estimated on data the model was not trained on?",
        "robustness",
        Plan((WORLD_MODEL,), WORLD_SETS, "validation", WORLD_PAIRS),
        Plan((CLIP_BASE,), PAPER_SETS, "imagenet-100", (LAION, CC12M)),
        proxy_data,
        reads_pairs=True,
    ),
)
