"""Three ways to predict from the same features, scored alike: plain, temperature scaling, Bayes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesvlm.core.features import Features
from bayesvlm.evaluation import (
    Estimate,
    Outcomes,
    Reliability,
    RiskCoverage,
    apply_temperature,
    aurc,
    fit_temperature,
    risk_coverage,
)
from bayesvlm.vlm import BayesVLM

METHODS = ("plain", "temperature", "Bayes")


@dataclass(frozen=True)
class Scores:
    """One method on one set, input by input and in all: shares, nats; what its confidence is worth."""

    correct: Tensor  # [N], bool
    nll: Tensor  # [N], float64
    ece: float
    aurc: float
    reliability: Reliability
    risk_coverage: RiskCoverage

    @property
    def top1(self) -> Estimate:
        """Share of right answers."""
        return Estimate.of(self.correct.double())

    @property
    def nlpd(self) -> Estimate:
        """Mean surprise at the right answer."""
        return Estimate.of(self.nll)

    def numbers(self) -> dict[str, float]:
        """The figures alone, for json."""
        return {
            "top1": self.top1.value,
            "top1_error": self.top1.standard_error,
            "nlpd": self.nlpd.value,
            "nlpd_error": self.nlpd.standard_error,
            "ece": self.ece,
            "aurc": self.aurc,
        }


def score(probs: Tensor, labels: Tensor) -> Scores:  # [N, C], [N]
    """Accuracy, NLPD, ECE and selective prediction by the largest probability."""
    outcomes = Outcomes.of(probs, labels)
    uncertainty = 1 - outcomes.confidence.double()
    return Scores(
        outcomes.correct,
        outcomes.nll,
        float(outcomes.ece()),
        aurc(uncertainty, outcomes.correct),
        outcomes.reliability(bins=10),
        risk_coverage(uncertainty, outcomes.correct),
    )


@dataclass(frozen=True)
class Methods:
    """A model with a posterior, and the temperature found on the same validation set as its tau."""

    vlm: BayesVLM
    temperature: float

    @classmethod
    def tuned(cls, vlm: BayesVLM, images: Features, labels: Any, classes: Features) -> Methods:
        """The temperature that minimises the NLPD of these labelled features."""
        target = torch.as_tensor(labels)
        return cls(vlm, fit_temperature(vlm.logits(images, classes).double().cpu(), target).value)

    def probabilities(self, images: Features, classes: Features) -> dict[str, Tensor]:  # [N, C] each, float64
        """What each method says."""
        logits = self.vlm.logits(images, classes).double()
        return {
            "plain": torch.softmax(logits, dim=1),
            "temperature": apply_temperature(logits, self.temperature),
            "Bayes": self.vlm.classify(images, classes).probs.double(),
        }

    def scores(self, images: Features, labels: Any, classes: Features) -> Mapping[str, Scores]:
        """Each method's scores."""
        target = torch.as_tensor(labels, device=self.vlm.device)
        return {name: score(probs, target) for name, probs in self.probabilities(images, classes).items()}
