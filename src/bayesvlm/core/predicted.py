"""Gaussian embeddings of models that predict them, a mean and a variance for every input: ProLIP, PCME++."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from bayesvlm.core.draws import standard_normal
from bayesvlm.core.embeddings import GaussianEmbeddings, Shape, SharedCovarianceMap
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.core.posterior import Posterior
from bayesvlm.core.printing import described
from bayesvlm.core.settings import Settings

_NONE_SHARED = "This model predicts a variance for every input, so no covariance is shared; use classify."


@dataclass(frozen=True, eq=False)
class PredictedVariance:
    """What stands in the place of a posterior over the projection: the variance comes with every input.

    Args:
        like: a tensor of the dtype and on the device to compute with.
        width: d.
    """

    like: Tensor
    width: int

    predicted: ClassVar[bool] = True
    origin: ClassVar[str] = "variances of its own"
    __repr__ = described

    def kronecker(self, wanted: str) -> Posterior:
        """Not to be had: nothing was estimated."""
        raise BayesVLMError(f"{wanted}: this model predicts its variances itself; classify with it as it is.")

    def under(self, settings: Settings, lam: float | None) -> PredictedVariance:
        """Itself: there is nothing to choose."""
        return self

    @property
    def shape(self) -> Shape:
        """Not to be had: every input has a covariance of its own."""
        raise BayesVLMError(_NONE_SHARED)

    def shared_covariance(self) -> SharedCovarianceMap:
        """Not to be had either."""
        raise BayesVLMError(_NONE_SHARED)

    def whitened(self, features: Features) -> Tensor:
        """Not to be had: no projection is shared either."""
        raise BayesVLMError(
            "This model predicts a variance for every input, which says nothing of how two inputs of one tower depend; "
            "compare images with texts."
        )

    def tensors(self) -> dict[str, Tensor]:
        """None: the variances come with the features."""
        return {}

    def to(self, *args: Any, **kwargs: Any) -> PredictedVariance:
        """Move or cast, as `torch.Tensor.to`."""
        return replace(self, like=self.like.to(*args, **kwargs))

    def embed(self, features: Features) -> GaussianEmbeddings:
        """N(mean, diag exp(log variance))."""
        mean, log_variance = self._columns(features)
        return GaussianEmbeddings.from_variances(mean, log_variance.exp())

    def marginals(self, features: Features) -> GaussianEmbeddings:
        """The same."""
        return self.embed(features)

    def drawn_embeddings(self, features: Features, draws: int, generator: torch.Generator) -> Tensor:  # [S, N, d]
        """Embeddings, every input with noise of its own: these models say nothing of how inputs depend."""
        mean, log_variance = self._columns(features)
        return standard_normal(draws, mean.shape, generator, mean).mul_((log_variance / 2).exp()).add_(mean)

    def draw_cost(self, inputs: int) -> float:
        """Floating-point operations of one draw for so many inputs: a product and a sum for each number."""
        return 2.0 * inputs * self.width

    def _columns(self, features: Features) -> tuple[Tensor, Tensor]:  # [N, d], [N, d]
        if features.log_variance is None:
            raise BayesVLMError(
                "This model predicts variances, but the features carry none; pass Features(mean, "
                "log_variance=...), as its encoder returns."
            )
        for name, found in (("activations", features.activations), ("log_variance", features.log_variance)):
            if found.shape[1] != self.width:
                raise BayesVLMError(
                    f"The features' {name} is {found.shape[1]} wide, the model's embedding {self.width}; they are of "
                    "another model."
                )
        return features.activations.to(self.like), features.log_variance.to(self.like)
