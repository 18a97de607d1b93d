r"""Class probabilities for fixed classes in a handful of operations: what the posterior costs where images come singly.

With everything about the classes computed beforehand, the probit link of a damped posterior is

    logit_c = t g.h_c / s_c / sqrt( s_g^2 + pi/8 t^2 (a alpha_c + q beta_c) )

    g = W phi + b + r,   a = phi^T At^-1 phi = |L phi|^2,   s_g^2 = |g|^2 + a tr R_g,   q = g^T R_h g

with `alpha_c, beta_c` of a class (`bayesvlm.core.cosine`). One linear map gives `z = (g, L phi)`, and all that is under
the root is linear in the squares of z. So the posterior adds a square, a product and a root to what a plain head does:
at batch size 1 on a GPU a head costs what its kernels cost to launch. Of a full covariance the eigenvectors of R_h
become part of the linear map, which makes q a sum over squares again; of the centred link the mean of the classes is
taken off them.

The probability of a label by itself, of models trained with the sigmoid loss, has the same root and one thing more,
the bias beside the cosine:

    sigma( (t E + bias) / sqrt(1 + pi/8 t^2 V) ) = sigma( (t g.h_c / s_c + bias s_g) / sqrt(...) )
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
        logit_bias: of a model trained with the sigmoid loss; None: it was not, and has no `label_probs`.
    """

    def __init__(
        self,
        image: Projection,
        classes: Tensor,
        scale: float,
        encode: Encode | None = None,
        logit_bias: float | None = None,
    ) -> None:
        _check_classes(classes, image)
        self._image, self._encode, self._logit_bias = image, encode, logit_bias
        self._weight, self._bias = image.weight, image.bias
        self._classes = check_positive("scale", scale) * functional.normalize(classes, dim=1).T  # [d, C]

    def __call__(self, inputs: Any) -> Tensor:  # [N, C]
        """Probabilities of Features, or of what `encode` takes."""
        return self.probs(*_activations(inputs, self._encode, self._image))

    def label_probs(self, inputs: Any) -> Tensor:  # [N, C]
        """Probability of each label by itself, sigma(t cos + bias); for models trained with the sigmoid loss."""
        _check_sigmoid(self._logit_bias)
        return self.sigmoid_probs(*_activations(inputs, self._encode, self._image))

    def probs(self, activations: Tensor, residual: Tensor | None = None) -> Tensor:  # [N, p], [N, d] -> [N, C]
        """Probabilities of tensors as they leave the encoder, in the projection's dtype; nothing is checked."""
        return torch.softmax(self._scaled_cosines(activations, residual), dim=1)

    def sigmoid_probs(self, activations: Tensor, residual: Tensor | None = None) -> Tensor:  # [N, p], [N, d] -> [N, C]
        """`label_probs` of tensors as they leave the encoder, in the projection's dtype; the inputs are not checked."""
        return torch.sigmoid(self._scaled_cosines(activations, residual).add_(_check_sigmoid(self._logit_bias)))

    def _scaled_cosines(self, activations: Tensor, residual: Tensor | None) -> Tensor:  # [N, C]
        g = functional.linear(activations, self._weight, self._bias)
        if residual is not None:
            g += residual
        unit: Tensor = g / torch.linalg.vector_norm(g, dim=1, keepdim=True)
        return unit @ self._classes


class BayesHead:
    """The probabilities of `BayesVLM.classify` for fixed classes, and its `label_probs`.

    An embedding of zero, which `classify` refuses, gets equal probabilities.

    Args:
        image: the image tower's projection.
        spread: how its embeddings are distributed: damped, or as the paper's authors publish theirs.
        classes: Gaussian embeddings of the classes under the text tower's, [C].
        scale: t.
        link: "probit" or "centred".
        encode: makes Features of what the head is called with; None: they are Features.
        folded: one product for what is under the root instead of two small ones; None: where it is cheap.
        logit_bias: of a model trained with the sigmoid loss; None: it was not, and has no `label_probs`.
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
        logit_bias: float | None = None,
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
        self._image, self._encode, self._logit_bias = image, encode, logit_bias
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
        self._labels = scale * (unit if self._basis is None else unit @ self._basis).T  # [d, C]
        self._classes = self._labels - self._labels.mean(dim=1, keepdim=True) if link == "centred" else self._labels

        squared = classes.expected_norm.square()
        beta = text.scale / squared
        alpha = R_g.inner(R_h) * beta + classes.quadratic(R_g) / squared
        d, p = turned.shape
        reads = stacked.new_zeros(d + p, 3)  # of the squares of z: s_g^2, a, q
        reads[:d, 0], reads[d:, 0] = 1, R_g.trace
        reads[d:, 1], reads[:d, 2] = 1, R_h.spectrum
        self._squared_norm = reads[:, 0].contiguous()  # [d + p]
        self._spread = [reads, torch.stack([torch.ones_like(alpha), k * alpha, k * beta])]  # [d + p, 3], [3, C]
        if folded or (folded is None and 4 * len(classes) <= p):  # a quarter of the linear map's work, at most
            self._spread = [torch.linalg.multi_dot(self._spread)]  # [d + p, C]

    def __call__(self, inputs: Any) -> Tensor:  # [N, C]
        """Probabilities of Features, or of what `encode` takes."""
        return self.probs(*_activations(inputs, self._encode, self._image))

    def label_probs(self, inputs: Any) -> Tensor:  # [N, C]
        """Probability of each label by itself, whatever the link; for models trained with the sigmoid loss (SigLIP)."""
        _check_sigmoid(self._logit_bias)
        return self.sigmoid_probs(*_activations(inputs, self._encode, self._image))

    def probs(self, activations: Tensor, residual: Tensor | None = None) -> Tensor:  # [N, p], [N, d] -> [N, C]
        """Probabilities of tensors as they leave the encoder, in the projection's dtype; nothing is checked."""
        g, squares = self._embedded(activations, residual)
        return torch.softmax((g @ self._classes).mul_(self._under_root(squares).rsqrt_()), dim=1)

    def sigmoid_probs(self, activations: Tensor, residual: Tensor | None = None) -> Tensor:  # [N, p], [N, d] -> [N, C]
        """`label_probs` of tensors as they leave the encoder, in the projection's dtype; the inputs are not checked."""
        bias = _check_sigmoid(self._logit_bias)
        g, squares = self._embedded(activations, residual)
        logits = torch.addmm((squares @ self._squared_norm).sqrt_()[:, None], g, self._labels, beta=bias)
        return torch.sigmoid(logits.mul_(self._under_root(squares).rsqrt_()))

    def _embedded(self, activations: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:  # [N, d], [N, d + p]
        """The embeddings, in the basis of R_h, and the squares of z."""
        z = functional.linear(activations, self._weight, self._bias)  # [N, d + p]
        g = z[:, : self._classes.shape[0]]
        if residual is not None and self._basis is not None:
            g.addmm_(residual, self._basis)
        elif residual is not None:
            g += residual
        return g, z.square()

    def _under_root(self, squares: Tensor) -> Tensor:  # [N, d + p] -> [N, C]
        for factor in self._spread:
            squares = squares @ factor
        return squares


def _check_sigmoid(logit_bias: float | None) -> float:
    """The bias, if the model has one to give each label a probability of its own."""
    if logit_bias is None:
        raise BayesVLMError(
            "This model was trained with a softmax, so a label has a probability among the others and none by itself; "
            "call head(inputs) for that, or use a model trained with the sigmoid loss (SigLIP)."
        )
    return logit_bias


def _activations(inputs: Any, encode: Encode | None, image: Projection) -> tuple[Tensor, Tensor | None]:
    """Tensors that fit the projection."""
    features = inputs if encode is None else encode(inputs)
    image.check(features)
    if features.constant is not None and image.bias is not None:
        raise BayesVLMError(
            "These features are averages, whose bias has another weight than a head gives it; use classify, or average "
            "probabilities."
        )
    residual = features.residual
    return features.activations.to(image.weight), None if residual is None else residual.to(image.weight)


def _check_classes(classes: Tensor, image: Projection) -> None:
    if classes.ndim != 2 or classes.shape[1] != image.embedding_width or not len(classes):
        raise BayesVLMError(
            f"The class embeddings are {list(classes.shape)}; this image tower needs [C, {image.embedding_width}], "
            "with at least one class."
        )
