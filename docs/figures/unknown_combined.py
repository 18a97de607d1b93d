"""Is there one score that finds wrong answers as well as the plain model without a shift, and as Bayes with one?

Judged on the plain model's answers. The combinations were chosen by looking at emoji-clip-colour alone.
"""

from __future__ import annotations

import torch
from scipy.stats import mannwhitneyu
from torch import Tensor
from unknown_data import KNOWN, SEVEN, Seen, Set

from bayesvlm.evaluation import auroc
from bayesvlm.safety import conformal, familiarities

WEIGHTS = (0.1, 0.25, 0.5, 0.75)
LEVEL, BATCHES, TIMES = 0.01, (50, 100, 200), 200


def combined(seen: Seen) -> dict[str, dict[str, float]]:
    """AUROC of errors by combination and set; what the variances say alone; and how often a batch is told shifted.

    Of the new drawings one half is what the rest is compared with, and the other half is measured, as every set is.
    """
    whole = seen.known
    order = torch.randperm(len(whole.images), generator=torch.Generator().manual_seed(0))
    half = len(order) // 2
    reference = -_entropy(seen, _rows(whole, order[:half]))
    found: dict[str, dict[str, float]] = {}
    for name in SEVEN:
        of = _rows(whole, order[half:]) if name == KNOWN else seen.set(name)
        scores, wrong = _candidates(seen, of, reference)
        areas = {title: auroc(-score, wrong) for title, score in scores.items()}
        shifts = -_entropy(seen, of)
        areas["shift, p"] = _shifted(shifts, reference)
        areas["by the batch"] = areas["Bayes" if areas["shift, p"] < LEVEL else "plain"]
        generator = torch.Generator().manual_seed(1)
        for size in BATCHES:
            drawn = [shifts[torch.randperm(len(shifts), generator=generator)[:size]] for _ in range(TIMES)]
            areas[f"told shifted, batches of {size}"] = sum(_shifted(b, reference) < LEVEL for b in drawn) / TIMES
        found[name] = areas
    return found


def _rows(of: Set, rows: Tensor) -> Set:
    return Set(of.images[rows], of.labels[rows], of.classes, of.names)


def _entropy(seen: Seen, of: Set) -> Tensor:  # [N]
    """Familiarity by Bayesian entropy."""
    return familiarities(seen.vlm, of.images, of.classes, ["entropy"])["entropy"]


def _shifted(entropies: Tensor, reference: Tensor) -> float:
    """p-value of the one-sided rank test that these entropies are higher than those of familiar images."""
    return float(mannwhitneyu(entropies.numpy(), reference.numpy(), alternative="greater").pvalue)


def _candidates(seen: Seen, of: Set, reference: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Confidence by combination, [N] each, and which answers are wrong."""
    plain = familiarities(seen.vlm, of.images, of.classes, ["msp", "entropy"], predictive="plain")
    bayes = familiarities(seen.vlm, of.images, of.classes, ["msp", "entropy", "variance"])
    answers = seen.vlm.plain(of.images, of.classes).argmax(dim=1)
    texts = seen.vlm.posterior["text"].embed(of.classes)
    variance = texts.covariance.trace() / texts.mean.square().sum(dim=1)
    text_variance = variance[answers].double()
    one, other = _logit(plain["msp"]), _logit(bayes["msp"])
    familiar = conformal.p_values(-reference, bayes["entropy"])
    temperature = seen.temperatures["temperature"]
    scaled = familiarities(seen.vlm, of.images, of.classes, ["msp"], predictive=temperature)["msp"]
    scores = {"plain": one, "Bayes": other, "temperature": scaled}
    scores |= {f"{weight:g} of Bayes": (1 - weight) * one + weight * other for weight in WEIGHTS}
    scores["by the p-value"] = familiar * one + (1 - familiar) * other
    entropies = -plain["entropy"], -bayes["entropy"]
    scores["plain entropy"] = -entropies[0]
    scores["both entropies"] = -entropies[0] * entropies[1]
    scores["plain entropy, text variance"] = -(entropies[0].clamp_min(1e-12).log() + text_variance.log())
    scores["text variance alone"] = -text_variance
    scores["image variance alone"] = bayes["variance"]
    return scores, answers != of.labels


def _logit(probs: Tensor) -> Tensor:
    return (probs / (1 - probs).clamp_min(1e-15)).log()
