"""Three methods on the same features: their scores by the formulas, written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from bayesvlm import BayesVLM, Features
from bayesvlm.experiments.scoring import METHODS, Methods, score


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
    return {
        "top1": correct.mean(),
        "top1_error": correct.std(ddof=1) / math.sqrt(n),
        "nlpd": nll.mean(),
        "nlpd_error": nll.std(ddof=1) / math.sqrt(n),
        "ece": ece,
        "aurc": float(np.mean([wrong[:k].mean() for k in range(1, n + 1)])),
    }


@pytest.mark.parametrize("seed", range(5))
def test_scores_by_the_formulas(seed: int) -> None:
    probs, labels = drawn(seed)
    found = score(probs, labels)
    assert found.numbers() == pytest.approx(by_hand(probs.numpy(), labels.numpy()), rel=1e-9)
    assert len(found.reliability.count) == 10
    assert int(found.reliability.count.sum()) == 60
    assert float(found.risk_coverage.risk[-1]) == pytest.approx(1 - found.top1.value), "answering all, all errors count"


def test_a_perfect_and_a_hopeless_method() -> None:
    labels = torch.arange(8) % 4
    right = score(torch.eye(4, dtype=torch.float64)[labels], labels)
    assert (right.top1.value, right.nlpd.value, right.ece, right.aurc) == (1, 0, 0, 0)
    wrong = score(torch.eye(4, dtype=torch.float64)[(labels + 1) % 4], labels)
    assert (wrong.top1.value, wrong.ece, wrong.aurc) == (0, 1, 1)
    assert wrong.nlpd.value == pytest.approx(-math.log(np.finfo(np.float64).tiny))


# Plain, temperature, Bayes -------------------------------------------------------------------------------------------


def world(seed: int, noise: float, loss: str = "infonce") -> tuple[BayesVLM, Features, Tensor, Features]:
    """A fitted model without an encoder, and labelled features that carry so much noise."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    bias = {"logit_bias": -2.0} if loss == "sigmoid" else {}
    vlm = BayesVLM.from_projections(draw(6, 10), draw(6, 8), 2.0, loss=loss, **bias)
    vlm.fit([(Features(draw(50, 10)), Features(draw(50, 8)))], progress=False)
    classes = Features(draw(4, 8))
    labels = torch.arange(40) % 4
    solve = torch.linalg.pinv(vlm.image.weight) @ vlm.text.weight  # activations that land on their class
    images = classes.activations[labels] @ solve.T + noise * draw(40, 10)
    return vlm, Features(images), labels, classes


@pytest.mark.parametrize("loss", ["infonce", "sigmoid"])
@pytest.mark.parametrize("noise", [0.1, 1.0, 5.0])
@pytest.mark.parametrize("seed", range(3))
def test_temperature_is_never_worse_where_it_was_found(seed: int, noise: float, loss: str) -> None:
    vlm, images, labels, classes = world(seed, noise, loss)
    methods = Methods.tuned(vlm, images, labels.tolist(), classes)
    scores = methods.scores(images, labels.tolist(), classes)
    assert scores["temperature"].nlpd.value <= scores["plain"].nlpd.value + 1e-12
    assert scores["temperature"].top1 == scores["plain"].top1, "dividing logits changes no order"
    for factor in (0.9, 1.1):
        other = Methods(vlm, min(100.0, max(0.01, methods.temperature * factor)))
        assert (
            scores["temperature"].nlpd.value <= other.scores(images, labels, classes)["temperature"].nlpd.value + 1e-12
        )


def test_probabilities_of_the_three_methods() -> None:
    vlm, images, _, classes = world(0, 1.0)
    methods = Methods(vlm, 2.5)
    probs = methods.probabilities(images, classes)
    assert tuple(probs) == METHODS
    logits = vlm.logits(images, classes)
    torch.testing.assert_close(probs["plain"], torch.softmax(logits, dim=1))
    torch.testing.assert_close(probs["temperature"], torch.softmax(logits / 2.5, dim=1))
    torch.testing.assert_close(probs["Bayes"], vlm.classify(images, classes).probs)
    assert not torch.allclose(probs["plain"], probs["Bayes"], atol=1e-3)


def test_scores_are_of_those_probabilities() -> None:
    vlm, images, labels, classes = world(1, 1.0)
    methods = Methods(vlm, 0.7)
    scores = methods.scores(images, tuple(labels.tolist()), classes)
    for name, probs in methods.probabilities(images, classes).items():
        assert scores[name].numbers() == pytest.approx(by_hand(probs.numpy(), labels.numpy()), rel=1e-9), name
