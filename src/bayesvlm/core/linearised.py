r"""Cosines of embeddings that share a draw of the projection, linearised: two pictures, or one query and all its hits.

The mathematics: docs/method.md, "Search".

Two items of one tower have `Cov[g_i, g_j] = k_ij R` with k_ij = w_i . w_j of their whitened activations. To first order
in the projection, for unit means u, v with cosine c, and w, z whitened activations each over the length of its mean,

    dcos = (v - c u)^T dg/|mu_g| + (u - c v)^T dh/|mu_h|,    dg/|mu_g| = R^1/2 Z w,  dh/|mu_h| = R^1/2 Z z

is linear in white noise Z [d, p]: dcos = <Z, M>. Of near-copies both terms nearly cancel, so M is written in what the
two share and in what sets them apart,

    M = (1-c) [R^1/2 (u+v)] [(w+z)/2]^T + (1+c) [R^1/2 (v-u)] [(w-z)/2]^T,    var = |M|^2

where nothing cancels: a copy has variance 0, and its neighbourhood full relative precision.

What is left out makes the variance too large, by about tr Cov[g]/|mu|^2 of itself. Against 20,000 draws: within their
error (1 %) up to a ratio of 0.005, by 1 to 2 % at 0.01, 5 to 9 % at 0.06, 25 to 47 % at 0.3 (of near and unlike pairs).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bayesvlm.core.blocks import row_blocks
from bayesvlm.core.cosine import CosineMoments
from bayesvlm.core.embeddings import Shape
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.posterior import directed
from bayesvlm.core.printing import described

_PAIRS = 2**18  # pairs of a block: its arrays stay in the processor's cache


class Directed(NamedTuple):
    """Items of one tower: means and whitened activations, every item's two in one scale (g and w, or both over s)."""

    mean: Tensor  # [N, d]
    white: Tensor  # [N, p]

    def __repr__(self) -> str:
        return described(self)


class _Unit(NamedTuple):
    """The same in the scale in which means have length one, float64: differences of near-copies keep their digits."""

    direction: Tensor  # [N, d], u
    rooted: Tensor  # [N, d], R^1/2 u in the basis of R
    white: Tensor  # [N, p]

    @classmethod
    def of(cls, items: Directed, shape: Shape) -> _Unit:
        mean = directed(items.mean).double()
        length = mean.norm(dim=1, keepdim=True)
        direction = mean / length
        return cls(direction, _rooted(direction, shape), items.white.double() / length)


def same_tower_cosines(x: Directed, y: Directed, shape: Shape) -> CosineMoments:
    """Mean and joint variance of the cosine of every item of x [N] with every one of y [M], of one tower.

    Computed in float64 and returned in the dtype of the means. A copy has mean 1 and variance 0, up to rounding.

    Args:
        x, y: the items; see `Directed`.
        shape: R of their tower.
    """
    left, right = _Unit.of(x, shape), _Unit.of(y, shape)
    a, b = _squares(left.white)[:, None], _squares(right.white)
    alpha, beta = _squares(left.rooted)[:, None], _squares(right.rooted)
    mean, variance = x.mean.new_empty(len(x.mean), len(y.mean)), x.mean.new_empty(len(x.mean), len(y.mean))
    for rows in row_blocks(len(x.mean), len(y.mean), _PAIRS):
        c = (left.direction[rows] @ right.direction.T).clamp_(-1, 1)
        k = (left.white[rows] @ right.white.T).mul_(2)
        gamma = (left.rooted[rows] @ right.rooted.T).mul_(2)
        whites, shapes = a[rows] + b, alpha[rows] + beta
        cross = (a[rows] - b) * (beta - alpha[rows])
        mean[rows] = c
        variance[rows] = _variance(1 - c, 1 + c, (whites + k, whites - k), (shapes + gamma, shapes - gamma), cross)
    return CosineMoments(mean, variance)


def paired_cosines(x: Directed, y: Directed, shape: Shape) -> tuple[Tensor, Tensor]:  # [N], [N]
    """Mean and variance of the cosine of every item of x with the one of y in its place, from their differences.

    Precise to rounding however near a copy: for the few pairs that are shown, where `same_tower_cosines` is for all.
    """
    if len(x.mean) != len(y.mean):
        raise BayesVLMError(f"{len(x.mean)} items and {len(y.mean)} are no pairs; pass equally many of both.")
    left, right = _Unit.of(x, shape), _Unit.of(y, shape)
    apart, together = right.direction - left.direction, right.direction + left.direction
    near, far = _squares(apart) / 2, _squares(together) / 2  # 1 - c and 1 + c
    rooted_apart, rooted_together = _rooted(apart, shape), _rooted(together, shape)
    white_gap, white_sum = left.white - right.white, left.white + right.white
    cross = (white_gap * white_sum).sum(dim=1) * (rooted_apart * rooted_together).sum(dim=1)
    whites, shapes = (_squares(white_sum), _squares(white_gap)), (_squares(rooted_together), _squares(rooted_apart))
    variance = _variance(near, far, whites, shapes, cross)
    return (1 - near).clamp(-1, 1).to(x.mean), variance.to(x.mean)


def joint_cosines(query: Directed, items: Directed, shape: Shape) -> tuple[Tensor, Tensor]:  # [k], [k, k]
    """Mean and joint covariance of the cosines of one query with k items of its own tower, float64.

    Of the other tower: `query_cosines`.

    Args:
        query: one row.
        items: what was found.
        shape: R of their tower.
    """
    if len(query.mean) != 1:
        raise BayesVLMError(f"The query has {len(query.mean)} rows; pass one query, as one row.")
    found, asked = _Unit.of(items, shape), _Unit.of(query, shape)
    apart, together = found.direction - asked.direction, found.direction + asked.direction
    near, far = _squares(apart)[:, None] / 2, _squares(together)[:, None] / 2
    left = torch.cat([found.white + asked.white, asked.white - found.white])
    right = torch.cat([_rooted(near * together, shape), _rooted(far * apart, shape)])
    blocks = (left @ left.T) * (right @ right.T) / 4
    k = len(near)
    return (1 - near[:, 0]).clamp(-1, 1), blocks[:k, :k] + blocks[:k, k:] + blocks[k:, :k] + blocks[k:, k:]


def query_cosines(
    query: Directed, query_shape: Shape | None, items: Directed, shape: Shape
) -> tuple[Tensor, Tensor]:  # [k], [k, k]
    """Mean and joint covariance of the cosines of one query with k items of the other tower, float64.

    The means are those of `prob_cosine`. The covariance is to first order in both projections, lengths held at the
    expected ones, so that it is of cosines as a draw ranks them; `prob_cosine` has larger variances, as it counts how
    lengths vary too, which moves all hits of a query alike.

        dcos_i = (u - c_i v_i)^T dg_i / s_i + (v_i - c_i u)^T dh / s

    Args:
        query: one row, over its expected length s; likewise the items.
        query_shape: R of the query's tower; None: a vector without variance, whose `white` is not looked at.
        items: what was found.
        shape: R of the items' tower.
    """
    if len(query.mean) != 1:
        raise BayesVLMError(f"The query has {len(query.mean)} rows; pass one query, as one row.")
    means, asked = items.mean.double(), query.mean.double()
    v, u = torch.nn.functional.normalize(means, dim=1), torch.nn.functional.normalize(asked, dim=1)
    c = (v @ u[0])[:, None]
    by_items, white = _rooted(u - c * v, shape), items.white.double()
    covariance = (white @ white.T) * (by_items @ by_items.T)
    if query_shape is not None:
        by_query = _rooted(v - c * u, query_shape)
        covariance = covariance + query.white.double().square().sum() * (by_query @ by_query.T)
    return means @ asked[0], covariance


def probability_of_best(mean: Tensor, covariance: Tensor, draws: int = 512, seed: int = 0) -> Tensor:
    """How often each of k jointly normal values is the largest; sums to 1. Copies of each other share alike.

    Args:
        mean: [k], or [Q, k] for many queries.
        covariance: [k, k] or [Q, k, k]; singular is fine.
        draws: the same noise for all queries.
        seed: of the noise.

    Returns:
        [k] or [Q, k], float64.
    """
    mean, covariance = mean.double(), covariance.double()
    if not mean.numel():
        return mean
    noise = torch.randn(draws, mean.shape[-1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    root = _symmetric_root(covariance)
    spread = covariance.diagonal(dim1=-2, dim2=-1).amax(dim=-1).clamp(min=0).sqrt()
    tied = 1e-6 * spread + 1e-12 * mean.abs().amax(dim=-1)  # what rounding leaves between two copies
    values = noise.to(mean) @ root + mean[..., None, :]
    best = (values >= values.amax(dim=-1, keepdim=True) - tied[..., None, None]).to(mean)
    return (best / best.sum(dim=-1, keepdim=True)).mean(dim=-2)


def _symmetric_root(covariance: Tensor) -> Tensor:  # [..., k, k]
    """The root that does not depend on which eigenvectors a machine returns, with rounding cut off the spectrum."""
    values, vectors = torch.linalg.eigh(covariance)
    noise = values.shape[-1] * torch.finfo(values.dtype).eps * values.amax(dim=-1, keepdim=True)
    values = torch.where(values > noise, values, 0.0)
    root: Tensor = (vectors * values.sqrt()[..., None, :]) @ vectors.transpose(-1, -2)
    return root


def _variance(
    near: Tensor, far: Tensor, whites: tuple[Tensor, Tensor], shapes: tuple[Tensor, Tensor], cross: Tensor
) -> Tensor:
    """|M|^2 of the module's docstring, for pairs.

    Args:
        near, far: 1 - c and 1 + c.
        whites: |w + z|^2 and |w - z|^2.
        shapes: squared norms of R^1/2 (u + v) and R^1/2 (v - u).
        cross: (|w|^2 - |z|^2) (v^T R v - u^T R u).
    """
    together = near.square() * (whites[0] * shapes[0])
    apart = far.square() * (whites[1].clamp(min=0) * shapes[1].clamp(min=0))
    return (together + apart + 2 * near * far * cross).clamp_(min=0) / 4


def _rooted(vectors: Tensor, shape: Shape) -> Tensor:  # [N, d]
    """R^1/2 of the rows, in the basis of R."""
    rotated = vectors if shape.basis is None else vectors @ shape.basis.to(vectors)
    return rotated * shape.spectrum.to(vectors).sqrt()


def _squares(rows: Tensor) -> Tensor:  # [N]
    return rows.square().sum(dim=1)
