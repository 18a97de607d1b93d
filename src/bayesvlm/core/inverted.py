r"""A posterior that is known only by its inverses: how the paper's authors publish theirs, inside a model.

    Cov[g(x)] = (phi^T At^-1 phi) diag(Bt^-1),   At = sqrt(tau) A + sqrt(lam) I,   Bt = sqrt(tau) B + sqrt(lam) I

tau and lam are inside the inverses and cannot be taken out again, and of Bt^-1 only the diagonal is there: enough to
predict, not to choose other settings or to go on learning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from bayesvlm.core.draws import coloured, standard_normal
from bayesvlm.core.embeddings import GaussianEmbeddings, Shape, SharedCovariance, SharedCovarianceMap
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.factors import spectrum, symmetric, symmetric_root
from bayesvlm.core.features import Features
from bayesvlm.core.posterior import Posterior, directed
from bayesvlm.core.printing import described
from bayesvlm.core.projection import Projection
from bayesvlm.core.settings import Settings


@dataclass(frozen=True, eq=False)
class InvertedPosterior:
    """N(W, At^-1 (x) diag(b)) over the projection W of one tower.

    Args:
        projection: the mean.
        A_inverse: [p, p], At^-1.
        B_diagonal: [d], b, the diagonal of Bt^-1.
    """

    projection: Projection
    A_inverse: Tensor  # [p, p]
    B_diagonal: Tensor  # [d]

    predicted: ClassVar[bool] = False
    origin: ClassVar[str] = "a published posterior"
    __repr__ = described

    def __post_init__(self) -> None:
        have = (list(self.A_inverse.shape), list(self.B_diagonal.shape))
        p, d = self.projection.input_width, self.projection.embedding_width
        if have != ([p, p], [d]):
            raise BayesVLMError(
                f"The inverse of A is {have[0]} and the diagonal of that of B {have[1]}; this projection needs "
                f"{[p, p]} and {[d]} (a bias counts as one input): they belong to another model or tower."
            )
        object.__setattr__(self, "A_inverse", symmetric(self.A_inverse, "A^-1"))
        diagonal = self.B_diagonal.detach().double()
        if not bool((torch.isfinite(diagonal) & (diagonal > 0)).all()) or not bool(self.A_inverse.any()):
            raise BayesVLMError(
                "The inverse of A is zero, or the diagonal of that of B is not above zero everywhere: the covariance "
                "was never set; fit a posterior for the base model instead."
            )
        object.__setattr__(self, "B_diagonal", diagonal)
        _ = self._root  # refuses what is indefinite

    def kronecker(self, wanted: str) -> Posterior:
        """Not to be had: the factors cannot be taken out of the inverses again."""
        raise BayesVLMError(
            f"{wanted}: this model came with its posterior as inverses, tau and lam inside; import the published "
            "factors with `bayesvlm convert`, or fit your own with vlm.fit(pairs)."
        )

    def under(self, settings: Settings, lam: float | None) -> InvertedPosterior:
        """Itself: there is nothing to choose."""
        return self

    def shared_covariance(self) -> SharedCovarianceMap:
        """phi -> a(x) R."""
        return SharedCovarianceMap(self.root, self.shape)

    def whitened(self, features: Features) -> Tensor:  # [N, p]
        """At^-1/2 phi, by the symmetric root."""
        return self._rooted(features)

    def tensors(self) -> dict[str, Tensor]:
        """The inverses."""
        return {"A_inverse": self.A_inverse, "B_diagonal": self.B_diagonal}

    def to(self, *args: Any, **kwargs: Any) -> InvertedPosterior:
        """Move or cast, as `torch.Tensor.to`; the inverses stay in float64."""
        return replace(self, projection=self.projection.to(*args, **kwargs))

    @cached_property
    def shape(self) -> Shape:
        """R, with Cov[g(x)] = a(x) R: the diagonal of Bt^-1."""
        return Shape(self._cast(self.B_diagonal))

    def embed(self, features: Features) -> GaussianEmbeddings:
        """Gaussian embeddings of the inputs: N(W phi + b + r, Cov[W phi])."""
        mean = directed(self.projection.embed(features))
        scale = self._rooted(features).square().sum(dim=1)
        return GaussianEmbeddings(mean, SharedCovariance(scale, self.shape))

    def marginals(self, features: Features) -> GaussianEmbeddings:
        """The same: there is nothing beside the diagonal to draw from."""
        return self.embed(features)

    def drawn_embeddings(self, features: Features, draws: int, generator: torch.Generator) -> Tensor:  # [S, N, d]
        """Embeddings of the inputs under draws of the projection, each draw shared by all inputs."""
        mean, noise = self.projection.embed(features), self._noise(draws, generator)
        return coloured(mean, self._rooted(features), noise, self._cast(self.B_diagonal.sqrt()))

    def draw_cost(self, inputs: int) -> float:
        """Floating-point operations of one draw for so many inputs."""
        return 2.0 * self.projection.augmented.numel() * inputs

    def _noise(self, draws: int, generator: torch.Generator) -> Tensor:  # [S, d, p]
        return standard_normal(draws, self.projection.augmented.shape, generator, self.projection.weight)

    @property
    def root(self) -> Tensor:  # [p, p]
        """L^T, with a(x) = |L phi|^2 the variance that every output shares."""
        return self._cast(self._root)

    def _rooted(self, features: Features) -> Tensor:  # [N, p]
        """(L phi)^T: its square is the variance every output shares."""
        return self.projection.inputs(features) @ self.root

    @cached_property
    def _root(self) -> Tensor:  # [p, p]
        """The symmetric root of At^-1, from the eigenvalues: it is close to singular where the curvature is large."""
        return symmetric_root(spectrum(self.A_inverse, "A^-1"))

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.projection.weight)
