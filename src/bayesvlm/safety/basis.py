"""What the numbers of a calibration are of: a score or probabilities, of a model and its classes, and where the images
came from. What `Detector`, `PredictionSets` and `Selector` have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.prompts import ClassNames, Templates
from bayesvlm.safety.calibrated import CalibratedFor, prompts_by_name, prompts_from_names
from bayesvlm.safety.familiar import Predictive, Scorer, check_possible, needs_posterior, score_name
from bayesvlm.safety.negatives import Negatives
from bayesvlm.safety.splitting import check_fresh
from bayesvlm.vlm import BayesVLM

_ROUNDING = 4 * torch.finfo(torch.float32).eps  # relative: what equal images may differ by
_NEGATIVE = "negatives."  # what tensors of negatives begin with, in a file


@dataclass(frozen=True, eq=False)
class Basis:
    """What a calibration is of.

    Args:
        calibrated_for: the model, and the classes.
        score: one of `SCORES`; None: it is of the probabilities of all classes.
        predictive: whose probabilities.
        negatives: for "neglabel".
        source: where the calibration images came from, as the caller says.
    """

    calibrated_for: CalibratedFor
    score: str | None
    predictive: Predictive
    negatives: Negatives | None = None
    source: str | None = None

    @classmethod
    def of(
        cls,
        vlm: BayesVLM,
        classes: ClassNames | Features,
        templates: Templates | None,
        score: str | None,
        predictive: Predictive,
        negatives: Sequence[str] | Features | None,
        source: str | None,
        progress: bool | None,
        *,
        answers: bool,
    ) -> Basis:
        """Everything checked, and the classes encoded.

        Args:
            answers: whether the predictive distribution is asked for classes, whatever the score is.
        """
        if source is not None and not isinstance(source, str):
            raise BayesVLMError(f"source={str(source)[:40]}; it must be text that says where the images came from.")
        asked = "msp" if score is None else score
        name = score_name(asked, predictive)
        wanted = [name, *(["msp"] if answers else [])]
        check_possible(vlm, wanted, predictive)
        if not isinstance(predictive, str):
            predictive = float(predictive)
        held = CalibratedFor.of(vlm, classes, templates, progress, bayesian=needs_posterior(wanted, predictive))
        against = Negatives.of(vlm, negatives, classes, templates, held.classes) if name == "neglabel" else None
        return cls(held, None if score is None else name, predictive, against, source)

    @property
    def scorer(self) -> Scorer:
        """What computes the scores and probabilities."""
        negatives = None if self.negatives is None else self.negatives.texts
        return Scorer(self.calibrated_for.vlm, self.calibrated_for.classes, self.predictive, negatives)

    def images(
        self, inputs: Any, batch_size: int | None = None, workers: int | None = None, progress: bool | None = None
    ) -> Features:
        """Features of the inputs."""
        vlm = self.calibrated_for.vlm
        return vlm.image_features(inputs, batch_size=batch_size, workers=workers, progress=progress)

    def calibration_images(
        self, inputs: Any, least: int, reason: str, batch_size: int | None, workers: int | None, progress: bool | None
    ) -> Features:
        """The same of images to calibrate on, if they are enough and did not tune tau.

        Args:
            least: so many are needed.
            reason: for what, to go on with.
        """
        images = self.images(inputs, batch_size, workers, progress)
        if len(images) < least:
            raise BayesVLMError(
                f"There are {len(images)} calibration images, and {reason} needs {least} at least; give more."
            )
        if self.calibrated_for.bayesian:
            check_fresh(self.calibrated_for.vlm, images, self.source, stacklevel=3)
        return images

    def scores(self, images: Features) -> Tensor:  # [N] float64
        """The score of each image."""
        return self.answers(images, labels=False)[0]

    def answers(self, images: Features, labels: bool = True) -> tuple[Tensor, Tensor]:  # [N] float64, [N]
        """The score of each image, and its most probable class."""
        assert self.score is not None
        found, best = self.scorer.answers(images, [self.score], labels)
        return found[self.score].cpu(), best.cpu()

    # Keeping it ------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """What a file says of it, beside what it is calibrated for."""
        negatives = None if self.negatives is None or self.negatives.prompts is None else self.negatives.prompts
        words = {} if negatives is None else {"negatives": prompts_by_name(negatives)}
        score = {} if self.score is None else {"score": self.score}
        return {**score, "predictive": self.predictive, "source": self.source, **words}

    def tensors(self) -> dict[str, Tensor]:
        """Negatives that have no words to encode them by."""
        if self.negatives is None or self.negatives.prompts is not None:
            return {}
        return {_NEGATIVE + name: value for name, value in self.negatives.texts.tensors().items()}

    @classmethod
    def from_json(
        cls,
        raw: Mapping[str, Any],
        kept: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        vlm: BayesVLM,
        classes: ClassNames | Features | None,
        templates: Templates | None,
        what: str,
        *,
        scored: bool,
    ) -> Basis:
        """What `to_json` and `tensors` kept, for this model; arguments as for `CalibratedFor.from_json`."""
        held = CalibratedFor.from_json(kept, vlm, classes, templates, what)
        predictive, source = raw["predictive"], raw["source"]
        try:
            score = score_name(raw["score"], predictive) if scored else None
            if not scored:
                score_name("msp", predictive)
            if source is not None and not isinstance(source, str):
                raise BayesVLMError(f"source is {str(source)[:40]}")
        except (KeyError, BayesVLMError) as error:
            raise BayesVLMError(f"{what} is damaged ({str(error).rstrip('.')}); copy or make it again.") from None
        against = _negatives(raw, tensors, vlm, what) if score == "neglabel" else None
        return cls(held, score, predictive, against, source)

    def described(self) -> str:
        """What it is of, in a few words; a score of plain cosines alone is nobody's."""
        whose = self.predictive if isinstance(self.predictive, str) else f"temperature {self.predictive:g}"
        score = "probabilities" if self.score is None else self.score.replace("_", " ")
        return score if whose == "bayes" and not self.calibrated_for.bayesian else f"{score} ({whose})"

    def images_described(self, count: int) -> str:
        """What it was calibrated on, in a few words."""
        return f"calibrated on {count:,} images" + ("" if self.source is None else f" of {self.source!r}")


def check_varied(scores: Tensor, what: str) -> Tensor:  # [n]
    """Scores of calibration images, if they tell any of them apart by more than rounding."""
    if len(scores) and float(scores.max() - scores.min()) <= _ROUNDING * float(scores.abs().max()):
        raise BayesVLMError(
            f"{what} of all {len(scores)} calibration images is {float(scores[0]):.6g}, so that no threshold tells any "
            "apart; check the images, name more classes, or take another score."
        )
    return scores


def _negatives(raw: Mapping[str, Any], tensors: Mapping[str, Tensor], vlm: BayesVLM, what: str) -> Negatives:
    words = raw.get("negatives")
    if words is None:
        parts = {name.removeprefix(_NEGATIVE): part for name, part in tensors.items() if name.startswith(_NEGATIVE)}
        try:
            return Negatives(Features(**parts).to(vlm.device), None)
        except TypeError:
            raise BayesVLMError(f"{what} has no negatives, which its score needs; copy or make it again.") from None
    right = isinstance(words, dict) and all(isinstance(texts, list) and texts for texts in words.values())
    if not right or not all(isinstance(text, str) for texts in words.values() for text in texts):
        raise BayesVLMError(f"{what} is damaged (negatives is {str(words)[:40]}); copy or make it again.")
    prompts = prompts_from_names(words)
    with torch.no_grad():
        return Negatives(vlm.encoder("texts").encode_classes(prompts), prompts)


class OfBasis:
    """What everything that was calibrated says of its basis and of its calibration images."""

    basis: Basis
    scores: Tensor  # [n], of the calibration images

    @property
    def predictive(self) -> Predictive:
        """Whose probabilities the score, the sets or the answers are of."""
        return self.basis.predictive

    @property
    def calibrated_for(self) -> CalibratedFor:
        """The model and the classes."""
        return self.basis.calibrated_for

    @property
    def n(self) -> int:
        """How many images it was calibrated on."""
        return len(self.scores)
