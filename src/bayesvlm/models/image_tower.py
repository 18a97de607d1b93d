"""An image encoder alone, up to what enters its last linear layer, as a module that can be traced."""

from __future__ import annotations

import copy
from typing import Any, Self

from torch import Tensor, nn

from bayesvlm.models.hooks import captured_inputs
from bayesvlm.models.projection_layer import ProjectionLayer, rows

Entering = tuple[Tensor, Tensor | None]  # [N, p], and [N, d] where the tower adds a residual
"""What enters a tower's last linear layer, and what is added after it."""


class ImageTower(nn.Module):
    """The vision model of `transformers`, without the text tower and without the last layer's output.

    Args:
        encoder: takes `pixel_values`.
        last: the last linear layer, where it is inside the encoder; None: the encoder's pooled output enters it.
    """

    def __init__(self, encoder: nn.Module, last: ProjectionLayer | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.layer: nn.Module | None = None if last is None else last.layer
        self.residual: nn.Module | None = None if last is None else last.residual

    def forward(self, pixel_values: Tensor) -> Entering:  # [N, 3, H, W]
        if self.layer is None:
            return self.encoder(pixel_values=pixel_values).pooler_output, None
        modules = [module for module in (self.layer, self.residual) if module is not None]
        with captured_inputs(*modules) as records:
            self.encoder(pixel_values=pixel_values)
        activations, *residual = map(rows, records)
        return activations, residual[0] if residual else None

    def traceable(self) -> Self:
        """A copy that shares the weights and writes attention out as products, which other runtimes know best."""
        shared = {id(tensor): tensor for tensor in (*self.parameters(), *self.buffers())}
        tower = copy.deepcopy(self, shared)
        configuration: Any = tower.encoder.config
        configuration._attn_implementation = "eager"
        return tower
