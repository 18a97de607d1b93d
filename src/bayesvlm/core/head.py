r"""Class probabilities for fixed classes in a handful of operations: what the posterior costs where images come singly.

With everything about the classes computed beforehand, the probit link of a damped posterior is

    logit_c = t g.h_c / s_c / sqrt( s_g^2 + pi/8 t^2 (a alpha_c + q beta_c) )

    g = W phi + b + r,   a = phi^T At^-1 phi = |L phi|^2,   s_g^2 = |g|^2 + a tr R_g,   q = g^T R_h g

with `alpha_c, beta_c` of a class (`bayesvlm.core.cosine`). One linear map gives `z = (g, L phi)`, and all that is under
the root is linear in the squares of z. So the posterior adds a square, a product and a root to what a plain head does:
at batch size 1 on a GPU a head costs what its kernels cost to launch. Of a full covariance the eigenvectors of R_h
become part of the linear map, which makes q a sum over squares again; of the centred link the mean of the classes is
taken off them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bayesvlm.core.distribution import EmbeddingDistribution
from bayesvlm.core.embeddings import GaussianEmbeddings
from bayesvlm.core.errors import BayesVLMError, check_positive
from bayesvlm.core.features import Features
from bayesvlm.core.projection import Projection
from bayesvlm.core.settings import Link

Encode = Callable[[Any], Features]


class PlainHead:
    """The model without a posterior: softmax of scaled cosines with fixed classes.

    Args:
        image: the image tower's projection.
        classes: embeddings of the classes, [C, d], not normalised.
        scale: t.
        encode: makes Features of what the head is called with; None: they are Features.
    """

    def __init__(self, image: Projection, classes: Tensor, scale: float, encode: Encode | None = None) -> None:
        _check_classes(classes, image)
        self._image, self._encode = image, encode
        self._weight, self._bias = image.weight, image.bias
        self._classes = check_positive("scale", scale) * functional.normalize(classes, dim=1).T  # [d, C]

    def __call__(self, inputs: Any) -> Tensor:  # [N, C]
        """Probabilities of Features, or of what `encode` takes."""
        return self.probs(*_activations(inputs, self._encode, self._image))

    def probs(self, activations: Tensor, residual: Tensor | None = None) -> Tensor:  # [N, p], [N, d] -> [N, C]
        """Probabilities of tensors as they leave the encoder, in the projection's dtype; nothing is checked."""
        g = functional.linear(activations, self._weight, self._bias)
        if residual is not None:
            g += residual
        unit = g / torch.linalg.vector_norm(g, dim=1, keepdim=True)
        return torch.softmax(unit @ self._classes, dim=1)


class BayesHead:
    """The probabilities of `BayesVLM.classify` for fixed classes.

    An embedding of zero, which `classify` refuses, gets equal probabilities.

    Args:
        image: the image tower's projection.
        spread: how its embeddings are distributed: damped, or as the paper's authors publish theirs.
        classes: Gaussian embeddings of the classes under the text tower's, [C].
        scale: t.
        link: "probit" or "centred".
        encode: makes Features of what the head is called with; None: they are Features.
        folded: one product for what is under the root instead of two small ones; None: where it is cheap.
    """

    def __init__(
        self,
        image: Projection,
        spread: EmbeddingDistribution,
        classes: GaussianEmbeddings,
        scale: float,
        link: Link = "probit",
        encode: Encode | None = None,
        folded: bool | None = None,
    ) -> None:
        text = classes.covariance.shared()
        if text is None:
            raise BayesVLMError(
                "A head for fixed classes needs a damped posterior, whose covariances share one shape; use classify "
                "for an exact posterior and for models that predict their variances."
            )
        covariance = spread.shared_covariance()
        if link == "mc":
            raise BayesVLMError("A head for fixed classes draws nothing; use classify for link='mc'.")
        _check_classes(classes.mean, image)
        self._image, self._encode = image, encode
        k = math.pi / 8 * check_positive("scale", scale) ** 2
        R_g, R_h = covariance.shape, text.shape

        self._basis = R_h.basis  # [d, d] or None
        mean = image.augmented
        turned = mean if self._basis is None else self._basis.T @ mean
        stacked = torch.cat([turned, covariance.root.T])  # [d + p, p]
        biased = image.bias is not None
        self._weight = (stacked[:, :-1] if biased else stacked).contiguous()
        self._bias = stacked[:, -1].contiguous() if biased else None

        unit = classes.mean / classes.expected_norm[:, None]
        centred = unit - unit.mean(dim=0) if link == "centred" else unit
        self._classes = scale * (centred if self._basis is None else centred @ self._basis).T  # [d, C]

        squared = classes.expected_norm.square()
        beta = text.scale / squared
        alpha = R_g.inner(R_h) * beta + classes.quadratic(R_g) / squared
        d, p = turned.shape
        reads = stacked.new_zeros(d + p, 3)  # of the squares of z: s_g^2, a, q
        reads[:d, 0], reads[d:, 0] = 1, R_g.trace
        reads[d:, 1], reads[:d, 2] = 1, R_h.spectrum
        self._spread = [reads, torch.stack([torch.ones_like(alpha), k * alpha, k * beta])]  # [d + p, 3], [3, C]
        if folded or (folded is None and 4 * len(classes) <= p):  # a quarter of the linear map's work, at most
            self._spread = [torch.linalg.multi_dot(self._spread)]  # [d + p, C]

    def __call__(self, inputs: Any) -> Tensor:  # [N, C]
        """Probabilities of Features, or of what `encode` takes."""
        return self.probs(*_activations(inputs, self._encode, self._image))

    def probs(self, activations: Tensor, residual: Tensor | None = None) -> Tensor:  # [N, p], [N, d] -> [N, C]
        """Probabilities of tensors as they leave the encoder, in the projection's dtype; nothing is checked."""
        z = functional.linear(activations, self._weight, self._bias)  # [N, d + p]
        g = z[:, : self._classes.shape[0]]
        if residual is not None and self._basis is not None:
            g.addmm_(residual, self._basis)
        elif residual is not None:
            g += residual
        under_root = z.square()
        for factor in self._spread:
            under_root = under_root @ factor
        return torch.softmax((g @ self._classes).mul_(under_root.rsqrt_()), dim=1)


def _activations(inputs: Any, encode: Encode | None, image: Projection) -> tuple[Tensor, Tensor | None]:
    """Tensors that fit the projection."""
    features = inputs if encode is None else encode(inputs)
    image.check(features)
    residual = features.residual
    return features.activations.to(image.weight), None if residual is None else residual.to(image.weight)


def _check_classes(classes: Tensor, image: Projection) -> None:
    if classes.ndim != 2 or classes.shape[1] != image.embedding_width or not len(classes):
        raise BayesVLMError(
            f"The class embeddings are {list(classes.shape)}; this image tower needs [C, {image.embedding_width}], "
            "with at least one class."
        )
