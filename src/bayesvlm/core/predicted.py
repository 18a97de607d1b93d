"""Gaussian embeddings of models that predict them, a mean and a variance for every input: ProLIP, PCME++."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from bayesvlm.core.draws import standard_normal
from bayesvlm.core.embeddings import GaussianEmbeddings
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.core.printing import described


@dataclass(frozen=True, eq=False)
class PredictedVariance:
    """What stands in the place of a posterior over the projection: the variance comes with every input.

    Args:
        like: a tensor of the dtype and on the device to compute with.
        width: d.
    """

    WHY: ClassVar[str] = "predicts its variances itself; classify with it as it is"

    like: Tensor
    width: int

    __repr__ = described

    def embed(self, features: Features) -> GaussianEmbeddings:
        """N(mean, diag exp(log variance))."""
        mean, log_variance = self._columns(features)
        return GaussianEmbeddings.from_variances(mean, log_variance.exp())

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
        for name, found in features.tensors().items():
            if found.shape[1] != self.width:
                raise BayesVLMError(
                    f"The features' {name} is {found.shape[1]} wide, the model's embedding {self.width}; they are of "
                    "another model."
                )
        return features.activations.to(self.like), features.log_variance.to(self.like)
