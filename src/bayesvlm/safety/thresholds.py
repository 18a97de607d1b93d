"""Which labels an image carries: a threshold for each, fitted on validation images for a chosen precision."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError, BayesVLMWarning, check_choice, check_count, first_line
from bayesvlm.core.features import Features
from bayesvlm.core.notebook import html_table
from bayesvlm.core.prediction import Prediction
from bayesvlm.predicting import predict
from bayesvlm.prompts import ClassNames, Templates
from bayesvlm.safety.calibrated import CalibratedFor, is_finite_number, load_calibration, save_calibration
from bayesvlm.safety.labels import Labels, multi_hot
from bayesvlm.safety.precision import NEVER, ThresholdFit, check_share, fewest_images, precision_thresholds
from bayesvlm.safety.splitting import check_fresh
from bayesvlm.vlm import BayesVLM

Score = Literal["label_probs", "probs", "mean"]
KIND = "label thresholds"
SHOWN = 5  # labels in a sentence


@dataclass(frozen=True, eq=False)
class LabelThresholds:
    """A threshold for each label. Called on inputs, it says which labels they carry, [N, C] bool.

    What is promised: for each label by itself, with probability `confidence` over the draw of the validation images,
    at least `precision` of the images that are flagged carry it, among images like the validation images, which must
    not have been used to train or tune the model. Not promised: all labels at once (of 100 labels, expect the promise
    broken for up to 5 at a confidence of 0.95), images of another kind, and any recall.

    Attributes:
        precision, confidence: as they were asked for; without a confidence nothing is promised.
        score: what the thresholds are of, an attribute of `Prediction`.
        validation: the thresholds, and what they did on the validation images.
        calibrated_for: the model and the classes.
    """

    precision: float
    confidence: float | None
    score: Score
    validation: ThresholdFit
    calibrated_for: CalibratedFor

    @classmethod
    def calibrate(
        cls,
        vlm: BayesVLM,
        inputs: Any,
        labels: Labels,
        classes: ClassNames | Features,
        precision: float = 0.9,
        *,
        templates: Templates | None = None,
        confidence: float | None = 0.95,
        score: Score | None = None,
        progress: bool | None = None,
    ) -> LabelThresholds:
        """For each label the smallest threshold that the precision is kept with.

        Labels of which no threshold can be promised get an infinite one, which flags nothing, and a warning names them.

        Args:
            vlm: a model with a posterior.
            inputs: validation images or Features, [N]; not those that tau was tuned on.
            labels: of each input one label or a list of them, as names or indices; or a matrix [N, C] of 0 and 1.
            classes, templates: as for `classify`.
            precision: the share of flagged images that are to carry the label.
            confidence: of the promise, which is for images that were not seen; None takes the smallest threshold with
                this precision on the validation images themselves, and promises nothing.
            score: "label_probs", each label by itself, for models trained with the sigmoid loss (SigLIP), whose default
                it is; "probs", the softmax, which is relative to the other classes, so that labels of one image take
                from each other; "mean", the expected cosine, of each label by itself for any model.
        """
        precision = check_share("precision", precision)
        confidence = None if confidence is None else check_share("confidence", confidence)
        score = _checked_score(vlm, score)
        calibrated_for = CalibratedFor.of(vlm, classes, templates, progress)
        images = vlm.image_features(inputs, progress=progress)
        check_fresh(vlm, images, None, stacklevel=2)
        carried = multi_hot(labels, calibrated_for.names, len(images), len(calibrated_for.classes))
        scores = _scores(_prediction(calibrated_for, images), score)
        found = precision_thresholds(scores, carried, precision, confidence)
        thresholds = cls(precision, confidence, score, found, calibrated_for)
        if bool(thresholds.never.any()):
            warnings.warn(thresholds._without(), BayesVLMWarning, stacklevel=2)
        return thresholds

    @property
    def thresholds(self) -> Tensor:  # [C] float64
        """Least score that is flagged; infinite where none is good enough."""
        return self.validation.thresholds

    @property
    def classes(self) -> tuple[str, ...] | None:
        """What the labels are called; None: they were given as Features."""
        return self.calibrated_for.names

    @property
    def never(self) -> Tensor:  # [C] bool
        """Labels that no image gets, because no threshold is good enough."""
        return self.thresholds == NEVER

    def __len__(self) -> int:
        return len(self.thresholds)

    def __call__(self, inputs: Any, *, progress: bool | None = None) -> Tensor:  # [N, C] bool
        """Which labels images (or Features) carry; `apply` where there is a prediction already, as of a stream."""
        vlm = self.calibrated_for.vlm
        return self.apply(_prediction(self.calibrated_for, vlm.image_features(inputs, progress=progress)))

    def apply(self, prediction: Prediction) -> Tensor:  # [N, C] bool
        """Which labels the inputs of a prediction carry: one of `classify`, or of `stream`, for the same classes.

        A prediction says how many classes it is of and what they are called, and that is checked; that it was made with
        the model, posterior, tau, method and prompts of `calibrated_for` is up to the caller. Calling the thresholds on
        inputs makes the prediction that they hold for.
        """
        if prediction.probs.shape[1] != len(self):
            raise BayesVLMError(
                f"The thresholds are of {len(self)} labels and the prediction of {prediction.probs.shape[1]} classes; "
                "classify with the classes they were calibrated for."
            )
        if prediction.classes is not None and self.classes is not None and prediction.classes != self.classes:
            place = next(i for i, name in enumerate(self.classes) if name != prediction.classes[i])
            raise BayesVLMError(
                f"The thresholds are for another class list: class {place} is {self.classes[place]!r} there and "
                f"{prediction.classes[place]!r} in the prediction; classify with the classes they were calibrated for."
            )
        scores = _scores(prediction, self.score)
        return scores.double() >= self.thresholds.to(scores.device)

    def names_of(self, carried: Tensor) -> list[list[str]]:  # [N, C] bool
        """The names of the labels of each input, of what a call returned."""
        if self.classes is None:
            raise BayesVLMError("The classes were given as Features and have no names; use the columns' indices.")
        names = self.classes
        return [[names[k] for k in row.nonzero().flatten().tolist()] for row in carried]

    # Keeping them ----------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write a json file (or one in a folder) with the thresholds and what they hold for; returns the file."""
        found = self.validation
        numbers = {name: getattr(found, name).tolist() for name in ("positives", "flagged", "correct")}
        content = {
            "precision": self.precision,
            "confidence": self.confidence,
            "score": self.score,
            "thresholds": [None if value == NEVER else value for value in found.thresholds.tolist()],
            "validation": {"images": found.images, **numbers},
        }
        return save_calibration(path, KIND, self.calibrated_for, content)

    @classmethod
    def load(
        cls,
        path: str | Path,
        vlm: BayesVLM,
        classes: ClassNames | Features | None = None,
        *,
        templates: Templates | None = None,
    ) -> LabelThresholds:
        """Read what `save` wrote, for the model and the classes it holds for; anything else is refused.

        Args:
            path: the file, or its folder.
            vlm: the model, with the posterior, that they were calibrated for.
            classes, templates: None: those that were saved. Given, they are checked against those.
        """
        entries = ("precision", "confidence", "score", "thresholds", "validation")
        raw, kept = load_calibration(path, KIND, entries)
        calibrated_for = CalibratedFor.from_json(kept, vlm, classes, templates, str(path))
        numbers, confidence = raw["validation"], raw["confidence"]
        try:
            strange = [value for value in raw["thresholds"] if value is not None and not is_finite_number(value)]
            if strange:
                raise BayesVLMError(f"a threshold is {str(strange[0])[:40]}")
            values = [NEVER if value is None else value for value in raw["thresholds"]]
            thresholds = torch.tensor(values, dtype=torch.float64)
            counts = [torch.tensor(numbers[name], dtype=torch.long) for name in ("positives", "flagged", "correct")]
            check_choice("score", raw["score"], get_args(Score))
            precision = check_share("precision", raw["precision"])
            confidence = None if confidence is None else check_share("confidence", confidence)
            found = ThresholdFit(thresholds, check_count("images", numbers["images"]), *counts)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise BayesVLMError(f"{path} is damaged ({first_line(error)}); copy or make it again.") from None
        if any(part.shape != (kept["classes"],) for part in (thresholds, *counts)):
            raise BayesVLMError(
                f"{path} has {thresholds.numel()} thresholds for {kept['classes']} classes; copy or make it again."
            )
        return cls(precision, confidence, raw["score"], found, calibrated_for)

    # How they print --------------------------------------------------------------------------------------------------

    def _promise(self) -> str:
        sure = "" if self.confidence is None else f" with a confidence of {self.confidence:g}"
        return f"a precision of {self.precision:g}{sure}"

    def _without(self) -> str:
        """Which labels have no threshold, and why."""
        found, never = self.validation, self.never.nonzero().flatten().tolist()
        least = 1 if self.confidence is None else fewest_images(self.precision, self.confidence)
        few = [k for k in never if found.positives[k] < least]
        wrong = [k for k in never if found.positives[k] >= least]
        reasons = []
        if few:
            rarest = min((int(found.positives[k]) for k in few if found.positives[k]), default=0)
            images = math.ceil(least * found.images / rarest) if rarest else 0
            more = f" (about {images:,} validation images like these, for the rarest of them)" if images else ""
            reasons.append(
                f"{self._listed(few)} would need {least} images with the label at least{more}, and more where some "
                "that would be flagged do not carry it"
            )
        if wrong:
            reasons.append(f"of {self._listed(wrong)} too many of the most confident images do not carry the label")
        have = "has" if len(never) == 1 else "have"
        return (
            f"{len(never)} of {len(self)} labels {have} no threshold for {self._promise()}, so that no image gets "
            f"{'it' if len(never) == 1 else 'them'}: {'; '.join(reasons)}."
        )

    def _listed(self, labels: list[int]) -> str:
        positives = self.validation.positives
        shown = [f"{self.calibrated_for.name(k)} ({int(positives[k])} images)" for k in labels[:SHOWN]]
        return ", ".join(shown) + (f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else "")

    def __repr__(self) -> str:
        able = len(self) - int(self.never.sum())
        return (
            f"LabelThresholds({self._promise()}, of {self.score}: {able} of {len(self)} labels, "
            f"fitted on {self.validation.images} images)"
        )

    def _repr_html_(self) -> str:
        """A table for notebooks: every label with its threshold and what it did on the validation images."""
        found, rows = self.validation, []
        for k in range(min(len(self), 50)):
            shares = [f"{value:.3f}" for value in (float(found.precision[k]), float(found.recall[k]))]
            threshold = ["never", "", "0"] if self.never[k] else [f"{float(self.thresholds[k]):.3g}", *shares]
            rows.append([self.calibrated_for.name(k), str(int(found.positives[k])), *threshold])
        columns = ["label", "images", "threshold", "precision", "recall"]
        return html_table(repr(self), columns, rows, len(self) > len(rows), "On the validation images.")


def _checked_score(vlm: BayesVLM, score: Score | None) -> Score:
    """The score, or the model's default, if the model has it."""
    if score is None:
        return "probs" if vlm.label_bias is None else "label_probs"
    check_choice("score", score, get_args(Score))
    if score == "label_probs" and vlm.label_bias is None:
        raise BayesVLMError(
            "score='label_probs': this model was trained with a softmax, so a label has a probability among the others "
            "and none by itself; use score='mean', the expected cosine, or 'probs'."
        )
    return score


@torch.no_grad()
def _prediction(calibrated_for: CalibratedFor, images: Features) -> Prediction:
    """As `classify` makes it, of one label too."""
    return predict(calibrated_for.vlm, images, calibrated_for.classes, calibrated_for.names, "probcosine", 128, 0)


def _scores(prediction: Prediction, score: Score) -> Tensor:  # [N, C]
    found: Tensor | None = getattr(prediction, score)
    if found is None:
        raise BayesVLMError(
            "The thresholds are of label_probs, which this prediction does not have; classify with the model they were "
            "calibrated for."
        )
    return found
