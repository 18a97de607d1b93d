r"""ICPE, intra-class probabilistic embeddings (Lin et al. 2026, arXiv 2511.22019): a rival at finding wrong answers.

It is trained on nothing, but needs labelled images of every class. Their embeddings x, not normalised, are centred and
turned to their principal components; each class c gets a Gaussian of its own there, and an image's trust in the
predicted class y is

    1/2 softmax_y(t cos) + 1/2 softmax_y(log N(x; m_c, S_c)),    S_c = sample covariance + ridge I

This is what the authors' published notebook computes: 128 components, covariance over n_c - 1, a ridge of 1e-8. With as
few images per class as components (the paper speaks of 10) S_c is singular up to the ridge, and the softmax all but one
or zero. `shrinkage` is not theirs: it mixes in the covariance within all classes, which images are enough for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesvlm.core.blocks import row_blocks
from bayesvlm.core.errors import BayesVLMError, check_count, check_positive
from bayesvlm.core.printing import described
from bayesvlm.evaluation.outcomes import check_labelled

COMPONENTS = 128
RIDGE = 1e-8
LEAST = 10


@dataclass(frozen=True, eq=False)
class ICPE:
    """A Gaussian for every class, in the principal components of image embeddings; all in float64."""

    mean: Tensor  # [d], of all images
    axes: Tensor  # [d, k], principal components, the largest first
    centres: Tensor  # [C, k]
    roots: Tensor  # [C, k, k], lower Cholesky factors of the covariances
    counts: Tensor  # [C], images of each class

    __repr__ = described

    @classmethod
    @torch.no_grad()
    def fit(
        cls,
        features: Tensor,  # [N, d]
        labels: Tensor,  # [N]
        classes: int | Sequence[str],
        components: int = COMPONENTS,
        ridge: float = RIDGE,
        shrinkage: float = 0.0,
        least: int = LEAST,
    ) -> ICPE:
        """The Gaussians of labelled embeddings.

        Args:
            features: image embeddings; the authors take them as the model gives them, before they are normalised.
            labels: integers.
            classes: how many there are, or their names.
            components: principal components that are kept, or as many as the images have.
            ridge: added to every variance, in units of the embeddings squared.
            shrinkage: from 0 to 1, the share of the covariance within all classes in each class's own; 0 is ICPE.
            least: images that every class must have; the paper claims no use of fewer than 10. A class of one image
                has no covariance of its own but the ridge, so that fewer than 2 make sense with `shrinkage` only.
        """
        number = len(classes) if isinstance(classes, Sequence) else check_count("classes", classes, 2)
        features, labels = _checked(features, labels, number)
        check_positive("ridge", ridge)
        if not 0 <= shrinkage <= 1:
            raise BayesVLMError(f"shrinkage={shrinkage}; it is a share, from 0 (each class's own covariance) to 1.")
        counts = torch.bincount(labels, minlength=number)
        _check_counts(counts, check_count("least", least), classes)
        mean = features.mean(dim=0)
        axes = _principal_axes(features - mean, check_count("components", components))
        points = (features - mean) @ axes
        centres = torch.zeros(number, points.shape[1], dtype=points.dtype, device=points.device)
        centres.index_add_(0, labels, points).div_(counts[:, None])
        scatters = _scatters(points - centres[labels], labels, number)
        within = scatters.sum(dim=0) / max(1, len(features) - number)
        covariances = (
            scatters.div_((counts - 1).clamp_min(1)[:, None, None]).mul_(1 - shrinkage).add_(within, alpha=shrinkage)
        )
        covariances.diagonal(dim1=1, dim2=2).add_(ridge)
        roots, failed = torch.linalg.cholesky_ex(covariances)
        if bool(failed.any()):
            raise BayesVLMError(
                f"ridge={ridge} is too small: the covariance of class {int(failed.nonzero()[0])} is singular in "
                "float64; raise it, or take fewer components."
            )
        return cls(mean, axes, centres, roots, counts)

    @torch.no_grad()
    def log_densities(self, features: Tensor) -> Tensor:  # [N, d] -> [N, C], float64
        """log N(x; m_c, S_c) of every embedding in every class."""
        if features.ndim != 2 or features.shape[1] != len(self.mean):
            raise BayesVLMError(
                f"features has shape {list(features.shape)}; it must be [N, {len(self.mean)}], embeddings of the model "
                "that the Gaussians are of."
            )
        points = (features.to(self.mean) - self.mean) @ self.axes
        size = points.shape[1]
        constants = self.roots.diagonal(dim1=1, dim2=2).log().sum(dim=1) + size / 2 * math.log(2 * math.pi)
        found = torch.empty(len(points), len(self.centres), dtype=points.dtype, device=points.device)
        one = torch.eye(size, dtype=points.dtype, device=points.device)
        for rows in row_blocks(len(self.centres), len(points) * size):
            whiten = torch.linalg.solve_triangular(self.roots[rows], one, upper=False)  # a product for all images
            white = (points[None] - self.centres[rows, None]) @ whiten.mT  # [c, N, k]
            found[:, rows] = (-white.square().sum(dim=2) / 2 - constants[rows, None]).T
        return found

    def score(
        self,
        features: Tensor,  # [N, d]
        predicted: Tensor,  # [N], integers
        confidence: Tensor | None = None,  # [N]
    ) -> Tensor:  # [N], float64
        """Trust in the predicted class, from 0 to 1, higher is better.

        Args:
            features: image embeddings, as `fit` was given them.
            predicted: what the model answers.
            confidence: the model's own probability of that answer, softmax_y(t cos): ICPE is the mean of both. None
                gives the share of the densities alone.
        """
        densities = self.log_densities(features)
        predicted = check_labelled("log densities", densities, predicted)
        share = torch.softmax(densities, dim=1).gather(1, predicted[:, None])[:, 0]
        if confidence is None:
            return share
        if confidence.shape != share.shape or not bool(((confidence >= 0) & (confidence <= 1)).all()):
            raise BayesVLMError(
                f"confidence has shape {list(confidence.shape)}; it must be [{len(share)}] probabilities of the "
                "predicted classes, from 0 to 1."
            )
        return (share + confidence.to(share)) / 2


def _checked(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:  # [N, d], [N]
    """Embeddings in float64 and labels on their device."""
    if features.ndim != 2 or not features.is_floating_point() or 0 in features.shape:
        raise BayesVLMError(
            f"features has shape {list(features.shape)} and {features.dtype}; it must be floating-point numbers "
            "[N, d], one embedding per image."
        )
    if not bool(torch.isfinite(features).all()):
        row = int(torch.isfinite(features).all(dim=1).long().argmin())
        raise BayesVLMError(f"features holds NaN or Inf, first in row {row}; mend or drop those images.")
    labels = torch.as_tensor(labels)
    if labels.shape != features.shape[:1] or labels.is_floating_point() or labels.dtype == torch.bool:
        raise BayesVLMError(
            f"labels has shape {list(labels.shape)} and {labels.dtype}; it must be integers [{len(features)}], the "
            "index of each image's class."
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise BayesVLMError(
            f"The labels run from {low} to {high}, but there are {classes} classes; number them 0 to {classes - 1}."
        )
    return features.detach().double(), labels.to(features.device, torch.int64)


def _check_counts(counts: Tensor, least: int, classes: int | Sequence[str]) -> None:  # [C]
    few = (counts < least).nonzero()[:, 0].tolist()
    if few:
        name = repr(classes[few[0]]) if isinstance(classes, Sequence) else few[0]
        raise BayesVLMError(
            f"{len(few)} of {len(counts)} classes have fewer than {least} images, such as class {name} with "
            f"{int(counts[few[0]])}; ICPE needs a Gaussian of each: give more labelled images, or a smaller `least`."
        )


def _principal_axes(centred: Tensor, components: int) -> Tensor:  # [N, d] -> [d, k]
    """Eigenvectors of the covariance, the largest eigenvalue first, N - 1 at most; signs do not matter to a density."""
    vectors: Tensor = torch.linalg.eigh(centred.T @ centred).eigenvectors
    return vectors.flip(1)[:, : min(components, len(centred) - 1)]


def _scatters(apart: Tensor, labels: Tensor, classes: int) -> Tensor:  # [N, k], [N] -> [C, k, k]
    """Sum of the outer products of each class."""
    ends = torch.bincount(labels, minlength=classes).cumsum(dim=0)
    groups = torch.tensor_split(apart[labels.argsort(stable=True)], ends[:-1].cpu())
    return torch.stack([group.T @ group for group in groups])
