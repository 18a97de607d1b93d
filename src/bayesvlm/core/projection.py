"""The last linear layer of a tower: the only part of the model the posterior is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.core.printing import described


@dataclass(frozen=True, eq=False)
class Projection:
    """`g = W phi + b + r`: weight W, optional bias b, and whether inputs must bring a residual r.

    A bias is one more input (1 is appended to phi, and b to W), so the posterior covers it too.
    Weights are kept in float32, or float64 when given so: half precision is for encoders, not for curvature.

    Args:
        weight: [d, p].
        bias: [d] or None.
        residual: whether Features for this projection must carry a residual; None takes either.
    """

    weight: Tensor  # [d, p]
    bias: Tensor | None = None  # [d]
    residual: bool | None = None

    __repr__ = described

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", _parameter(self.weight, "projection weight", 2))
        if self.bias is None:
            return
        object.__setattr__(self, "bias", _parameter(self.bias, "projection bias", 1).to(self.weight))
        if self.bias.shape[0] != self.weight.shape[0]:
            raise BayesVLMError(
                f"The projection bias has {self.bias.shape[0]} entries but the weight {list(self.weight.shape)} "
                f"has {self.weight.shape[0]} output rows; a bias has one entry per row."
            )

    @property
    def embedding_width(self) -> int:
        """d, the width of the shared embedding space."""
        return int(self.weight.shape[0])

    @property
    def activation_width(self) -> int:
        """The width of the activations a caller supplies (without the appended 1)."""
        return int(self.weight.shape[1])

    @property
    def input_width(self) -> int:
        """p, the width the posterior sees (with the appended 1 when there is a bias)."""
        return self.activation_width + (self.bias is not None)

    @property
    def augmented(self) -> Tensor:  # [d, p]
        """The weight with the bias as its last column."""
        if self.bias is None:
            return self.weight
        return torch.cat([self.weight, self.bias[:, None]], dim=1)

    def with_augmented(self, weight: Tensor) -> Projection:  # [d, p]
        """The projection with these parameters in the place of `augmented`."""
        if self.bias is None:
            return Projection(weight, None, self.residual)
        return Projection(weight[:, :-1], weight[:, -1], self.residual)

    @property
    def norm_squared(self) -> float:
        """|W|^2 over every parameter the prior covers, bias included."""
        return float(self.augmented.double().square().sum())

    def to(self, *args: Any, **kwargs: Any) -> Projection:
        """Move or cast, as `torch.Tensor.to`."""
        bias = None if self.bias is None else self.bias.to(*args, **kwargs)
        return Projection(self.weight.to(*args, **kwargs), bias, self.residual)

    def inputs(self, features: Features) -> Tensor:  # [N, p]
        """phi as the posterior sees it: in the weight's dtype, on its device, and for a bias 1 (or the constant)."""
        self._check_activations(features)
        phi = features.activations.to(self.weight)
        if self.bias is None:
            return phi
        constant = phi.new_ones(len(phi), 1) if features.constant is None else features.constant.to(phi)
        return torch.cat([phi, constant], dim=1)

    def embed(self, features: Features) -> Tensor:  # [N, d]
        """The mean embedding g = W phi + b + r, not normalised."""
        self.check(features)
        g = self.inputs(features) @ self.augmented.T
        return g if features.residual is None else g + features.residual.to(g)

    def check(self, features: Features) -> None:
        """Refuse features that are not of this tower."""
        self._check_activations(features)
        if features.residual is None:
            if self.residual:
                raise BayesVLMError(
                    "This tower adds a residual after its last layer, but the features carry none; "
                    "pass Features(activations, residual), as the adapter's encode_images returns."
                )
            return
        if self.residual is False:
            raise BayesVLMError(
                "The features carry a residual but this tower adds none; pass Features(activations) alone."
            )
        if features.residual.shape[1] != self.embedding_width:
            raise BayesVLMError(
                f"The residual is {features.residual.shape[1]} wide but the embedding {self.embedding_width}; "
                "it must be what the model adds to the projection's output."
            )

    def _check_activations(self, features: Features) -> None:
        if features.activations.shape[1] != self.activation_width:
            raise BayesVLMError(
                f"The activations are {features.activations.shape[1]} wide but this tower's projection takes "
                f"{self.activation_width}; they must be what enters the last linear layer "
                f"(weight {list(self.weight.shape)}), of the same model and the same tower."
            )


def _parameter(value: Tensor, name: str, dimensions: int) -> Tensor:
    tensor = torch.as_tensor(value).detach()
    if tensor.ndim != dimensions or not tensor.is_floating_point() or tensor.numel() == 0:
        raise BayesVLMError(
            f"The {name} must be a non-empty floating-point tensor of {dimensions} dimension(s), "
            f"got {tensor.dtype} of shape {list(tensor.shape)}."
        )
    if not bool(torch.isfinite(tensor).all()):
        raise BayesVLMError(
            f"The {name} holds NaN or Inf; the checkpoint is damaged or was loaded in too narrow a dtype."
        )
    return tensor.to(torch.float64 if tensor.dtype == torch.float64 else torch.float32, copy=True)
