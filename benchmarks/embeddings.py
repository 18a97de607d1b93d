"""Synthetic embeddings with the cosines of a real CLIP: matches about 0.30, everything else 0.12 +- 0.04."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def clip_like(
    rows: int, d: int, match: float = 0.30, rest: float = 0.12, decay: float = 0.0, seed: int = 0
) -> tuple[Tensor, Tensor]:  # [rows, d], [rows, d]
    """Image and text embeddings of norm about 10; row i of one matches row i of the other.

    With a `decay` above zero, coordinate k is k^-decay as large as the first: few directions carry most of the content,
    as in real models, and cosines of different pairs spread more.
    """
    generator = torch.Generator().manual_seed(seed)
    shared = math.sqrt(rest)  # both modalities have this component along one common direction
    own = math.sqrt(1 - rest)
    agreement = (match - rest) / (1 - rest)
    sizes = torch.arange(1, d, dtype=torch.float32) ** -decay
    text = _unit(sizes * torch.randn(rows, d - 1, generator=generator))
    noise = _unit(sizes * torch.randn(rows, d - 1, generator=generator))
    image = _unit(agreement * text + math.sqrt(1 - agreement**2) * noise)
    common = torch.full((rows, 1), shared)
    norms = 10 + torch.randn(2, rows, 1, generator=generator)
    return norms[0] * torch.cat([common, own * image], dim=1), norms[1] * torch.cat([common, own * text], dim=1)


def _unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=1, keepdim=True)
