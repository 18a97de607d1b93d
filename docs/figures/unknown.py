"""Which images are unfamiliar, and which answers are wrong: the tables of docs/unknown.md.

    python docs/figures/unknown.py [FOLDER OF CIFAR-10]      # twenty minutes; unknown.json, and the tables

CIFAR-10 as world/recipes/cifar10 makes it, by default data/cifar10. Scores, and how they are combined, were chosen on
emoji-clip-colour where there was something to choose. Results that are kept are not measured again.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from unknown_combined import combined
from unknown_data import KNOWN, MODELS, OUTSIDE, SEVEN, STYLES, Seen, Set
from unknown_tables import main as print_tables

from bayesvlm import Features, world
from bayesvlm.evaluation import ICPE, augrc, aurc, auroc, delong, fit_temperature, fpr95, rank_interval
from bayesvlm.evaluation import raised_temperature as raised
from bayesvlm.safety import SCORES, conformal, familiarities, mine_negatives
from bayesvlm_world import GROUPS, subgroup_of, subgroups

HERE = Path(__file__).parent
ALARMS, RESAMPLES, LEAST = 0.05, 500, 10
MOST = 2000  # images of a set: the first of CIFAR-10, all of the others


def main() -> None:
    path = HERE / "unknown.json"
    found: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
    cifar = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    for part, measure in (
        ("outside", outside),
        ("failures", failures),
        ("kinds", kinds),
        ("combined", combined),
        ("rivals", rivals),
        ("failure rivals", failure_rivals),
    ):
        for name in MODELS:
            if name not in found.setdefault(part, {}):
                found[part][name] = measure(Seen(name, cifar))
                path.write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")
                print(part, name, "done", flush=True)
    print_tables()


# Unfamiliar images ----------------------------------------------------------------------------------------------------


def outside(seen: Seen) -> dict[str, dict[str, dict[str, float]]]:
    """By score and out-set: AUROC and FPR95 with intervals, the difference to MCM's AUROC; and how many are flagged."""
    scores = {name: all_scores(seen, seen.set(name).images[:MOST]) for name in (KNOWN, *OUTSIDE, *STYLES)}
    found: dict[str, dict[str, dict[str, float]]] = {}
    for score, familiar in scores[KNOWN].items():
        found[score] = {}
        for name in OUTSIDE:
            both, mcm = (torch.cat([scores[KNOWN][of], scores[name][of]]) for of in (score, "MCM"))
            known = torch.arange(len(both)) < len(familiar)
            against = delong(both, mcm, known)
            low, high = rank_interval(auroc, both, known, RESAMPLES)
            # the share of unfamiliar images at or above the threshold that 95 % of the familiar ones reach
            fpr = rank_interval(fpr95, both, known, RESAMPLES)
            found[score][name] = {
                "auroc": auroc(both, known),
                "auroc low": low,
                "auroc high": high,
                "fpr95": fpr95(both, known),
                "fpr95 low": fpr[0],
                "fpr95 high": fpr[1],
                "less MCM": against.difference,
                "p": against.p,
            }
        for name in (*OUTSIDE, *STYLES):
            flagged = conformal.p_values(familiar, scores[name][score]) <= ALARMS
            found[score].setdefault(name, {})["flagged"] = float(flagged.double().mean())
    return found


def rivals(seen: Seen) -> dict[str, dict[str, dict[str, float]]]:
    """The Bayesian entropy against each score that is made without a posterior: DeLong's test on every out-set."""
    classes = seen.known.classes
    scores: dict[str, dict[str, Tensor]] = {}
    for name in (KNOWN, *OUTSIDE):
        images = seen.set(name).images
        plain = familiarities(seen.vlm, images, classes, ["mcm", "entropy"], predictive="plain")
        scores[name] = {"Bayes": familiarities(seen.vlm, images, classes, ["entropy"])["entropy"], "MCM": plain["mcm"]}
        for title, value in seen.temperatures.items():
            scores[name][title] = familiarities(seen.vlm, images, classes, ["entropy"], predictive=value)["entropy"]
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in OUTSIDE:
        both = {title: torch.cat([scores[KNOWN][title], scores[name][title]]) for title in scores[name]}
        known = torch.arange(len(both["Bayes"])) < len(seen.known.images)
        found[name] = {}
        for title in ("MCM", *seen.temperatures):
            test = delong(both["Bayes"], both[title], known)
            found[name][title] = {"difference": test.difference, "error": test.standard_error, "p": test.p}
    return found


def failure_rivals(seen: Seen) -> dict[str, dict[str, dict[str, float]]]:
    """The largest Bayesian probability against those with a temperature, at finding the plain model's wrong answers."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name in SEVEN:
        of = seen.set(name)
        wrong = seen.vlm.plain(of.images, of.classes).argmax(dim=1) != of.labels
        bayes = familiarities(seen.vlm, of.images, of.classes, ["msp"])["msp"]
        found[name] = {}
        for title, value in seen.temperatures.items():
            rival = familiarities(seen.vlm, of.images, of.classes, ["msp"], predictive=value)["msp"]
            test = delong(-bayes, -rival, wrong)
            found[name][title] = {"difference": test.difference, "error": test.standard_error, "p": test.p}
    return found


def all_scores(seen: Seen, images: Features) -> dict[str, Tensor]:  # [N] each, higher = more familiar
    """Every score of `SCORES`, of each predictive distribution that has it; and epistemic without draws."""
    classes, negatives = seen.known.classes, negatives_of(seen)
    ask = {"negatives": negatives}
    bayes = familiarities(seen.vlm, images, classes, SCORES, **ask)
    names = {"mcm": "MCM", "max_cosine": "max cosine", "energy": "energy", "neglabel": "NegLabel"}
    found = {title: bayes[score] for score, title in names.items()}
    for title, predictive in (("plain", "plain"), *seen.temperatures.items()):
        of = familiarities(seen.vlm, images, classes, ["msp", "entropy"], predictive=predictive)
        found |= {f"{title}, MSP": of["msp"], f"{title}, entropy": of["entropy"]}
    found |= {"Bayes, MSP": bayes["msp"], "Bayes, entropy": bayes["entropy"], "Bayes, epistemic": bayes["epistemic"]}
    found["Bayes, epistemic without draws"] = -seen.vlm.expanded_epistemic(images, classes)
    return found | {"image variance": bayes["variance"], "text variance": bayes["text_variance"]}


def negatives_of(seen: Seen) -> Features:
    """Words of the training captions that are no names, the 15 % that are least like the names."""
    names = set(seen.known.names)
    words = sorted({word for caption in world.load("train").captions for word in caption.split(", ")} - names)
    return seen.store.texts(mine_negatives(seen.vlm, words, seen.known.classes, progress=False))


# Wrong answers --------------------------------------------------------------------------------------------------------


def failures(seen: Seen) -> dict[str, dict[str, dict[str, float]]]:
    """By set and score: how well it finds the wrong answers among names."""
    return {name: of_set(seen, seen.set(name), seen.temperatures) for name in SEVEN}


def kinds(seen: Seen) -> dict[str, dict[str, dict[str, float]]]:
    """The same among Unicode's subgroups, of which there are labelled images enough for ICPE."""
    train = _by_subgroup(seen, "train")
    counts = torch.bincount(train.labels, minlength=len(train.names))
    kept = (counts >= LEAST).nonzero()[:, 0]
    number = {int(old): new for new, old in enumerate(kept)}

    def chosen(of: Set) -> Set:
        rows = [row for row, label in enumerate(of.labels.tolist()) if label in number]
        labels = torch.tensor([number[label] for label in of.labels[rows].tolist()])
        return Set(of.images[rows], labels, of.classes[kept], tuple(of.names[int(old)] for old in kept))

    train, validation = chosen(train), chosen(_by_subgroup(seen, "validation"))
    logits = seen.vlm.logits(validation.images, validation.classes)
    temperatures = {
        "temperature": fit_temperature(logits, validation.labels).value,
        "raised temperature": raised(logits, validation.labels).value,
    }
    tuned = Tuned(seen, validation)
    rivals = {
        "ICPE": ICPE.fit(seen.vlm.image.embed(train.images), train.labels, train.names, least=LEAST),
        "ICPE, shrunk": ICPE.fit(seen.vlm.image.embed(train.images), train.labels, train.names, shrinkage=0.5),
    }
    return {name: of_set(tuned.seen, chosen(_by_subgroup(seen, name)), temperatures, rivals) for name in SEVEN}


@dataclass(frozen=True)
class Tuned:
    """A model with tau tuned for other classes."""

    of: Seen
    on: Set

    @property
    def seen(self) -> Seen:
        again = Seen(self.of.name, self.of.cifar)
        vlm = self.of.vlm.copy().tune(self.on.images, self.on.labels, self.on.classes, progress=False)
        again.__dict__["vlm"] = vlm
        return again


def _by_subgroup(seen: Seen, name: str) -> Set:
    """A set with subgroups as classes, each the mean over the names of its concepts."""
    every = [kind for group in GROUPS for kind in subgroups(group)]
    names = seen.known.names
    texts = seen.known.classes.pooled(torch.tensor([every.index(subgroup_of(each)) for each in names]), len(every))
    of = seen.set(name)
    labels = torch.tensor([every.index(subgroup_of(of.names[label])) for label in of.labels.tolist()])
    return Set(of.images, labels, texts, tuple(every))


def of_set(
    seen: Seen, of: Set, temperatures: dict[str, float], rivals: dict[str, ICPE] | None = None
) -> dict[str, dict[str, float]]:
    """Every score on the plain model's answers, so that they rank the same errors; and Bayes on its own answers."""
    plain = familiarities(seen.vlm, of.images, of.classes, ["msp", "entropy"], predictive="plain")
    scores = {"plain, MSP": plain["msp"], "plain, entropy": plain["entropy"]}
    for title, value in temperatures.items():
        found = familiarities(seen.vlm, of.images, of.classes, ["msp", "entropy"], predictive=value)
        scores |= {f"{title}, MSP": found["msp"], f"{title}, entropy": found["entropy"]}
    bayes = familiarities(seen.vlm, of.images, of.classes, ["msp", "entropy", "epistemic"])
    scores |= {f"Bayes, {name}": bayes[key] for name, key in (("MSP", "msp"), ("entropy", "entropy"))}
    scores["Bayes, epistemic"] = bayes["epistemic"]
    scores["Bayes, epistemic without draws"] = -seen.vlm.expanded_epistemic(of.images, of.classes)
    probs = seen.vlm.plain(of.images, of.classes)
    answers = probs.argmax(dim=1)
    for title, rival in (rivals or {}).items():
        confidence = probs.gather(1, answers[:, None])[:, 0]
        scores[title] = rival.score(seen.vlm.image.embed(of.images), answers, confidence)
    correct, own = answers == of.labels, seen.vlm.classify(of.images, of.classes).labels == of.labels
    result = {title: _judged(score, correct, scores["plain, MSP"]) for title, score in scores.items()}
    result["Bayes, MSP, own answers"] = _judged(scores["Bayes, MSP"], own, None)
    return result


def _judged(score: Tensor, correct: Tensor, baseline: Tensor | None) -> dict[str, float]:
    """AUROC, AURC and AUGRC; and DeLong's difference of the AUROC to the plain largest probability."""
    found = {
        "auroc": auroc(-score, ~correct),
        "aurc": aurc(-score, correct),
        "augrc": augrc(-score, correct),
        "accuracy": float(correct.double().mean()),
    }
    if baseline is None:
        return found
    against = delong(-score, -baseline, ~correct)
    return {**found, "less plain": against.difference, "p": against.p}


if __name__ == "__main__":
    main()
