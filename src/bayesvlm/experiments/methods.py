"""The ways to predict that are compared: plain, temperature scaling, Bayes, and the first and last with votes of views.

Temperature scaling comes twice: at the best temperature of a validation set, and raised as far as that set allows
(`evaluation.raised_temperature`). Which is better depends on the shift, so that what is said of Bayes against
temperature scaling has to be said against both.

Models that predict variances have ways of their own: by the mean, by the score they were trained with, by ProbCosine.

All of them start from the same features and go through them a block of rows at a time: memory is bounded however many
there are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bayesvlm.core.blocks import row_blocks
from bayesvlm.core.errors import BayesVLMError, check_choice
from bayesvlm.core.features import Features
from bayesvlm.evaluation import Outcomes, apply_temperature, fit_temperature, raised_temperature, vote
from bayesvlm.experiments.scoring import Scores
from bayesvlm.vlm import BayesVLM

METHODS = ("plain", "temperature", "raised temperature", "TTA", "Bayes", "Bayes + TTA")
SINGLE = ("plain", "temperature", "raised temperature", "Bayes")
"""Those that look at an image once."""
TEMPERED = ("temperature", "raised temperature")
"""Those that need a validation set."""
VOTING = ("TTA", "Bayes + TTA")
"""Those that let views of it vote."""
PREDICTED = ("mean", "native", "ProbCosine")
"""Those of models that predict variances (ProLIP, PCME++)."""


@dataclass(frozen=True)
class Methods:
    """A model, the temperature found for it, the share of views that vote, and the temperature raised."""

    vlm: BayesVLM
    temperature: float | None = None
    keep: float = 0.3
    raised: float | None = None

    @classmethod
    def tuned(cls, vlm: BayesVLM, images: Features, labels: Tensor, classes: Features, keep: float = 0.3) -> Methods:
        """The temperatures by the NLPD of these labelled features, [N]: the best, and that one raised."""
        logits = torch.cat([vlm.logits(images[rows], classes) for rows in row_blocks(len(images), len(classes))])
        labels = labels.to(logits.device)
        best, raised = fit_temperature(logits, labels), raised_temperature(logits, labels)
        return cls(vlm, best.value, keep, raised.value)

    def scores(
        self,
        images: Features,
        labels: Tensor,
        classes: Features,
        methods: Sequence[str] = SINGLE,
        views: Features | None = None,
    ) -> dict[str, Scores]:
        """Each method's scores on labelled images.

        Args:
            images: [N]
            labels: [N], integers
            classes: [C]
            methods: which.
            views: [N * V], the views of each image one after the other, for the methods that vote.
        """
        labels = labels.to(self.vlm.device)
        return {method: self._score(method, images, labels, classes, views) for method in methods}

    def _score(
        self, method: str, images: Features, labels: Tensor, classes: Features, views: Features | None
    ) -> Scores:
        predict = self._predictor(method)
        if method not in VOTING:
            blocks = row_blocks(len(images), max(len(classes), images.activations.shape[1]))
            parts = [Outcomes.of(predict(images[rows], classes), labels[rows]) for rows in blocks]
            return Scores(Outcomes.concatenate(parts))
        if views is None or len(views) % len(images):
            raise BayesVLMError(f"The method {method!r} needs views of the images, equally many of each; pass views.")
        count = len(views) // len(images)
        outcomes, voted = [], []
        width = max(len(classes), images.activations.shape[1])
        for rows in row_blocks(len(images), width * count):
            seen = views[slice(rows.start * count, rows.stop * count)]
            result = vote(predict(seen, classes).reshape(-1, count, len(classes)), self.keep)
            outcomes.append(Outcomes.of(result.probs, labels[rows]))
            voted.append(result.labels == labels[rows])
        return Scores(Outcomes.concatenate(outcomes), torch.cat(voted))

    def _predictor(self, method: str) -> Callable[[Features, Features], Tensor]:  # [N, C]
        check_suits(self.vlm, method)
        if method in TEMPERED:
            value = self.temperature if method == "temperature" else self.raised
            if value is None:
                raise BayesVLMError(f"No temperature was found; tune on a validation set, or leave {method!r} out.")
            return lambda images, classes: apply_temperature(self.vlm.logits(images, classes), value)
        if method in ("plain", "TTA", "mean"):
            return self.vlm.plain
        if method == "native":
            return lambda images, classes: self.vlm.classify(images, classes, method="native").probs
        return lambda images, classes: self.vlm.classify(images, classes).probs


def check_suits(vlm: BayesVLM, method: str) -> None:
    """Refuse a method that the model has no use for."""
    check_choice("method", method, (*METHODS, *PREDICTED))
    if (method in PREDICTED or "Bayes" in method) and (method in PREDICTED) != vlm.predicts_variance:
        kind = "predicts its variances" if vlm.predicts_variance else "predicts no variances"
        others = ", ".join(PREDICTED if vlm.predicts_variance else SINGLE)
        raise BayesVLMError(f"The method {method!r} is not for a model that {kind}; use some of {others}.")


def losses(scores: Mapping[str, Scores], metric: Literal["top1", "nlpd"]) -> dict[str, Tensor]:  # [N] each
    """What a paired test compares: one loss per input."""
    return {name: found.nll if metric == "nlpd" else 1 - found.correct.double() for name, found in scores.items()}
