r"""What an exported file computes, as modules of torch: from activations, or from pixels, to everything it answers.

With a variance `Sigma_g = Q_g diag(v) Q_g^T` of the image's embedding g and `w_c` of class c in its basis Q_h, both
divided by the class's expected norm, ProbCosine (`bayesvlm.core.cosine`) is

    E_c = g.h_c / s_g,   V_c = [ v . k_c + (Q_h^T g)^2 . w_c ] / s_g^2,   s_g^2 = |g|^2 + sum v
    k_c = (Q_g^T h_c)^2 + (Q_g^T Q_h)^2 w_c

and v is linear in the squares of `u = root^T phi`: one number times a fixed spectrum where the posterior is damped, one
product more where it is exact. Everything about the classes is computed before, and Q_h is part of the linear map.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from bayesvlm.core.embeddings import GaussianEmbeddings, ItemCovariance
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.models.image_tower import ImageTower

if TYPE_CHECKING:
    from bayesvlm.core.features import Features
    from bayesvlm.core.settings import Link
    from bayesvlm.gaussian import GaussianVLM

OUTPUTS = ("probabilities", "mean", "std", "entropy")
LABEL_OUTPUT = "label_probabilities"  # of models trained with the sigmoid loss


@dataclass(frozen=True, eq=False)
class InputVariance:
    """How the variance of an embedding follows from an input phi: `v = (phi root)^2 reads spectra`, in their basis."""

    root: Tensor  # [p, p]
    reads: Tensor  # [p, m]
    spectra: ItemCovariance  # [m, d]


def input_variance(vlm: GaussianVLM) -> InputVariance:
    """Of the images of a model with a posterior over its projection."""
    spread = vlm.posterior["image"]
    if vlm.settings.structure == "damped":
        shared = spread.shared_covariance()
        ones = shared.root.new_ones(len(shared.root), 1)
        return InputVariance(shared.root, ones, ItemCovariance(shared.shape.spectrum[None], shared.shape.basis))
    posterior = spread.kronecker("An exact posterior is exported from its factors")
    like = posterior.projection.weight
    root, basis = posterior.factors.A_spectrum.vectors.to(like), posterior.factors.B_spectrum.vectors.to(like)
    reads, each = posterior.variances.T.to(like), torch.eye(basis.shape[0]).to(like)
    if posterior.covariance == "full":
        return InputVariance(root, reads, ItemCovariance(each, basis))
    return InputVariance(root, reads @ basis.square().T, ItemCovariance(each))


class HeadGraph(nn.Module):
    """From what enters the image tower's last linear layer to every output, for fixed classes.

    Args:
        vlm: the model; its link must be an analytic one.
        classes: activations of the classes, [C].
    """

    weight: Tensor  # [d + p, p]
    bias: Tensor | None  # [d + p]
    basis: Tensor | None  # [d, d], Q_h, for a residual
    classes: Tensor  # [d, C], in that basis
    reads: Tensor  # [p, m]
    trace: Tensor  # [m, 1]
    by_input: Tensor  # [m, C], k
    by_class: Tensor  # [d, C], w; or [d, 1], a spectrum that all classes share
    class_scale: Tensor | None  # [1, C], what it is multiplied with then

    def __init__(self, vlm: GaussianVLM, classes: Features) -> None:
        super().__init__()
        self.check(vlm)
        self.link: Link = vlm.settings.link
        self.scale = vlm.scale
        self.logit_bias = vlm.label_bias
        self.takes_residual = bool(vlm.image.residual)
        inputs, texts = input_variance(vlm), vlm.posterior["text"].embed(classes)
        spread = texts.covariance.per_item()
        augmented = vlm.image.augmented if spread.basis is None else spread.basis.T @ vlm.image.augmented
        self._linear(torch.cat([augmented, inputs.root.T]), vlm.image.bias is not None)
        unit = texts.mean / texts.expected_norm[:, None]
        of_classes = inputs.spectra.quadratic(unit) + inputs.spectra.inner(_divided(texts))  # [m, C]
        self._keep("reads", inputs.reads)  # [p, m]
        self._keep("trace", inputs.spectra.trace()[:, None])  # [m, 1]
        self._keep("by_input", of_classes)  # [m, C]
        self._keep("basis", spread.basis if self.takes_residual else None)  # [d, d]
        self._keep("classes", (unit if spread.basis is None else unit @ spread.basis).T)  # [d, C]
        shared, squared = texts.covariance.shared(), texts.expected_norm.square()
        if shared is None:
            self._keep("by_class", (spread.variance / squared[:, None]).T)  # [d, C]
            self._keep("class_scale", None)
        else:
            self._keep("by_class", shared.shape.spectrum[:, None])  # [d, 1]
            self._keep("class_scale", (shared.scale / squared)[None])  # [1, C]

    @staticmethod
    def check(vlm: GaussianVLM) -> None:
        """Refuse a model whose answers are no function of the activations that can be written down."""
        _ = vlm.posterior  # without one there is nothing to export
        if vlm.predicts_variance:
            raise BayesVLMError(
                "A model that predicts a variance for every input (ProLIP, PCME++) cannot be exported; use classify, "
                "or a CLIP or SigLIP with a fitted posterior."
            )
        if vlm.settings.link == "mc":
            raise BayesVLMError(
                "link='mc' averages over draws, which an exported file does not make; export with link='probit' or "
                "'centred' (vlm.replace(link=...), --link)."
            )

    @property
    def outputs(self) -> tuple[str, ...]:
        return OUTPUTS if self.logit_bias is None else (*OUTPUTS, LABEL_OUTPUT)

    def forward(self, activations: Tensor, residual: Tensor | None = None) -> dict[str, Tensor]:  # [N, p], [N, d]
        """The outputs by name: `entropy` is [N], the others are [N, C]."""
        z = functional.linear(activations, self.weight, self.bias)
        d = self.classes.shape[0]
        g, squares = z[:, :d], z[:, d:].square()
        if residual is not None:
            g = g + (residual if self.basis is None else residual @ self.basis)
        v = squares @ self.reads  # [N, m]
        norm = (g.square().sum(dim=1, keepdim=True) + v @ self.trace).sqrt()  # [N, 1]
        mean = (g @ self.classes) / norm
        by_class = g.square() @ self.by_class
        if self.class_scale is not None:
            by_class = by_class * self.class_scale
        variance = (v @ self.by_input + by_class) / norm.square()
        flat = math.pi / 8 * self.scale**2 * variance + 1
        shifted = mean - mean.mean(dim=1, keepdim=True) if self.link == "centred" else mean
        log_probs = torch.log_softmax(self.scale * shifted / flat.sqrt(), dim=1)
        probs = log_probs.exp()
        found = [probs, mean, variance.sqrt(), -(probs * log_probs).sum(dim=1)]
        if self.logit_bias is not None:
            found.append(torch.sigmoid((self.scale * mean + self.logit_bias) / flat.sqrt()))
        return dict(zip(self.outputs, found, strict=True))

    def _linear(self, stacked: Tensor, biased: bool) -> None:
        """One map to the embedding and to u; a bias is the last column."""
        self._keep("weight", stacked[:, :-1] if biased else stacked)
        self._keep("bias", stacked[:, -1] if biased else None)

    def _keep(self, name: str, tensor: Tensor | None) -> None:
        if tensor is None:
            setattr(self, name, None)  # torch.export counts a buffer that is None and then looks for one too many
        else:
            self.register_buffer(name, tensor.detach().float().contiguous())


class ModelGraph(nn.Module):
    """From pixels to every output."""

    def __init__(self, tower: ImageTower, head: HeadGraph) -> None:
        super().__init__()
        self.tower, self.head = tower, head

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:  # [N, 3, H, W]
        found: dict[str, Tensor] = self.head(*self.tower(pixel_values))
        return found


def _divided(texts: GaussianEmbeddings) -> ItemCovariance:  # [C]
    """The covariances of the classes, each divided by its expected norm squared."""
    spread = texts.covariance.per_item()
    return ItemCovariance(spread.variance / texts.expected_norm.square()[:, None], spread.basis)
