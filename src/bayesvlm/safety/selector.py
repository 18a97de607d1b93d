"""Which images to answer, so that answers are wrong no more often than a chosen risk."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesvlm.classes import label_indices
from bayesvlm.core.errors import BayesVLMError, BayesVLMWarning, first_line
from bayesvlm.core.features import Features
from bayesvlm.core.notebook import html_table
from bayesvlm.core.printing import described
from bayesvlm.prompts import ClassNames, Templates
from bayesvlm.safety.basis import Basis, OfBasis, check_varied
from bayesvlm.safety.calibrated import (
    load_calibration,
    load_tensors,
    save_calibration,
)
from bayesvlm.safety.familiar import Predictive
from bayesvlm.safety.precision import check_share
from bayesvlm.safety.selective import SelectiveFit, fewest_answers, selective_threshold
from bayesvlm.vlm import BayesVLM

KIND = "selector"
_EXAMPLE = "0.05 for 5 %"


@dataclass(frozen=True, eq=False)
class Selection:
    """What a selector says of inputs.

    Attributes:
        answered: whether each is answered.
        labels: the most probable class of each, answered or not.
        confidence: the score; higher = surer.
    """

    answered: Tensor  # [N] bool
    labels: Tensor  # [N]
    confidence: Tensor  # [N] float64

    __repr__ = described

    def __len__(self) -> int:
        return len(self.answered)


@dataclass(frozen=True, eq=False)
class Selector(OfBasis):
    """Answers the inputs it can answer at the chosen risk: called on inputs, it returns a `Selection`.

    What is promised: with probability `confidence` over the draw of the calibration images, at most `risk` of the
    answers are wrong, among images like those. Not promised: anything of images of another kind, and how many are
    answered.

    Attributes:
        risk, confidence: as they were asked for.
        calibration: the threshold, and what it did on the calibration images.
        scores, correct: of the calibration images.
        basis: what the score is of.
    """

    risk: float
    confidence: float
    calibration: SelectiveFit
    scores: Tensor  # [n] float64
    correct: Tensor  # [n] bool
    basis: Basis

    @classmethod
    def calibrate(
        cls,
        vlm: BayesVLM,
        inputs: Any,
        labels: Sequence[int] | Sequence[str] | Tensor,
        classes: ClassNames | Features,
        risk: float = 0.05,
        confidence: float = 0.95,
        *,
        score: str = "msp",
        templates: Templates | None = None,
        predictive: Predictive = "bayes",
        negatives: Sequence[str] | Features | None = None,
        source: str | None = None,
        batch_size: int | None = None,
        workers: int | None = None,
        progress: bool | None = None,
    ) -> Selector:
        """The selector that answers as many images as it can.

        Where no threshold keeps the promise it answers nothing, and a warning says so.

        Args:
            vlm: a model, with a posterior unless `predictive` says otherwise.
            inputs: images or Features, [n]; not those that tau was tuned on.
            labels: of each, as names or indices.
            classes, templates: as for `classify`.
            risk: the share of answers that may be wrong.
            confidence: of the promise.
            score, predictive, negatives: as for `familiarity`; the answer is the most probable class of `predictive`.
            source: what the calibration images are called; kept with the selector.
            batch_size, workers, progress: as for `classify`.
        """
        risk, confidence = check_share("risk", risk, _EXAMPLE), check_share("confidence", confidence, "0.95 for 95 %")
        basis = Basis.of(vlm, classes, templates, score, predictive, negatives, source, progress, answers=True)
        least, reason = fewest_answers(risk, confidence), f"a risk of {risk:g} with a confidence of {confidence:g}"
        images = basis.calibration_images(inputs, least, reason, batch_size, workers, progress)
        held = basis.calibrated_for
        target = label_indices(labels, held.names, len(images), len(held.classes)).cpu()
        scores, answers = basis.answers(images)
        check_varied(scores, f"The score {basis.score!r}")
        selector = cls._fitted(risk, confidence, scores, answers == target, basis)
        if not selector.calibration.answered:
            warnings.warn(selector._nothing(), BayesVLMWarning, stacklevel=2)
        return selector

    @classmethod
    def _fitted(cls, risk: float, confidence: float, scores: Tensor, correct: Tensor, basis: Basis) -> Selector:
        fit = selective_threshold(scores, correct, risk, confidence)
        return cls(risk, confidence, fit, scores, correct, basis)

    @property
    def threshold(self) -> float:
        """Least confidence that is answered; infinite where nothing is."""
        return self.calibration.threshold

    @property
    def coverage(self) -> float:
        """Share of the calibration images that are answered."""
        return self.calibration.coverage

    @property
    def score(self) -> str:
        """Name of the score."""
        return str(self.basis.score)

    def with_risk(self, risk: float) -> Selector:
        """The same selector at another risk: nothing has to be computed again."""
        risk = check_share("risk", risk, _EXAMPLE)
        if len(self.scores) < fewest_answers(risk, self.confidence):
            raise BayesVLMError(
                f"There are {len(self.scores)} calibration images, and a risk of {risk:g} with a confidence of "
                f"{self.confidence:g} needs {fewest_answers(risk, self.confidence)} at least; calibrate on more."
            )
        selector = self._fitted(risk, self.confidence, self.scores, self.correct, self.basis)
        if not selector.calibration.answered:
            warnings.warn(selector._nothing(), BayesVLMWarning, stacklevel=2)
        return selector

    def __call__(
        self, inputs: Any, *, batch_size: int | None = None, workers: int | None = None, progress: bool | None = None
    ) -> Selection:
        """Which inputs (images or Features) are answered, and how."""
        return self.of(*self.basis.answers(self.basis.images(inputs, batch_size, workers, progress)))

    def of(self, confidence: Tensor, labels: Tensor) -> Selection:  # [N], [N]
        """The same of inputs whose confidence and most probable class are known: by the same score, of the same model,
        classes and posterior, which is up to the caller."""
        if confidence.ndim != 1 or confidence.shape != labels.shape or bool(confidence.isnan().any()):
            raise BayesVLMError(
                f"confidence is {list(confidence.shape)} and labels {list(labels.shape)}; both must be [N], one number "
                "per input, without NaN."
            )
        confidence = confidence.detach().double().cpu()
        return Selection(confidence >= self.threshold, labels.cpu(), confidence)

    # Keeping it ------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write a json file (or one in a folder) and a safetensors file of the scores beside it; returns the former."""
        fit = self.calibration
        content = {
            "risk": self.risk,
            "confidence": self.confidence,
            "threshold": None if math.isinf(fit.threshold) else fit.threshold,
            "images": fit.images,
            "answered": fit.answered,
            "wrong": fit.wrong,
            **self.basis.to_json(),
        }
        tensors = {"scores": self.scores, "correct": self.correct, **self.basis.tensors()}
        return save_calibration(path, KIND, self.calibrated_for, content, tensors)

    @classmethod
    def load(
        cls,
        path: str | Path,
        vlm: BayesVLM,
        classes: ClassNames | Features | None = None,
        *,
        templates: Templates | None = None,
    ) -> Selector:
        """Read what `save` wrote, for the model and the classes it holds for; arguments as for `Detector.load`."""
        entries = ("risk", "confidence", "threshold", "images", "score", "predictive", "source")
        raw, kept = load_calibration(path, KIND, entries)
        tensors = load_tensors(path, KIND, raw, ["scores", "correct"])
        basis = Basis.from_json(raw, kept, tensors, vlm, classes, templates, str(path), scored=True)
        scores, correct = tensors["scores"], tensors["correct"]
        try:
            shares = check_share("risk", raw["risk"]), check_share("confidence", raw["confidence"])
            if scores.dtype != torch.float64 or correct.dtype != torch.bool:
                raise BayesVLMError(f"scores are {scores.dtype}, correct {correct.dtype}")
            found = cls._fitted(*shares, scores, correct, basis)
        except (BayesVLMError, RuntimeError, IndexError) as error:
            raise BayesVLMError(f"{path} is damaged ({first_line(error)}); copy or make it again.") from None
        return found

    # How it prints ---------------------------------------------------------------------------------------------------

    def _nothing(self) -> str:
        fit = self.calibration
        right = int(self.correct.sum())
        return (
            f"No threshold on {self.basis.described()} keeps a risk of {self.risk:g} with a confidence of "
            f"{self.confidence:g}, so nothing is answered: among the most confident of the {fit.images} calibration "
            f"images too many are wrong ({fit.images - right} of all); allow a larger risk, or take another score."
        )

    def __repr__(self) -> str:
        images = self.basis.images_described(self.calibration.images)
        return (
            f"Selector(a risk of {self.risk:g} with a confidence of {self.confidence:g}, by {self.basis.described()}: "
            f"answers {self.coverage:.1%}, {images})"
        )

    def _repr_html_(self) -> str:
        """A small table for notebooks."""
        fit = self.calibration
        rows = [
            ["score", self.basis.described()],
            ["calibration images", self.basis.images_described(fit.images).removeprefix("calibrated on ")],
            ["risk", f"{self.risk:g} at most, with a confidence of {self.confidence:g} (bound {fit.bound:.3g})"],
            ["answered", f"{fit.answered} of them ({self.coverage:.1%}), {fit.wrong} wrongly"],
            ["threshold", "none" if math.isinf(fit.threshold) else f"{fit.threshold:.4g}"],
        ]
        return html_table("Selector of what to answer", ["", ""], rows)
