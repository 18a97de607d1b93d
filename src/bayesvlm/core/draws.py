r"""Draws of a projection, the same for one seed on every machine.

The mathematics: docs/method.md, "Draws".

    W_k = W + R_B Z_k R_A,    g_k(x) = g(x) + R_B Z_k R_A phi(x),    Z_k white noise

Three things keep a seed's draws the same on another processor, on a GPU and in another precision, up to rounding: the
roots are symmetric, so that the signs and bases of eigenvectors, which are free, do not enter; noise is always made by
the CPU, in float32; and draw by draw, so that it does not matter how many are made at once.

Many draws go into one matrix product: small products one after the other leave the cores waiting for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesvlm.core.features import Features
from bayesvlm.core.projection import Projection

MEMORY = 2**25  # bytes that the draws of one group may take


def standard_normal(draws: int, shape: Sequence[int], generator: torch.Generator, like: Tensor) -> Tensor:
    """White noise [draws, *shape], of the dtype and on the device of `like`."""
    noise = torch.empty(draws, *shape)
    for place in noise:
        torch.randn(*shape, generator=generator, out=place)
    return noise.to(like)


def coloured(
    mean: Tensor,  # [N, d]
    inputs: Tensor,  # [N, p]
    noise: Tensor,  # [S, d, p]
    root: Tensor,  # [d, d], or [d] where it is diagonal
) -> Tensor:  # [S, N, d]
    """Embeddings `mean + inputs Z^T root` under every draw, in two matrix products for all of them."""
    mean, inputs = (of.expand(len(noise), *of.shape) for of in (mean, inputs))
    if root.ndim == 1:
        return torch.baddbmm(mean, inputs, (noise * root[:, None]).transpose(1, 2))
    root = root.expand(len(noise), *root.shape)
    if inputs.shape[1] > noise.shape[2]:  # the smaller product of the two comes first
        return torch.baddbmm(mean, inputs, torch.bmm(root.transpose(1, 2), noise).transpose(1, 2))
    return torch.baddbmm(mean, torch.bmm(inputs, noise.transpose(1, 2)), root)


@dataclass(frozen=True, eq=False)
class Held:
    """A projection held at its mean: every draw is the same."""

    projection: Projection

    def drawn_embeddings(self, features: Features, draws: int, generator: torch.Generator) -> Tensor:  # [S, N, d]
        """The mean embeddings, as often as asked for."""
        return self.projection.embed(features).expand(draws, -1, -1)

    def draw_cost(self, inputs: int) -> float:
        """Nothing is computed for a draw."""
        return 0.0


def colouring_cost(inputs: int, d: int, p: int) -> float:
    """Floating-point operations of `coloured` with a [d, d] root, per draw."""
    return 2.0 * d * p * inputs + 2.0 * d * d * min(inputs, p)


def group_sizes(draws: int, bytes_per_draw: int) -> Iterator[int]:
    """How many draws to make at a time, so that a group fits into `MEMORY`."""
    size = max(1, min(draws, MEMORY // max(1, bytes_per_draw)))
    for start in range(0, draws, size):
        yield min(size, draws - start)
