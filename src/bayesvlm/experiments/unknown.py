"""What a model does not know, measured: unknown things, wrong answers, and the sets of answers that hold the right one.

Starts from a model that `ZeroShot` has made ready: its features, its prompts, its temperatures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.data.labelled.samples import LabelledSet
from bayesvlm.evaluation import ICPE
from bayesvlm.experiments.answer_sets import AnswerSets, Labelled, measure_sets
from bayesvlm.experiments.failures import Failures, Ranking
from bayesvlm.experiments.feature_store import EncodedSet
from bayesvlm.experiments.outside import (
    Kind,
    Outside,
    calibration_rows,
    check_unknown,
    known_classes,
    measure,
    scores_of,
)
from bayesvlm.experiments.zero_shot import NO_VALIDATION, ZeroShot
from bayesvlm.progress import progress_bar
from bayesvlm.prompts import ClassPrompts
from bayesvlm.safety import Predictive, familiarities
from bayesvlm.safety.negatives import Negatives, word_list

RAISED = "raised temperature"
_ROUNDING = 4 * torch.finfo(torch.float32).eps  # relative: what equal scores may differ by


class Unknown:
    """One model, made ready, and what it is asked of things it may not know.

    Args:
        ready: the model, with the methods whose answers are judged.
        negatives: words for what the images are not; None leaves NegLabel out.
        false_alarms: share of familiar images that may be flagged.
        miss: how often a prediction set may be without the right class.
        keep_known: take classes of an out-set that are known ones as unknown all the same.
    """

    def __init__(
        self,
        ready: ZeroShot,
        *,
        negatives: Sequence[str] | None = None,
        false_alarms: float = 0.05,
        miss: float = 0.1,
        keep_known: bool = False,
    ) -> None:
        for name, value in (("false_alarms", false_alarms), ("miss", miss)):
            if not 0 < value < 1:
                raise BayesVLMError(f"{name}={value}; it is a share between 0 and 1, such as 0.05.")
        self.ready, self.vlm, self.encoder = ready, ready.vlm, ready.encoder
        self.negatives = None if negatives is None else word_list("negatives", negatives)
        self.false_alarms, self.miss, self.keep_known = false_alarms, miss, keep_known

    # Unknown things --------------------------------------------------------------------------------------------------

    def outside_inputs(
        self, known: LabelledSet, shifted: Sequence[LabelledSet], outside: Sequence[LabelledSet]
    ) -> dict[str, Any]:
        """What `outside` depends on: two runs with equal inputs give equal results."""
        return {
            **self.ready.inputs(known),
            "shifted": [self._named(data) for data in shifted],
            "outside": [self._named(data) for data in outside],
            "negatives": self.negatives,
            "false_alarms": self.false_alarms,
            "keep_known": self.keep_known,
        }

    def outside(
        self, known: LabelledSet, shifted: Sequence[LabelledSet], outside: Sequence[LabelledSet]
    ) -> tuple[Outside, dict[str, EncodedSet]]:
        """Every score on the familiar set, on the same classes under a shift, and on unknown things.

        Returns:
            The scores, and the images that they are of, by set.
        """
        inputs = self.outside_inputs(known, shifted, outside)
        familiar = self.encoder.images(known)
        found = {known.name: familiar} | {data.name: self.encoder.images(data) for data in shifted}
        facts: dict[str, Any] = {"known_all_the_same": {}}
        for data in outside:
            found[data.name] = self.encoder.unlabelled(data)
            if len(found[data.name].keys) == 1:
                raise BayesVLMError(f"{data.name} has one image that can be read; a standard error takes two.")
            if not self.keep_known:
                check_unknown(known, data, found[data.name].labels)
            if same := known_classes(known, data, found[data.name].labels):
                facts["known_all_the_same"][data.name] = same
        kinds: dict[str, Kind] = {known.name: "familiar"}
        kinds |= dict.fromkeys([data.name for data in shifted], "shifted")
        kinds |= dict.fromkeys([data.name for data in outside], "unknown")
        classes = self.encoder.classes(self.ready.prompts(known))
        negatives = self._negatives(known, classes)
        asked = scores_of(self.vlm, *self.temperatures, negatives=negatives is not None)
        scores = {}
        with progress_bar("scoring", total=len(found), unit="sets") as advance:
            for name, encoded in found.items():
                scores[name] = measure(self.vlm, encoded.features, classes, asked, negatives)
                advance(1)
        flat = [title for title, values in scores[known.name].items() if _all_equal(values)]
        facts |= {
            "images": {name: len(encoded.keys) for name, encoded in found.items()},
            "classes": len(known.classes),
            "skipped": {name: dict(encoded.skipped) for name, encoded in found.items() if encoded.skipped},
            "temperature": self.temperatures[0],
            "raised_temperature": self.temperatures[1],
            "all_equal": flat,
            "negatives": None if negatives is None else len(negatives),
        }
        rows = calibration_rows(familiar.labels)
        return Outside(inputs, facts, kinds, scores, rows, self.false_alarms), found

    def sets(self, known: LabelledSet, found: Mapping[str, EncodedSet], shifted: Sequence[LabelledSet]) -> AnswerSets:
        """Prediction sets, calibrated on half of the familiar set: on its other half, and under a shift."""
        familiar = found[known.name]
        rows = calibration_rows(familiar.labels)
        fresh = torch.ones(len(familiar.labels), dtype=torch.bool)
        fresh[rows] = False
        tests = {known.name: Labelled(familiar.features[fresh.nonzero()[:, 0]], familiar.labels[fresh])}
        tests |= {data.name: Labelled(found[data.name].features, found[data.name].labels) for data in shifted}
        classes = self.encoder.classes(self.ready.prompts(known))
        calibration = Labelled(familiar.features[rows], familiar.labels[rows])
        return measure_sets(self.vlm, classes, self.predictives, calibration, tests, self.miss)

    # Wrong answers ---------------------------------------------------------------------------------------------------

    def failures_inputs(self, data: LabelledSet) -> dict[str, Any]:
        """What `failures` depends on."""
        return {**self.ready.inputs(data), "scores": "failures"}

    def failures(self, data: LabelledSet) -> Failures:
        """What each method's confidence, the epistemic part and ICPE tell of wrong answers."""
        result = self.ready.run(data)
        rankings = {
            method: Ranking(1 - found.outcomes.confidence.double().cpu(), found.outcomes.correct.cpu())
            for method, found in result.scores.items()
        }
        left_out = dict(result.facts["left_out"])
        encoded = self.encoder.images(data)
        classes = self.encoder.classes(self.ready.prompts(data))
        if "Bayes" in rankings:
            correct = rankings["Bayes"].correct
            made = familiarities(self.vlm, encoded.features, classes, ["entropy", "epistemic"])
            rankings["entropy, Bayes"] = Ranking(-made["entropy"].cpu(), correct)
            rankings["epistemic"] = Ranking(-made["epistemic"].cpu(), correct)
        if "plain" in result.scores:
            trust = self._icpe(data, encoded, classes)
            if isinstance(trust, str):
                left_out["ICPE"] = trust
            else:
                rankings["ICPE"] = Ranking(1 - trust, rankings["plain"].correct)
        facts = {**result.facts, "left_out": left_out}
        return Failures(self.failures_inputs(data), facts, rankings)

    def _icpe(self, data: LabelledSet, encoded: EncodedSet, classes: Features) -> Tensor | str:  # [N]
        """The rival's trust in the plain answers, or why there is none."""
        validation = self.ready.validation
        if validation is None:
            return NO_VALIDATION.replace("to find it on", "to fit class Gaussians on")
        if tuple(validation.classes) != tuple(data.classes):
            return f"it needs labelled images of the same classes, and {validation.name} has others"
        held = self.encoder.images(validation)
        try:
            fitted = ICPE.fit(self.vlm.image.embed(held.features.to(self.vlm.device)), held.labels, data.classes)
        except BayesVLMError as error:
            return f"on {validation.name}: {str(error).rstrip('.')}"
        probs = self.vlm.plain(encoded.features, classes)
        confidence, predicted = probs.max(dim=1)
        embedded = self.vlm.image.embed(encoded.features.to(self.vlm.device))
        return fitted.score(embedded, predicted, confidence).cpu()

    # What both need --------------------------------------------------------------------------------------------------

    @property
    def temperatures(self) -> tuple[float | None, float | None]:
        """The best one, and the largest that is as good, where there are validation images."""
        methods = self.ready.ready
        return methods.temperature, getattr(methods, "raised", None)

    @property
    def predictives(self) -> dict[str, Predictive]:
        """Whose probabilities prediction sets are made of, by the method's name."""
        best, raised = self.temperatures
        found: dict[str, Predictive] = {"plain": "plain"}
        found |= {name: value for name, value in (("temperature", best), (RAISED, raised)) if value is not None}
        return found | ({"Bayes": "bayes"} if self.vlm.fitted else {})

    def _negatives(self, known: LabelledSet, classes: Features) -> Features | None:
        """Encoded in the prompts of the classes, if none of them is a class."""
        if self.negatives is None:
            return None
        names = {name.casefold() for name in known.classes}
        among = [word for word in self.negatives if word.strip().casefold() in names]
        if among:
            raise BayesVLMError(
                f"{len(among)} of the negatives are among the classes of {known.name}, such as {among[0]!r}; leave "
                "them out."
            )
        prompts = ClassPrompts.of(self.negatives, self.ready.templates_of(known))
        found = Negatives(self.encoder.classes(prompts), prompts)
        found.check_apart(self.vlm, classes)
        return found.texts

    def _named(self, data: LabelledSet) -> dict[str, str]:
        return {"name": data.name, "fingerprint": self.encoder.fingerprint(data)}


def _all_equal(values: Tensor) -> bool:  # [N]
    """Whether a score tells no image from another by more than rounding."""
    return float(values.max() - values.min()) <= _ROUNDING * float(values.abs().max())
