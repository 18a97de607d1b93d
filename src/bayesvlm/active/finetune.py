"""Fine-tuning the image projection on the chosen images.

The mathematics: docs/method.md, "Active learning".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from bayesvlm.active.contrast import ClassContrast
from bayesvlm.classes import class_names, label_indices
from bayesvlm.core.errors import BayesVLMError, check_count, check_positive
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.core.features import Features
from bayesvlm.core.projection import Projection
from bayesvlm.evaluation import nlpd
from bayesvlm.predicting import Method
from bayesvlm.prompts import ClassNames, Templates
from bayesvlm.vlm import BayesVLM

Labels = Sequence[int] | Sequence[str] | Tensor


def finetune(
    vlm: BayesVLM,
    images: Features,
    labels: Labels,
    classes: ClassNames | Features,
    validation: tuple[Features, Labels] | None = None,
    lr: float = 1e-4,
    seed: int = 0,
    *,
    epochs: int = 100,
    batch: int = 32,
    weight_decay: float = 5e-2,
    method: Method = "probcosine",
    templates: Templates | None = None,
) -> BayesVLM:
    """A new BayesVLM whose image projection was trained on labelled images; the given one stays as it is.

    AdamW on the cross-entropy of the scaled cosines. Of the epochs, and of no training at all, the weights with the
    lowest NLPD of the prediction on the validation images are kept; without validation images, the last. The posterior
    is then around these weights, with the curvature of the labelled images there added to its factors.

    Args:
        vlm: a fitted model.
        images, labels: what was labelled, [N]; labels are indices into the classes, or names.
        classes, templates: as for `classify`, [C].
        validation: images and labels.
        lr: the paper's is 1e-5, for models a hundred times the size of the embedded ones and more.
        seed: of the order of the batches.
        method: of the prediction that picks the epoch, as `classify` takes it: the Bayesian one, or "mean" for a model
            that is to be used without a posterior.
    """
    _ = vlm.factors  # they are extended in the end: without them, say so first
    check_positive("lr", lr)
    check_count("epochs", epochs)
    check_count("batch", batch)
    if not 0 <= weight_decay < math.inf:
        raise BayesVLMError(f"weight_decay={weight_decay}; it must be a finite number of at least 0.")
    names = class_names(classes)
    images, texts = vlm.image_features(images), vlm.class_features(classes, templates)
    target = label_indices(labels, names, len(images), len(texts)).to(vlm.device)
    if len(texts) < 2:
        raise BayesVLMError("There is one class only, and nothing to tell apart; fine-tune with two classes or more.")
    checked = None
    if validation is not None:
        seen = vlm.image_features(validation[0])
        checked = (seen, label_indices(validation[1], names, len(seen), len(texts)).to(vlm.device))
    trained = _train(vlm, images, target, texts, checked, lr, seed, epochs, batch, weight_decay, method)
    adapted = vlm.with_image_projection(trained, _extended(vlm, trained, images, texts))
    return adapted.with_provenance(fine_tuned_on=len(images))


@torch.enable_grad()
def _train(
    vlm: BayesVLM,
    images: Features,
    target: Tensor,  # [N]
    texts: Features,
    validation: tuple[Features, Tensor] | None,
    lr: float,
    seed: int,
    epochs: int,
    batch: int,
    weight_decay: float,
    method: Method,
) -> Projection:
    """The projection of the best epoch."""
    generator = torch.Generator().manual_seed(seed)
    inputs = vlm.image.inputs(images)
    offset = torch.zeros_like(vlm.image.embed(images)) if images.residual is None else images.residual.to(inputs)
    hhat = normalize(vlm.text.embed(texts), dim=1)
    weight = vlm.image.augmented.clone().requires_grad_()
    optimiser = torch.optim.AdamW([weight], lr=lr, weight_decay=weight_decay)
    best, lowest = vlm.image, _nlpd(vlm, vlm.image, texts, validation, method)
    for _ in range(epochs):
        order = torch.randperm(len(target), generator=generator)
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            embedded = inputs[rows] @ weight.T + offset[rows]
            loss = cross_entropy(vlm.scale * normalize(embedded, dim=1) @ hhat.T, target[rows])
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
        now = vlm.image.with_augmented(weight.detach())
        reached = _nlpd(vlm, now, texts, validation, method)
        if validation is None or reached < lowest:
            best, lowest = now, reached
    return best


@torch.no_grad()
def _nlpd(
    vlm: BayesVLM, projection: Projection, texts: Features, validation: tuple[Features, Tensor] | None, method: Method
) -> float:
    """Of the prediction around a projection."""
    if validation is None:
        return 0.0
    images, target = validation
    probs = vlm.with_image_projection(projection, vlm.factors["image"]).classify(images, texts, method=method).probs
    return nlpd(probs, target).value


@torch.no_grad()
def _extended(vlm: BayesVLM, projection: Projection, images: Features, texts: Features) -> KroneckerFactors:
    """The factors with the labelled images', each counting as one pair, at the new weights."""
    phi = projection.inputs(images).double()
    B = ClassContrast.of(vlm, texts).curvature(projection.embed(images))
    return vlm.factors["image"].merge(KroneckerFactors(phi.T @ phi, B, len(images)))
