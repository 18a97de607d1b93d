"""How familiar images are to a model that knows a list of classes: every score through one call.

The Bayesian scores are of the predictive distribution and of the variances of embeddings; their rivals, of the model
without a posterior or with a temperature, go through the same calls, so that anybody can compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from bayesvlm.classes import class_names, warn_of_one_class
from bayesvlm.core.blocks import row_blocks
from bayesvlm.core.cosine import prob_cosine
from bayesvlm.core.embeddings import GaussianEmbeddings
from bayesvlm.core.errors import BayesVLMError, check_choice, check_positive
from bayesvlm.core.features import Features
from bayesvlm.core.predict import plain_logits, scaled_logits
from bayesvlm.core.prediction import Prediction
from bayesvlm.predicting import predict
from bayesvlm.prompts import ClassNames, Templates
from bayesvlm.safety import scores as formulas
from bayesvlm.safety.negatives import Negatives
from bayesvlm.vlm import BayesVLM

SCORES = ("msp", "mcm", "max_cosine", "energy", "entropy", "neglabel", "epistemic", "variance", "text_variance")
"""Names of the scores; in any case, with "-" or " " in the place of "_"."""

Predictive = Literal["bayes", "plain"] | float
"""Whose probabilities: the Bayesian predictive's, those of the model without a posterior, or with a temperature T those
of softmax(z / T)."""

_OF_POSTERIOR = ("epistemic", "variance", "text_variance")
_OF_PREDICTIVE = ("msp", "entropy", *_OF_POSTERIOR)
_OF_SOFTMAX = ("msp", "mcm", "entropy", "epistemic", "text_variance")  # what one class alone says nothing of


def familiarity(
    vlm: BayesVLM,
    inputs: Any,
    classes: ClassNames | Features,
    score: str = "entropy",
    *,
    templates: Templates | None = None,
    predictive: Predictive = "bayes",
    negatives: Sequence[str] | Features | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    progress: bool | None = None,
) -> Tensor:  # [N] float64
    """How familiar each input is, given the classes that are known; higher = more familiar.

    "msp" and "entropy" are the largest probability and minus the entropy, of `predictive`. "mcm", "max_cosine",
    "energy" and "neglabel" are of plain cosines, whatever `predictive` is; of the energy a temperature divides the
    logits. "epistemic" is minus the epistemic part of the entropy, by Monte Carlo; "variance" minus the variance of the
    image's embedding (its scale a(x) where all share a shape, else its trace), "text_variance" that of the text of the
    most probable class. docs/unknown.md compares them.

    Args:
        vlm: a model; with a posterior for the Bayesian scores.
        inputs: images or Features, [N].
        classes, templates: as for `classify`.
        score: one of `SCORES`.
        predictive: "bayes", "plain", or a temperature.
        negatives: words for what the images are not, for "neglabel"; or Features of texts.
        batch_size, workers, progress: as for `classify`.
    """
    given: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "progress": progress}
    found = familiarities(
        vlm, inputs, classes, [score], templates=templates, predictive=predictive, negatives=negatives, **given
    )
    return next(iter(found.values()))


def familiarities(
    vlm: BayesVLM,
    inputs: Any,
    classes: ClassNames | Features,
    scores: Sequence[str],
    *,
    templates: Templates | None = None,
    predictive: Predictive = "bayes",
    negatives: Sequence[str] | Features | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    progress: bool | None = None,
) -> dict[str, Tensor]:  # [N] float64 each
    """Several scores of the same inputs, which are encoded once; arguments as for `familiarity`."""
    if isinstance(scores, str) or not isinstance(scores, Sequence) or not scores:
        raise BayesVLMError(f"scores={str(scores)[:60]!r}; give a list of names, such as ['entropy', 'mcm'].")
    names = [score_name(score, predictive) for score in scores]
    check_possible(vlm, names, predictive)
    class_names(classes)
    texts = vlm.class_features(classes, templates, progress=progress)
    against = Negatives.of(vlm, negatives, classes, templates, texts) if "neglabel" in names else None
    if set(names) & set(_OF_SOFTMAX):
        warn_of_one_class(classes, False, stacklevel=2)
    scorer = Scorer(vlm, texts, predictive, None if against is None else against.texts)
    images = vlm.image_features(inputs, batch_size=batch_size, workers=workers, progress=progress)
    return scorer.scores(images, names)


def score_name(score: object, predictive: Predictive) -> str:
    """The score as `SCORES` has it, if it exists and can be had of this predictive distribution."""
    if isinstance(predictive, Real) and not isinstance(predictive, bool):
        check_positive("predictive", predictive)
    elif predictive not in ("bayes", "plain"):
        raise BayesVLMError(f"predictive={predictive!r} is not known; use 'bayes', 'plain' or a temperature, a number.")
    name = score.strip().lower().replace("-", "_").replace(" ", "_") if isinstance(score, str) else score
    if name not in SCORES:
        check_choice("score", score, SCORES)
    if name in _OF_POSTERIOR and predictive != "bayes":
        raise BayesVLMError(
            f"score={score!r} is made of the posterior, and predictive={predictive!r} has none; leave predictive out, "
            "or choose another score."
        )
    return str(name)


def needs_posterior(names: Sequence[str], predictive: Predictive) -> bool:
    """Whether any of these scores depends on the posterior."""
    return predictive == "bayes" and bool(set(names) & set(_OF_PREDICTIVE))


def check_possible(vlm: BayesVLM, names: Sequence[str], predictive: Predictive) -> None:
    """Refuse what this model does not have, before anything is encoded."""
    if not needs_posterior(names, predictive) or vlm.fitted:
        return
    made_of = [name for name in names if name in _OF_POSTERIOR]
    if made_of:
        raise BayesVLMError(f"score={made_of[0]!r} is made of a posterior, and this model has none; fit or load one.")
    raise BayesVLMError(
        "predictive='bayes' needs a posterior, and this model has none; fit or load one, or take predictive='plain'."
    )


@dataclass(frozen=True, eq=False)
class Scorer:
    """Scores and probabilities of images for fixed classes, in memory for some rows at a time.

    Args:
        vlm: the model.
        texts: activations of the classes, [C].
        predictive: whose probabilities.
        negatives: activations of texts the images are not of, [M]; None: there are none.
    """

    vlm: BayesVLM
    texts: Features
    predictive: Predictive
    negatives: Features | None = None

    def scores(self, images: Features, names: Sequence[str]) -> dict[str, Tensor]:  # [N] float64 each
        """Scores by name, as `score_name` has them."""
        return self.answers(images, names, labels=False)[0]

    @torch.no_grad()
    def answers(
        self, images: Features, names: Sequence[str], labels: bool = True
    ) -> tuple[dict[str, Tensor], Tensor]:  # [N] float64 each, [N]
        """The scores, and the most probable class of each image."""
        wanted = {*names, *(["label"] if labels else [])}
        towers = _Towers(self, wanted)
        parts = [towers.scores(images[rows]) for rows in self._blocks(images)] or [towers.scores(images)]
        found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        best = found["label"] if labels else torch.empty(0, dtype=torch.long)
        return {name: found[name] for name in names}, best

    @torch.no_grad()
    def probs(self, images: Features) -> Tensor:  # [N, C]
        """The probabilities of all classes."""
        if self.predictive == "bayes":
            return _prediction(self.vlm, images, self.texts).probs
        temperature = 1.0 if self.predictive == "plain" else float(self.predictive)
        vlm = self.vlm
        logits = plain_logits(vlm.image.embed(images), vlm.text.embed(self.texts), vlm.scale)
        return torch.softmax(logits / temperature, dim=1)

    def _blocks(self, images: Features) -> Iterator[slice]:
        negatives = 0 if self.negatives is None else len(self.negatives)
        return row_blocks(len(images), max(images.shape[1], self.vlm.image.embedding_width, len(self.texts), negatives))


class _Towers:
    """What is made of the classes once, for all blocks of images."""

    def __init__(self, scorer: Scorer, wanted: set[str]) -> None:
        self.vlm, self.texts, self.wanted = scorer.vlm, scorer.texts, wanted
        self.temperature = float(scorer.predictive) if isinstance(scorer.predictive, Real) else 1.0
        self.bayes = scorer.predictive == "bayes"
        of_predictive = bool(wanted & {*_OF_PREDICTIVE, "label"})
        self.posterior = self.bayes and of_predictive
        self.cosines = bool(wanted - {*_OF_PREDICTIVE, "label"}) or (of_predictive and not self.bayes)
        self.drawn = self.posterior and (self.vlm.settings.link == "mc" or "epistemic" in wanted)
        if self.cosines:
            self.directions = self._unit(self.vlm.text.embed(self.texts)).T  # [d, C]
            if scorer.negatives is not None:
                self.negatives = self._unit(self.vlm.text.embed(scorer.negatives)).T  # [d, M]
        if self.posterior:
            self.gaussian = self.vlm.posterior["text"].embed(self.texts)

    @staticmethod
    def _unit(embeddings: Tensor) -> Tensor:  # [N, d]
        return functional.normalize(embeddings, dim=1)

    def scores(self, images: Features) -> dict[str, Tensor]:  # [n] each
        """Everything that is wanted of some images."""
        found: dict[str, Tensor] = {}
        if self.cosines:
            unit = self._unit(self.vlm.image.embed(images))
            cosines = unit @ self.directions
            found |= self._plain(cosines)
            if "neglabel" in self.wanted:
                found["neglabel"] = formulas.neglabel(cosines, unit @ self.negatives)
            if not self.bayes:
                found |= self._softmax(cosines.mul_(self.vlm.scale / self.temperature))
        if self.posterior:
            found |= self._bayesian(images)
        return found

    def _plain(self, cosines: Tensor) -> dict[str, Tensor]:  # [n, C]
        found = {}
        if "mcm" in self.wanted:
            found["mcm"] = formulas.softmax_scores(cosines)[0]
        if "max_cosine" in self.wanted:
            found["max_cosine"] = formulas.max_cosine(cosines)
        if "energy" in self.wanted:
            found["energy"] = formulas.energy(cosines.double() * self.vlm.scale, self.temperature)
        return found

    def _softmax(self, logits: Tensor) -> dict[str, Tensor]:  # [n, C]
        if not self.wanted & {"msp", "entropy", "label", "text_variance"}:
            return {}
        peak, entropy, best = formulas.softmax_scores(logits)
        return {"msp": peak, "entropy": entropy, "label": best}

    def _bayesian(self, images: Features) -> dict[str, Tensor]:
        embedded = self.vlm.posterior["image"].embed(images)
        found = {"variance": -_spread(embedded)} if "variance" in self.wanted else {}
        if not self.wanted & {"msp", "entropy", "epistemic", "text_variance", "label"}:
            return found
        if self.drawn:
            prediction = _prediction(self.vlm, images, self.texts)
            logits = prediction.probs.clamp_min(torch.finfo(prediction.probs.dtype).tiny).log()
            if "epistemic" in self.wanted:
                found["epistemic"] = -prediction.epistemic.double()
        else:
            link, moments = self.vlm.settings.link, prob_cosine(embedded, self.gaussian)
            logits = scaled_logits(moments, self.vlm.scale, centred=link == "centred")
        found |= self._softmax(logits)
        if "text_variance" in self.wanted:
            found["text_variance"] = -_spread(self.gaussian)[found["label"]]
        return found


def _prediction(vlm: BayesVLM, images: Features, texts: Features) -> Prediction:
    """As `classify` makes it, of one class too."""
    return predict(vlm, images, texts, None, "probcosine", 128, 0)


def _spread(embeddings: GaussianEmbeddings) -> Tensor:  # [N] float64
    """a(x) where all inputs share the shape of their covariance, else its trace."""
    shared = embeddings.covariance.shared()
    return (embeddings.covariance.trace() if shared is None else shared.scale).double()
