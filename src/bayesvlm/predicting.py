"""From features to a prediction, in each of the ways a BayesVLM predicts; and the search for its tau."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

import torch
from torch import Tensor

from bayesvlm.core.cosine import prob_cosine
from bayesvlm.core.errors import BayesVLMError, check_choice
from bayesvlm.core.features import Features
from bayesvlm.core.predict import EntropySplit, centred_probit, probit
from bayesvlm.core.prediction import ParameterDraws, Prediction, SigmoidLink
from bayesvlm.core.tuning import TauGrid, search_tau
from bayesvlm.evaluation import nlpd
from bayesvlm.progress import progress_bar

if TYPE_CHECKING:
    from bayesvlm.vlm import BayesVLM

Method = Literal["probcosine", "mean", "native"]


def check_method(vlm: BayesVLM, method: Method) -> None:
    """Refuse a method that this model does not have, before anything is encoded."""
    check_choice("method", method, get_args(Method))
    if method == "mean" and not vlm.fitted:
        raise BayesVLMError(
            "method='mean' needs a posterior, and there is none; vlm.plain gives the same probabilities."
        )
    if method == "native" and not vlm.predicts_variance:
        name = vlm.adapter.name if vlm.adapter else "This model"
        raise BayesVLMError(
            f"{name} predicts no variances, so its native score is the scaled cosine; use method='mean'."
        )


@torch.no_grad()
def predict(
    vlm: BayesVLM,
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
            assert vlm.adapter is not None  # only an adapter predicts variances
            scores = vlm.adapter.native_logits(*embedded)
        probs, label_link = torch.softmax(scores, dim=1), torch.sigmoid(scores)
    elif vlm.settings.link == "mc":
        split = drawn.split()
        probs = split.probs
    else:
        probs = (probit if vlm.settings.link == "probit" else centred_probit)(moments, vlm.scale)
    return Prediction(probs, moments, names, split or drawn, label_link if vlm.loss == "sigmoid" else None)


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
    if len(texts) < 2:
        raise BayesVLMError("There is one class only, so every tau predicts the same; tune with two classes or more.")
    base = vlm.replace(lam="evidence")

    def evaluate(tau: float) -> tuple[float, dict[str, float]]:
        candidate = base.replace(tau=tau)
        return nlpd(candidate.classify(images, texts).probs, labels).value, candidate.lam

    with progress_bar("tuning tau", total=None, unit="taus", show=progress) as advance:
        return search_tau(evaluate, taus, refine=refine, advance=advance)
