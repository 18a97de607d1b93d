"""Which images are unfamiliar, at a chosen rate of false alarms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from scipy.stats import beta, betabinom
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError, check_count, first_line
from bayesvlm.core.features import Features
from bayesvlm.core.notebook import html_table
from bayesvlm.core.printing import described
from bayesvlm.prompts import ClassNames, Templates
from bayesvlm.safety.basis import Basis, OfBasis, check_varied
from bayesvlm.safety.calibrated import load_calibration, load_tensors, save_calibration
from bayesvlm.safety.conformal import alarm_threshold, fewest, p_values
from bayesvlm.safety.familiar import Predictive
from bayesvlm.safety.precision import check_share
from bayesvlm.vlm import BayesVLM

KIND = "detector"
_EXAMPLE = "0.05 for 5 %"


@dataclass(frozen=True, eq=False)
class Detection:
    """What a detector says of inputs.

    Attributes:
        unknown: whether each is flagged as unfamiliar.
        p_value: how often a familiar input looks as unfamiliar as this one.
        familiarity: the score; higher = more familiar.
    """

    unknown: Tensor  # [N] bool
    p_value: Tensor  # [N] float64
    familiarity: Tensor  # [N] float64

    __repr__ = described

    def __len__(self) -> int:
        return len(self.unknown)


@dataclass(frozen=True, eq=False)
class Detector(OfBasis):
    """Flags unfamiliar images: called on inputs, it returns a `Detection`.

    What is promised: of familiar images, those like the calibration images, at most `false_alarms` are flagged, on
    average over the draw of the calibration images; `bound` says how many at most with a confidence. Not promised: how
    many unfamiliar images are found, and anything of familiar things that look otherwise (another style or camera).

    Attributes:
        false_alarms: alpha; images with a p-value of at most this are flagged.
        scores: of the calibration images, in ascending order.
        basis: what the scores are of.
    """

    false_alarms: float
    scores: Tensor  # [n] float64
    basis: Basis

    @classmethod
    def calibrate(
        cls,
        vlm: BayesVLM,
        inputs: Any,
        classes: ClassNames | Features,
        false_alarms: float = 0.05,
        score: str = "entropy",
        *,
        templates: Templates | None = None,
        predictive: Predictive = "bayes",
        negatives: Sequence[str] | Features | None = None,
        source: str | None = None,
        batch_size: int | None = None,
        workers: int | None = None,
        progress: bool | None = None,
    ) -> Detector:
        """A detector for images unlike these, given the classes that are known.

        Args:
            vlm: a model; with a posterior for the Bayesian scores.
            inputs: familiar images or Features, [n]; no labels are needed. Not those that tau was tuned on.
            classes, templates: as for `classify`.
            false_alarms: the share of familiar images that may be flagged, at most.
            score, predictive, negatives: as for `familiarity`.
            source: what the calibration images are called; kept with the detector.
            batch_size, workers, progress: as for `classify`.
        """
        false_alarms = check_share("false_alarms", false_alarms, _EXAMPLE)
        basis = Basis.of(vlm, classes, templates, score, predictive, negatives, source, progress, answers=False)
        least, reason = fewest(false_alarms), f"a false-alarm rate of {false_alarms:g}"
        images = basis.calibration_images(inputs, least, reason, batch_size, workers, progress)
        scores = check_varied(basis.scores(images), f"The score {basis.score!r}")
        return cls(false_alarms, scores.sort().values, basis)

    @property
    def score(self) -> str:
        """Name of the score."""
        return str(self.basis.score)

    @property
    def threshold(self) -> float:
        """Images that are less familiar than this are flagged."""
        return alarm_threshold(self.scores, self.false_alarms)

    def bound(self, confidence: float = 0.95, images: int | None = None) -> float:
        """The share of familiar images that is flagged at most, with a confidence over the calibration images.

        On average over them it is `false_alarms` at most; with these very images it may be somewhat more.

        Args:
            confidence: of the bound.
            images: of so many new images, whose share varies as well; None: of all there will ever be.
        """
        check_share("confidence", confidence, "0.95 for 95 %")
        place = math.floor((self.n + 1) * self.false_alarms + 1e-9)
        if images is None:
            return float(beta.ppf(confidence, place, self.n + 1 - place))
        count = check_count("images", images)
        return float(betabinom.ppf(confidence, count, place, self.n + 1 - place)) / count

    def with_false_alarms(self, false_alarms: float) -> Detector:
        """The same detector at another rate: nothing has to be computed again."""
        false_alarms = check_share("false_alarms", false_alarms, _EXAMPLE)
        if self.n < fewest(false_alarms):
            raise BayesVLMError(
                f"There are {self.n} calibration images, and a false-alarm rate of {false_alarms:g} needs "
                f"{fewest(false_alarms)} at least; calibrate on more."
            )
        return Detector(false_alarms, self.scores, self.basis)

    def __call__(
        self, inputs: Any, *, batch_size: int | None = None, workers: int | None = None, progress: bool | None = None
    ) -> Detection:
        """Which inputs (images or Features) are unfamiliar."""
        return self.of(self.basis.scores(self.basis.images(inputs, batch_size, workers, progress)))

    def of(self, familiarity: Tensor) -> Detection:
        """The same of inputs whose familiarity is known: by the same score, of the same model, classes and posterior,
        which is up to the caller."""
        p_value = p_values(self.scores, familiarity)
        return Detection(p_value <= self.false_alarms + 1e-12, p_value, familiarity.detach().double().cpu())

    # Keeping it ------------------------------------------------------------------------------------------------------

    def save(self, path: str | Path) -> Path:
        """Write a json file (or one in a folder) and a safetensors file of the scores beside it; returns the former."""
        content = {"false_alarms": self.false_alarms, "images": self.n, **self.basis.to_json()}
        tensors = {"scores": self.scores, **self.basis.tensors()}
        return save_calibration(path, KIND, self.calibrated_for, content, tensors)

    @classmethod
    def load(
        cls,
        path: str | Path,
        vlm: BayesVLM,
        classes: ClassNames | Features | None = None,
        *,
        templates: Templates | None = None,
    ) -> Detector:
        """Read what `save` wrote, for the model and the classes it holds for; anything else is refused.

        Args:
            path: the file, or its folder.
            vlm: the model, with the posterior, that it was calibrated for.
            classes, templates: None: those that were saved. Given, they are checked against those.
        """
        raw, kept = load_calibration(path, KIND, ("false_alarms", "images", "score", "predictive", "source"))
        tensors = load_tensors(path, KIND, raw, ["scores"])
        basis = Basis.from_json(raw, kept, tensors, vlm, classes, templates, str(path), scored=True)
        scores = tensors["scores"]
        try:
            right = scores.dtype == torch.float64 and scores.ndim == 1 and bool(scores.isfinite().all())
            if not right or bool((scores.diff() < 0).any()):
                raise BayesVLMError("its scores are not in ascending order")
            return cls(math.inf, scores, basis).with_false_alarms(raw["false_alarms"])
        except BayesVLMError as error:
            raise BayesVLMError(f"{path} is damaged ({first_line(error)}); copy or make it again.") from None

    # How it prints ---------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        of, images = self.basis.described(), self.basis.images_described(self.n)
        rate = f"flags at most {self.false_alarms:g} of familiar images"
        return f"Detector({rate}, by {of}: below {self.threshold:.4g}, {images})"

    def _repr_html_(self) -> str:
        """A small table for notebooks."""
        quantiles = torch.quantile(self.scores, torch.tensor([0.05, 0.5, 0.95], dtype=torch.float64)).tolist()
        rows = [
            ["score", self.basis.described()],
            ["calibration images", self.basis.images_described(self.n).removeprefix("calibrated on ")],
            ["false alarms", f"{self.false_alarms:g} on average, {self.bound():.3g} at most (with 95 % confidence)"],
            ["threshold", f"{self.threshold:.4g}"],
            ["scores of calibration images", ", ".join(f"{value:.4g}" for value in quantiles) + " (5, 50, 95 %)"],
        ]
        return html_table("Detector of unfamiliar images", ["", ""], rows)
