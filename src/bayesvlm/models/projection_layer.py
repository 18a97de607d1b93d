"""Where the last linear layer of a tower is, and what enters it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bayesvlm.core.features import Features
from bayesvlm.core.projection import Projection
from bayesvlm.models.hooks import captured_inputs


@dataclass(frozen=True)
class ProjectionLayer:
    """Where a tower's last linear layer is, and the module, if any, whose input is added to that layer's output."""

    layer: nn.Linear
    residual: nn.Module | None = None

    def projection(self, device: torch.device, dtype: torch.dtype) -> Projection:
        """A copy of the layer, no narrower than float32: half precision is for encoders."""
        dtype = dtype if dtype == torch.float64 else torch.float32
        weight, bias = self.layer.weight.detach(), self.layer.bias
        return Projection(
            weight.to(device, dtype, copy=True),
            None if bias is None else bias.detach().to(device, dtype, copy=True),
            residual=self.residual is not None,
        )

    def activations(self, run: Callable[[], Any]) -> Features:
        """What enters the layer, and the residual module, while `run` runs the tower once."""
        modules = [self.layer] if self.residual is None else [self.layer, self.residual]
        with captured_inputs(*modules) as records:
            run()
        return Features(*map(rows, records))


def rows(record: list[Tensor]) -> Tensor:  # [N, p]
    """The single recorded input, as a matrix: pooling heads keep a length-one axis of positions."""
    if len(record) != 1:
        raise RuntimeError(f"The last layer ran {len(record)} times in one forward pass; expected exactly once.")
    return record[0].flatten(start_dim=1)
