"""From features to a prediction, in each of the ways a BayesVLM predicts; and the search for its tau."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from bayesvlm.core.cosine import prob_cosine
from bayesvlm.core.errors import BayesVLMError, BayesVLMWarning, check_choice, check_count
from bayesvlm.core.features import Features
from bayesvlm.core.predict import EntropySplit, centred_probit, probit
from bayesvlm.core.prediction import ParameterDraws, Prediction, SigmoidLink
from bayesvlm.core.tuning import TauGrid, search_tau
from bayesvlm.evaluation import nlpd
from bayesvlm.models.streaming import stream_features
from bayesvlm.progress import progress_bar

if TYPE_CHECKING:
    from bayesvlm.gaussian import GaussianVLM
    from bayesvlm.vlm import BayesVLM

Method = Literal["probcosine", "mean", "native"]


def check_method(vlm: GaussianVLM, method: Method) -> None:
    """Refuse a method that this model does not have, before anything is encoded."""
    check_choice("method", method, get_args(Method))
    if method == "mean" and not vlm.fitted:
        raise BayesVLMError(
            "method='mean' needs a posterior, and there is none; vlm.plain gives the same probabilities."
        )
    _ = vlm.posterior  # without one there is nothing to predict with
    if method == "native" and not vlm.predicts_variance:
        name = vlm.adapter.name if vlm.adapter else "This model"
        raise BayesVLMError(
            f"{name} predicts no variances, so its native score is the scaled cosine; use method='mean'."
        )


@torch.no_grad()
def predict(
    vlm: GaussianVLM,
    images: Features,  # [N]
    texts: Features,  # [C]
    names: tuple[str, ...] | None,
    method: Method,
    draws: int,
    seed: int,
) -> Prediction:
    """The prediction of `BayesVLM.classify`, from features."""
    image, text = vlm.posterior["image"], vlm.posterior["text"]
    embedded = image.embed(images), text.embed(texts)
    moments, bias = prob_cosine(*embedded), vlm.logit_bias or 0.0
    drawn = ParameterDraws(image, images, text, texts, vlm.scale, draws, seed)
    split: EntropySplit | None = None
    label_link: SigmoidLink | Tensor = SigmoidLink(vlm.scale, bias)
    if method != "probcosine":
        scores = vlm.logits(images, texts) + bias
        if method == "native":
            scores = vlm.encoder("images").native_logits(*embedded)
        probs, label_link = torch.softmax(scores, dim=1), torch.sigmoid(scores)
    elif vlm.settings.link == "mc":
        split = drawn.split()
        probs = split.probs
    else:
        probs = (probit if vlm.settings.link == "probit" else centred_probit)(moments, vlm.scale)
    return Prediction(probs, moments, names, split or drawn, label_link if vlm.loss == "sigmoid" else None)


def stream_predictions(
    vlm: GaussianVLM,
    inputs: Any,
    texts: Features,  # [C]
    names: tuple[str, ...] | None,
    method: Method,
    draws: int,
    seed: int,
    *,
    batch_size: int,
    workers: int | None,
    strict: bool,
) -> Iterator[Prediction]:
    """The predictions of `BayesVLM.stream`."""
    if isinstance(inputs, Features):
        for start in range(0, len(inputs), check_count("batch_size", batch_size)):
            found = predict(vlm, inputs[start : start + batch_size].to(vlm.device), texts, names, method, draws, seed)
            yield replace(found, places=tuple(range(start, start + len(found))))
        return
    warned = False
    batches: Any = stream_features(
        vlm.encoder("images"), inputs, batch_size=batch_size, workers=workers, strict=strict, label="inputs"
    )
    with closing(batches):
        for batch in batches:
            found = predict(vlm, batch.features, texts, names, method, draws, seed)
            if batch.unreadable and not warned:
                warned = True
                warnings.warn(
                    f"{next(iter(batch.unreadable.values())).rstrip('.')}; inputs that cannot be read have no row, and "
                    "each prediction says which they are in `.unreadable` (strict=True refuses them).",
                    BayesVLMWarning,
                    stacklevel=3,
                )
            yield replace(found, places=tuple(batch.places), unreadable=batch.unreadable)


def tuned_taus(
    vlm: BayesVLM,
    images: Features,  # [N]
    labels: Tensor,  # [N]
    texts: Features,  # [C]
    taus: Sequence[float],
    refine: bool,
    progress: bool | None,
) -> TauGrid:
    """Every tau tried with its NLPD on labelled features; lam by the evidence at each."""
    base = vlm.replace(lam="evidence")

    def evaluate(tau: float) -> tuple[float, dict[str, float]]:
        candidate = base.replace(tau=tau)
        return nlpd(candidate.classify(images, texts).probs, labels).value, candidate.lam

    with progress_bar("tuning tau", total=None, unit="taus", show=progress) as advance:
        return search_tau(evaluate, taus, refine=refine, advance=advance)
