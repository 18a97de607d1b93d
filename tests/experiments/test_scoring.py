"""Every figure of a method by its formula, written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesvlm.evaluation import Outcomes, bootstrap_interval
from bayesvlm.experiments.scoring import Scores


def drawn(seed: int, n: int = 60, classes: int = 5) -> tuple[Tensor, Tensor]:
    """Probabilities that know something of their labels, and the labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    logits = 2 * torch.randn(n, classes, generator=generator, dtype=torch.float64)
    logits[torch.arange(n), labels] += 1.5
    return torch.softmax(logits, dim=1), labels


def by_hand(probs: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    n = len(labels)
    confidence, correct = probs.max(axis=1), probs.argmax(axis=1) == labels
    nll = np.array([-math.log(probs[i, labels[i]]) for i in range(n)])
    ece = 0.0
    for b in range(20):
        inside = (confidence >= b / 20) & (confidence < (b + 1) / 20 if b < 19 else confidence <= 1)
        if inside.any():
            ece += inside.sum() / n * abs(correct[inside].mean() - confidence[inside].mean())
    wrong = ~correct[np.argsort(-confidence)]
    order = np.argsort(confidence)
    gaps = np.concatenate([[0.0], np.cumsum(correct[order] - confidence[order])])
    borders = np.interp(np.linspace(0, n, 21), np.arange(n + 1), gaps)  # bins of equal mass
    doubt = 1 - confidence
    threshold = max(t for t in doubt if (doubt[~correct] >= t).mean() >= 0.95)
    return {
        "top1": correct.mean(),
        "top1_error": correct.std(ddof=1) / math.sqrt(n),
        "nlpd": nll.mean(),
        "nlpd_error": nll.std(ddof=1) / math.sqrt(n),
        "ece": ece,
        "adaptive_ece": float(np.abs(np.diff(borders)).sum() / n),
        "brier": float(np.mean([((probs[i] - np.eye(probs.shape[1])[labels[i]]) ** 2).sum() for i in range(n)])),
        "failure_auroc": float(np.mean([(a > b) + (a == b) / 2 for a in doubt[~correct] for b in doubt[correct]])),
        "failure_fpr95": float((doubt[correct] >= threshold).mean()),
        "aurc": float(np.mean([wrong[:k].mean() for k in range(1, n + 1)])),
        "e_aurc": float(np.mean([wrong[:k].mean() - np.sort(wrong)[:k].mean() for k in range(1, n + 1)])),
        "augrc": float(np.mean([wrong[:k].sum() / n for k in range(1, n + 1)])),
    }


@pytest.mark.parametrize("seed", range(5))
def test_scores_by_the_formulas(seed: int) -> None:
    probs, labels = drawn(seed)
    found = Scores.of(probs, labels)
    numbers = found.numbers()
    low, high = numbers.pop("ece_low"), numbers.pop("ece_high")
    assert numbers == pytest.approx(by_hand(probs.numpy(), labels.numpy()), rel=1e-9)
    assert (low, high) == bootstrap_interval(Outcomes.ece, probs, labels)
    assert len(found.reliability.count) == 10
    assert int(found.reliability.count.sum()) == 60
    assert float(found.risk_coverage.risk[-1]) == pytest.approx(1 - found.top1.value), "answering all, all errors count"


def test_a_perfect_and_a_hopeless_method() -> None:
    labels = torch.arange(8) % 4
    right = Scores.of(torch.eye(4, dtype=torch.float64)[labels], labels)
    assert (right.top1.value, right.nlpd.value, right.ece, right.aurc) == (1, 0, 0, 0)
    wrong = Scores.of(torch.eye(4, dtype=torch.float64)[(labels + 1) % 4], labels)
    assert (wrong.top1.value, wrong.ece, wrong.aurc) == (0, 1, 1)
    assert wrong.nlpd.value == pytest.approx(-math.log(np.finfo(np.float64).tiny))
    assert right.numbers()["failure_auroc"] is None, "where nothing is wrong there is nothing to rank"


def test_votes_count_for_top1_and_nothing_else() -> None:
    probs, labels = drawn(0)
    outcomes = Outcomes.of(probs, labels)
    found = Scores(outcomes, voted=torch.ones(60, dtype=torch.bool))
    assert found.top1.value == 1
    rest = {key: value for key, value in found.numbers().items() if not key.startswith("top1")}
    assert rest == {key: value for key, value in Scores(outcomes).numbers().items() if not key.startswith("top1")}
