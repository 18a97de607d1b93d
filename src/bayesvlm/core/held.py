r"""Draws of cosines with directions that are held, without drawing the embeddings they belong to.

The mathematics: docs/method.md, "Draws".

An input's embedding under a draw is `g = m + F Z u`, with m its mean, u its whitened input, Z [d, p] white noise shared
by all inputs and `F F^T = R` the covariance of outputs. Of Z the products with C held unit directions H need C rows:

    H g = H m + L y,   L = (H R H^T)^1/2,   y = Z_1 u,   Z_1 [C, p] white

exactly, all inputs together. What is left of Z, independent of Z_1, enters by the length alone:

    |g|^2 = |m + M y|^2 + 2 (m + M y) . e + |e|^2,   M = R H^T L^+,   e the rest, its covariance |u|^2 (R - M M^T)

The length is all classes' at once, and e a small part of it: its noise is made of `SKETCH` rank-one pieces,
`k^-1/2 sum_i w_i z_i^T`, of which the second and the third term have the mean and the covariance, between all inputs,
that white noise of full rank gives them. That takes C + k rows of p numbers in the place of d.

One seed means one draw on every machine: L is a symmetric root, F triangular (or any root that is unique), and neither
changes with the signs and bases of eigenvectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bayesvlm.core.blocks import row_blocks
from bayesvlm.core.draws import group_sizes, standard_normal
from bayesvlm.core.predict import LEAST_LENGTH, tower_generators

SKETCH = 4  # k; the length's small part has an excess kurtosis of 6/k
NULL = 1e-12  # of the largest eigenvalue: directions that the others span already
BLOCK = 2**21  # cosines at a time on a CPU: 8 MiB in float32


@dataclass(frozen=True, eq=False)
class HeldCosines:
    """Cosines of drawn embeddings with C held directions.

    Args:
        directions: H, of length one.
        root: L.
        along: M.
        rest: a root of R - M M^T.
        trace: of R - M M^T.
        spread: of the pieces of |e|^2 beyond its mean, so that its variance is right.
    """

    directions: Tensor  # [C, d]
    root: Tensor  # [C, C]
    along: Tensor  # [d, C]
    rest: Tensor  # [d, d]
    trace: float
    spread: float

    @staticmethod
    def pay(directions: int, width: int) -> bool:
        """Whether this takes less than half of what drawing whole embeddings takes."""
        return 2 * (directions + SKETCH) <= width

    @classmethod
    def of(cls, directions: Tensor, factor: Tensor, like: Tensor) -> HeldCosines:
        """From unit directions [C, d] and F [d, d], both float64; the results are of the dtype and device of `like`."""
        seen = directions.to(factor) @ factor  # H F
        values, vectors = torch.linalg.eigh(seen @ seen.T)
        counts = values > NULL * values[-1]
        sizes = values.clamp_min(0).sqrt()
        root = (vectors * sizes) @ vectors.T
        inverse = (vectors * torch.where(counts, 1 / sizes.masked_fill(~counts, 1), 0)) @ vectors.T  # L^+
        rows = inverse @ seen  # an orthonormal basis of what H sees of the noise
        along = factor @ rows.T
        rest = factor - along @ rows
        trace = float(rest.square().sum())
        variance = float((rest @ rest.T).square().sum())
        spread = min(math.sqrt(variance / SKETCH), trace / SKETCH)  # |e|^2 is never negative
        return cls(directions.to(like), root.to(like), along.to(like), rest.to(like), trace, spread)

    def cost(self, inputs: int, p: int) -> float:
        """Floating-point operations of one draw, about."""
        C, d = self.directions.shape
        return 2.0 * inputs * ((C + SKETCH) * p + 2 * C * C + SKETCH * (C + d))

    def blocks(
        self,
        mean: Tensor,  # [N, d]
        inputs: Tensor,  # [N, p]
        draws: int,
        seed: int,
    ) -> Iterator[tuple[slice, slice, Tensor]]:  # rows, draws, [n, s, C]
        """Cosines of some inputs under some draws, a block at a time; every input sees the same draws."""
        (C, d), p = self.directions.shape, inputs.shape[1]
        generators = tower_generators(seed)
        numbers = BLOCK if mean.device.type == "cpu" else 2**26
        first = 0
        for count in group_sizes(draws, 4 * (C * p + SKETCH * (p + d))):
            white = standard_normal(count, (C, p), generators[0], mean).view(-1, p)
            pieces = standard_normal(count, (SKETCH, p + d), generators[1], mean)
            noise = _Noise.of(white, pieces[:, :, :p], pieces[:, :, p:] @ self.rest.T, self.along)
            for own in row_blocks(len(mean), count * (C + SKETCH), numbers):
                yield own, slice(first, first + count), self._cosines(mean[own], inputs[own], noise)
            first += count

    def _cosines(self, mean: Tensor, inputs: Tensor, noise: _Noise) -> Tensor:  # [n, d], [n, p] -> [n, s, C]
        n, C = len(mean), len(self.directions)
        y = inputs @ noise.white.T  # [n, s C]
        seen = y.view(n, -1, C)
        z = (inputs @ noise.z.T).view(n, -1, SKETCH)
        cross = torch.bmm(seen.transpose(0, 1), noise.tilt).transpose(0, 1)  # [n, s, k], M y . e
        cross = cross + (mean @ noise.sideways.T).view_as(z)
        variance = inputs.square().sum(dim=1)[:, None]  # |u|^2
        square = (cross.mul_(2 / math.sqrt(SKETCH)) + self.spread * z).mul_(z).sum(dim=2)
        square += mean.square().sum(dim=1)[:, None] + (self.trace - SKETCH * self.spread) * variance
        bent = (y.view(-1, C) @ (self.along.T @ self.along)).view_as(seen)
        square += bent.add_(2 * (mean @ self.along)[:, None]).mul_(seen).sum(dim=2)
        along = (y.view(-1, C) @ self.root).view_as(seen).add_((mean @ self.directions.T)[:, None])
        lengths = square.clamp_min_(LEAST_LENGTH**2).sqrt_()
        lengths = torch.maximum(lengths, torch.maximum(along.amax(dim=2), -along.amin(dim=2)))  # no cosine is above one
        return along.div_(lengths[:, :, None])


class _Noise(NamedTuple):
    """Of some draws, and what of it does not depend on the input."""

    white: Tensor  # [s C, p], Z_1
    z: Tensor  # [s k, p]
    sideways: Tensor  # [s k, d], w, coloured as the rest is
    tilt: Tensor  # [s, C, k], M^T w

    @classmethod
    def of(cls, white: Tensor, z: Tensor, sideways: Tensor, along: Tensor) -> _Noise:
        flat = sideways.reshape(-1, sideways.shape[2])
        return cls(white, z.reshape(-1, z.shape[2]), flat, (sideways @ along).transpose(1, 2))
