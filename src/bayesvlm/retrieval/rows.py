r"""What an index keeps of an item, and the moments of its cosines from that alone.

The mathematics: docs/method.md, "Search". With mu the mean embedding, s its expected length, u = At^-1/2 phi the
whitened activations and R' the matrix that the other tower's covariances share, a row keeps

    mu / s  [d],    u / |u|  [p],    alpha = |u|^2 / s^2,    beta = mu^T R' mu / s^2

The first ranks by expected cosine under any inner-product search; alpha and beta give the variance of any pair with the
other tower; u, read for the items that are shown and no others, says how two items of one tower vary together. Its
direction fits half precision whatever the scale of the posterior, which is left to alpha.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesvlm.core.embeddings import Shape
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import TOWERS, Tower
from bayesvlm.core.features import Features
from bayesvlm.core.linearised import Directed
from bayesvlm.core.printing import described
from bayesvlm.vlm import BayesVLM


def other(tower: Tower) -> Tower:
    """The tower that this one is compared with."""
    return TOWERS[1 - TOWERS.index(tower)]


def shape_of(vlm: BayesVLM, tower: Tower) -> Shape:
    """R, which the covariances of a tower's embeddings share.

    Raises:
        BayesVLMError: where they share none.
    """
    return vlm.posterior[tower].shape


@dataclass(frozen=True, eq=False)
class Rows:
    """What is kept of items of one tower, on the processor."""

    mean: Tensor  # [N, d] mu / s
    white: Tensor  # [N, p] u / |u|, in half precision
    alpha: Tensor  # [N]
    beta: Tensor  # [N]

    __repr__ = described

    @classmethod
    @torch.no_grad()
    def of(cls, vlm: BayesVLM, features: Features, tower: Tower, names: Sequence[str] | None = None) -> Rows:
        """The rows of items by their features.

        Args:
            names: what to call each in a sentence; None: by its place.

        Raises:
            BayesVLMError: where one is too large or too small to compute with: its row could be kept, and nothing that
                finds it could be searched for again.
        """
        distribution = vlm.posterior[tower]
        embedded = distribution.embed(features.to(vlm.device))
        length = embedded.expected_norm
        square = length.square()
        shared = embedded.covariance.shared()
        assert shared is not None  # `shape_of` was asked before
        white = unit(distribution.whitened(features.to(vlm.device)))
        beta = shape_of(vlm, other(tower)).quadratic(embedded.mean) / square
        found = (embedded.mean / length[:, None], white.half(), shared.scale / square, beta)
        rows = cls(*(part.cpu() for part in found))
        rows._check(features, names)
        return rows

    @classmethod
    def of_vectors(cls, vlm: BayesVLM, vectors: Tensor, shape: Shape, tower: Tower) -> Rows:  # [N, d]
        """Plain vectors, which have a direction and no variance; `shape` is that of what they are compared with."""
        mean = unit(vectors.double()).to(vlm.image.weight)
        width = (vlm.image if tower == "image" else vlm.text).input_width
        nothing = mean.new_zeros(len(mean))
        found = (mean, mean.new_zeros(len(mean), width).half(), nothing, shape.quadratic(mean))
        return cls(*(part.cpu() for part in found))

    def __len__(self) -> int:
        return len(self.mean)

    def __getitem__(self, index: Any) -> Rows:
        return Rows(self.mean[index], self.white[index], self.alpha[index], self.beta[index])

    @property
    def directed(self) -> Directed:
        """As `bayesvlm.core.linearised` takes them, in float64: both over s."""
        return Directed(self.mean.double(), unit(self.white.double()) * self.alpha.double().sqrt()[:, None])

    def _check(self, features: Features, names: Sequence[str] | None) -> None:
        total = self.mean.abs().sum(dim=1)  # what is not finite in `white` is not in alpha
        usable = (total > 0) & torch.isfinite(total) & torch.isfinite(self.alpha) & torch.isfinite(self.beta)
        if bool(usable.all()):
            return
        place = int((~usable).nonzero()[0])
        named = f"Row {place}" if names is None else f"{names[place]!r}"
        largest = float(features.activations[place].abs().max())
        raise BayesVLMError(
            f"{named} has activations up to {largest:.3g}, from which no length can be computed in {self.mean.dtype}; "
            "check that input, and the precision that it was encoded in."
        )


def unit(vectors: Tensor) -> Tensor:  # [N, m]
    """Vectors of length one, however short or long they were; zero where they were zero."""
    largest = vectors.abs().amax(dim=1, keepdim=True)
    return torch.nn.functional.normalize(vectors / torch.where(largest > 0, largest, 1), dim=1)


def pair_moments(query: Rows, items: Rows, inner: float) -> tuple[Tensor, Tensor]:  # [1], [N] -> [N], [N]
    """Mean and variance of the cosines of one query with items of the other tower, as `prob_cosine` has them.

    Args:
        inner: <R_g, R_h>.
    """
    mean = items.mean.double() @ query.mean[0].double()
    a, b = query.alpha.double(), query.beta.double()
    alpha, beta = items.alpha.double(), items.beta.double()
    return mean, a * alpha * inner + a * beta + alpha * b
