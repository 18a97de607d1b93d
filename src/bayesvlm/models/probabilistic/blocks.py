"""The transformer both families are built from, with the parameter names of OpenCLIP, which they publish under.

Parameters are left uninitialised: they only ever come from a file.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.models.probabilistic.configuration import TowerShape

Gaussians = tuple[Tensor, Tensor]  # unit means [N, d], log variances [N, d]


class QuickGELU(nn.Module):
    """OpenAI's approximation of GELU."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class Attention(nn.Module):
    """Self-attention; `in_proj_weight` holds queries, keys and values, as in `torch.nn.MultiheadAttention`."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.in_proj_weight = parameter(3 * width, width)
        self.in_proj_bias = parameter(3 * width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:  # [N, L, w] -> [N, L, w]
        entering = functional.linear(x, self.in_proj_weight, self.in_proj_bias)  # [N, L, 3 w]
        split = entering.view(*x.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = split  # [N, heads, L, w / heads] each
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        output: Tensor = self.out_proj(seen.transpose(1, 2).flatten(2))
        return output


class Block(nn.Module):
    """Attention and a perceptron, each normalised before and added after."""

    def __init__(self, tower: TowerShape, quick_gelu: bool, causal: bool) -> None:
        super().__init__()
        hidden = int(tower.width * tower.mlp_ratio)
        self.ln_1 = nn.LayerNorm(tower.width, eps=tower.eps)
        self.attn = Attention(tower.width, tower.heads, causal)
        self.ln_2 = nn.LayerNorm(tower.width, eps=tower.eps)
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        layers["c_fc"] = nn.Linear(tower.width, hidden)
        layers["gelu"] = QuickGELU() if quick_gelu else nn.GELU()
        layers["c_proj"] = nn.Linear(hidden, tower.width)
        self.mlp = nn.Sequential(layers)

    def forward(self, x: Tensor) -> Tensor:  # [N, L, w] -> [N, L, w]
        x = x + self.attn(self.ln_1(x))
        output: Tensor = x + self.mlp(self.ln_2(x))
        return output


class Transformer(nn.Module):
    """A stack of blocks that can be run in part, since PCME++ branches off before the last ones."""

    def __init__(self, tower: TowerShape, layers: int, quick_gelu: bool, causal: bool = False) -> None:
        super().__init__()
        self.resblocks = nn.ModuleList(Block(tower, quick_gelu, causal) for _ in range(layers))

    def forward(self, x: Tensor, start: int = 0, stop: int | None = None) -> Tensor:  # [N, L, w] -> [N, L, w]
        for block in self.resblocks[start:stop]:
            x = block(x)
        return x


def parameter(*shape: int) -> nn.Parameter:
    """A parameter of that shape, to be filled from a file."""
    return nn.Parameter(torch.empty(shape))


def patch_convolution(width: int, patch_size: int) -> nn.Conv2d:
    """From pixels to one vector a patch."""
    return nn.Conv2d(3, width, kernel_size=patch_size, stride=patch_size, bias=False)


def beside(token: Tensor, x: Tensor) -> Tensor:  # [w], [N, L, w] -> [N, 1, w]
    """A learned token, once for every item of the batch."""
    return token.expand(len(x), 1, -1)


def check_pixels(pixels: Tensor, size: int) -> None:
    """Refuse a batch of another size: positions have been learned for one size only."""
    if pixels.ndim != 4 or pixels.shape[1:] != (3, size, size):
        raise BayesVLMError(
            f"The pixels have shape {list(pixels.shape)}; expected [N, 3, {size}, {size}]: "
            f"make them with to_pixels(images, {size})."
        )
