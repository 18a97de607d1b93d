r"""Which pool items lie nearest to the target, each taken once.

The mathematics: docs/method.md, "Active learning".

Targets choose in the order they are given, each the nearest item nobody chose before; when all have chosen and more are
wanted, they go round again. Nearness is between Gaussian embeddings: the expected cosine, or the 2-Wasserstein distance
of their diagonals, `W2^2 = |mu - mu'|^2 + sum (sigma - sigma')^2`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Literal, get_args

import torch
from torch import Tensor

from bayesvlm.core.cosine import expected_cosine
from bayesvlm.core.embeddings import GaussianEmbeddings
from bayesvlm.core.errors import BayesVLMError, check_choice

Metric = Literal["cosine", "wasserstein"]
CHUNK = 256  # targets whose nearness to the whole pool is held at once


@torch.no_grad()
def nearest_distinct(
    pool: GaussianEmbeddings,
    target: GaussianEmbeddings,
    order: Tensor,  # [M]
    count: int,
    metric: Metric = "cosine",
    taken: Tensor | None = None,  # [N]
) -> Tensor:  # [count]
    """Indices of `count` different pool items, as the targets choose them.

    Args:
        order: the targets' indices, first chooser first.
        metric: "cosine" (expected) or "wasserstein".
        taken: which pool items cannot be chosen.
    """
    check_choice("metric", metric, get_args(Metric))
    if len(order) == 0 or len(target) == 0:
        raise BayesVLMError("There is no target to choose for; give at least one target image.")
    free = len(pool) if taken is None else int((~taken).sum())
    if count > free:
        raise BayesVLMError(f"{count} different items were asked of a pool of {free}; ask for fewer.")
    gone = torch.zeros(len(pool), dtype=torch.bool) if taken is None else taken.clone()
    gone = gone.to(pool.mean.device)
    chosen: list[int] = []
    for row in islice(_rounds(pool, target[order[:count]], metric), count):
        item = int(row.masked_fill(gone, -torch.inf).argmax())
        gone[item] = True
        chosen.append(item)
    return torch.tensor(chosen, dtype=torch.long)


def _rounds(pool: GaussianEmbeddings, choosers: GaussianEmbeddings, metric: Metric) -> Iterator[Tensor]:  # [N] each
    """How near the pool is to each chooser, one after the other, round after round."""
    few = nearness(choosers, pool, metric) if len(choosers) <= CHUNK else None
    while True:
        for start in range(0, len(choosers), CHUNK):
            yield from few if few is not None else nearness(choosers[start : start + CHUNK], pool, metric)


def nearness(target: GaussianEmbeddings, pool: GaussianEmbeddings, metric: Metric) -> Tensor:  # [M, N]
    """How near every pool item is to every target; larger is nearer."""
    if metric == "cosine":
        return expected_cosine(target, pool)
    t, p = _mean_and_std(target), _mean_and_std(pool)
    return -torch.cdist(t, p, compute_mode="donot_use_mm_for_euclid_dist").square()


def _mean_and_std(embeddings: GaussianEmbeddings) -> Tensor:  # [N, 2 d]
    """Diagonal Gaussians as points whose squared distance is W2^2."""
    spread = embeddings.covariance.per_item()
    variance = spread.variance if spread.basis is None else spread.variance @ spread.basis.square().T
    return torch.cat([embeddings.mean, variance.sqrt()], dim=1)
