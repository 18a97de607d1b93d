"""Kronecker factors of one tower's curvature: plain sums, so that shards, ranks and runs add."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.printing import described

# Negative eigenvalues down to this share of the largest are rounding (the published float32 factors show 1e-6, tf32
# products 1e-4) and count as zero; anything below is not a Gauss-Newton factor.
ROUNDING = 1e-3


class Spectrum(NamedTuple):
    """Eigenvalues (ascending, none negative) and eigenvectors of a symmetric factor."""

    values: Tensor  # [m]
    vectors: Tensor  # [m, m], one per column

    def __repr__(self) -> str:
        return described(self)


@dataclass(frozen=True, eq=False)
class KroneckerFactors:
    r"""`A = 1/sqrt(n) sum_i phi_i phi_i^T` and `B = 1/sqrt(n) sum_i J_i^T Lambda_i J_i`, kept as their sums.

    Args:
        A_sum: [p, p], `sum_i phi_i phi_i^T`.
        B_sum: [d, d], `sum_i J_i^T Lambda_i J_i`.
        n: number of pairs summed over.
    """

    A_sum: Tensor  # [p, p]
    B_sum: Tensor  # [d, d]
    n: int

    __repr__ = described

    def __post_init__(self) -> None:
        if self.n < 1:
            raise BayesVLMError(f"Kronecker factors were given n={self.n} pairs; they need at least 1.")
        object.__setattr__(self, "A_sum", symmetric(self.A_sum, "A"))
        object.__setattr__(self, "B_sum", symmetric(self.B_sum, "B"))

    @property
    def A(self) -> Tensor:  # [p, p]
        return self.A_sum / math.sqrt(self.n)

    @property
    def B(self) -> Tensor:  # [d, d]
        return self.B_sum / math.sqrt(self.n)

    @cached_property
    def A_spectrum(self) -> Spectrum:
        return spectrum(self.A, "A")

    @cached_property
    def B_spectrum(self) -> Spectrum:
        return spectrum(self.B, "B")

    def merge(self, *others: KroneckerFactors) -> KroneckerFactors:
        """The factors of all the pairs together: a sum."""
        everything: Sequence[KroneckerFactors] = (self, *others)
        shapes = {(factors.A_sum.shape[0], factors.B_sum.shape[0]) for factors in everything}
        if len(shapes) > 1:
            raise BayesVLMError(
                f"Factors of different sizes (p, d) = {sorted(shapes)} cannot be merged; "
                "all must come from the same projection of the same model."
            )
        home = self.A_sum.device
        return KroneckerFactors(
            torch.stack([factors.A_sum.to(home) for factors in everything]).sum(dim=0),
            torch.stack([factors.B_sum.to(home) for factors in everything]).sum(dim=0),
            sum(factors.n for factors in everything),
        )

    def check(self) -> KroneckerFactors:
        """Itself, after both spectra were found to be those of curvature factors."""
        _ = self.A_spectrum, self.B_spectrum
        return self

    def to(self, device: torch.device | str) -> KroneckerFactors:
        if self.A_sum.device == torch.device(device):
            return self
        return KroneckerFactors(self.A_sum.to(device), self.B_sum.to(device), self.n)


def symmetric(matrix: Tensor, name: str) -> Tensor:
    """`matrix` in float64, exactly symmetric; refuses what is not square, finite and symmetric up to rounding."""
    matrix = torch.as_tensor(matrix).detach()
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.numel() == 0 or not matrix.is_floating_point():
        raise BayesVLMError(
            f"Factor {name} must be a square floating-point matrix, got {matrix.dtype} of shape {list(matrix.shape)}."
        )
    matrix = matrix.double()
    if not bool(torch.isfinite(matrix).all()):
        raise BayesVLMError(f"Factor {name} holds NaN or Inf; estimate it again from finite activations.")
    skew, size = float((matrix - matrix.T).abs().max()), float(matrix.abs().max())
    if skew > ROUNDING * size:
        raise BayesVLMError(
            f"Factor {name} is not symmetric: entries differ from their mirror images by up to {skew:.3g} "
            f"where the largest is {size:.3g}; it must be a sum of outer products."
        )
    return (matrix + matrix.T) / 2


def spectrum(matrix: Tensor, name: str) -> Spectrum:
    """Eigen-decomposition of a positive semi-definite matrix; singular is fine, indefinite beyond rounding is not."""
    values, vectors = torch.linalg.eigh(matrix)
    smallest, largest = float(values[0]), float(values[-1])
    if smallest < -ROUNDING * max(largest, 0.0):
        raise BayesVLMError(
            f"Factor {name} is indefinite: its eigenvalues run from {smallest:.3g} to {largest:.3g}, and a curvature "
            "factor has none below zero beyond rounding; it was not estimated as a Gauss-Newton sum."
        )
    noise = len(values) * torch.finfo(values.dtype).eps * max(largest, 0.0)
    return Spectrum(torch.where(values > noise, values, 0.0), vectors)


def symmetric_root(of: Spectrum) -> Tensor:  # [m, m]
    """U diag(sqrt values) U^T: the one root that does not change with the signs and bases of the eigenvectors."""
    return (of.vectors * of.values.sqrt().to(of.vectors)) @ of.vectors.T
