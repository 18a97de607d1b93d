r"""Gaussian embeddings: a mean for every input and a covariance that is cheap to store and to use.

Every covariance here is diagonal in some orthonormal basis Q: `Sigma_i = Q diag(v_i) Q^T`, with Q = I for the
diagonal approximation of the paper and for models that predict variances (ProLIP, PCME++). The damped posterior adds
`v_i = a_i r` with one spectrum r shared by all inputs: then an input needs one number a_i, and a pair O(1) work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Index, row_index
from bayesvlm.core.notebook import bar, html_table
from bayesvlm.core.printing import FIRST, described


@dataclass(frozen=True, eq=False)
class Shape:
    """The matrix `R = Q diag(r) Q^T` that all covariances of a tower share. Compared by identity."""

    spectrum: Tensor  # [d], r
    basis: Tensor | None = None  # [d, d], Q; None is the identity

    __repr__ = described

    def quadratic(self, vectors: Tensor) -> Tensor:  # [N, d] -> [N]
        """v_i^T R v_i."""
        return _rotated(vectors, self.basis).square() @ self.spectrum

    def inner(self, other: Shape) -> Tensor:  # []
        """<R, R'> = tr(R R')."""
        return self.spectrum @ _overlap(self.basis, other.basis, other.spectrum[:, None])[:, 0]

    @cached_property
    def trace(self) -> Tensor:  # []
        return self.spectrum.sum()

    def to(self, *args: Any, **kwargs: Any) -> Shape:
        """Move or cast, as `torch.Tensor.to`."""
        return Shape(self.spectrum.to(*args, **kwargs), _moved(self.basis, *args, **kwargs))


@dataclass(frozen=True, eq=False)
class SharedCovarianceMap:
    """From an input phi to its covariance `a(x) R`, with `a(x) = |L phi|^2`."""

    root: Tensor  # [p, p], L^T
    shape: Shape  # R

    __repr__ = described


@dataclass(frozen=True, eq=False)
class SharedCovariance:
    """`Sigma_i = a_i R`."""

    scale: Tensor  # [N], a_i
    shape: Shape

    __repr__ = described

    def trace(self) -> Tensor:  # [N]
        return self.scale * self.shape.trace

    def shared(self) -> SharedCovariance:
        """Itself: one shape for all inputs."""
        return self

    def to(self, *args: Any, **kwargs: Any) -> SharedCovariance:
        """Move or cast, as `torch.Tensor.to`."""
        return SharedCovariance(self.scale.to(*args, **kwargs), self.shape.to(*args, **kwargs))

    def per_item(self) -> ItemCovariance:
        """The same covariances, written out: [N, d] numbers instead of [N]."""
        return ItemCovariance(self.scale[:, None] * self.shape.spectrum, self.shape.basis)

    def __getitem__(self, index: slice | Tensor) -> SharedCovariance:
        return replace(self, scale=self.scale[index])


@dataclass(frozen=True, eq=False)
class ItemCovariance:
    """`Sigma_i = Q diag(v_i) Q^T`, a spectrum for every input."""

    variance: Tensor  # [N, d], v_i
    basis: Tensor | None = None  # [d, d], Q; None is the identity

    __repr__ = described

    def __post_init__(self) -> None:
        if not bool(((self.variance >= 0) & (self.variance < math.inf)).all()):  # also catches NaN
            raise BayesVLMError(
                "Embedding variances hold negative or infinite numbers or NaN; a variance is finite and at least zero."
            )

    def trace(self) -> Tensor:  # [N]
        return self.variance.sum(dim=1)

    def shared(self) -> None:
        """None: every input has a spectrum of its own."""

    def to(self, *args: Any, **kwargs: Any) -> ItemCovariance:
        """Move or cast, as `torch.Tensor.to`."""
        return ItemCovariance(self.variance.to(*args, **kwargs), _moved(self.basis, *args, **kwargs))

    def per_item(self) -> ItemCovariance:
        return self

    def quadratic(self, vectors: Tensor) -> Tensor:  # [C, d] -> [N, C]
        """v_j^T Sigma_i v_j for every pair."""
        return self.variance @ _rotated(vectors, self.basis).square().T

    def inner(self, other: ItemCovariance) -> Tensor:  # [N, C]
        """tr(Sigma_i Sigma_j) for every pair."""
        return self.variance @ _overlap(self.basis, other.basis, other.variance.T)

    def __getitem__(self, index: slice | Tensor) -> ItemCovariance:
        return replace(self, variance=self.variance[index])


@dataclass(frozen=True, eq=False)
class GaussianEmbeddings:
    """Embeddings that know how sure they are: N(mean_i, Sigma_i).

    Args:
        mean: [N, d], not normalised.
        covariance: shared shape (damped posterior) or per-item spectra (exact posterior, probabilistic models).
        stored: the other tower's shape R' and `mean_i^T R' mean_i`, once `against` has computed it.
    """

    mean: Tensor  # [N, d]
    covariance: SharedCovariance | ItemCovariance
    stored: tuple[Shape, Tensor] | None = None

    __repr__ = described

    def _repr_html_(self) -> str:
        """A small table for notebooks: the first embeddings, how long and how uncertain each is."""
        lengths, traces = self.mean[:FIRST].norm(dim=1).tolist(), self.covariance.trace()[:FIRST].tolist()
        rows = [
            [str(row), f"{length:.4g}", bar(min(trace**0.5 / length, 1.0), f"{trace**0.5:.4g}")]
            for row, (length, trace) in enumerate(zip(lengths, traces, strict=True))
        ]
        columns = ["", "|mean|", "sqrt(tr Sigma), and its share of |mean|"]
        title = f"{len(self)} Gaussian embeddings of width {self.mean.shape[1]}"
        return html_table(title, columns, rows, len(self) > FIRST, marked=(2,))

    @classmethod
    def from_variances(cls, mean: Tensor, variance: Tensor) -> GaussianEmbeddings:  # [N, d], [N, d]
        """Embeddings of a model that predicts a diagonal variance for every input."""
        if mean.shape != variance.shape or mean.ndim != 2:
            raise BayesVLMError(
                f"mean is {list(mean.shape)} and variance {list(variance.shape)}; both must be the same [N, d]."
            )
        embeddings = cls(mean, ItemCovariance(variance))
        if not bool((embeddings.expected_norm > 0).all()):
            raise BayesVLMError(
                "An embedding has mean zero and variance zero (or NaN); it has no direction to compare."
            )
        return embeddings

    def __len__(self) -> int:
        return int(self.mean.shape[0])

    def __getitem__(self, index: Index) -> GaussianEmbeddings:
        rows = row_index(index, len(self), self.mean.device)
        stored = None if self.stored is None else (self.stored[0], self.stored[1][rows])
        return GaussianEmbeddings(self.mean[rows], self.covariance[rows], stored)

    def to(self, *args: Any, **kwargs: Any) -> GaussianEmbeddings:
        """Move or cast, as `torch.Tensor.to`."""
        return GaussianEmbeddings(self.mean.to(*args, **kwargs), self.covariance.to(*args, **kwargs))

    @cached_property
    def expected_norm(self) -> Tensor:  # [N]
        """s_i = sqrt(E |g_i|^2) = sqrt(|mean_i|^2 + tr Sigma_i)."""
        return (self.mean.square().sum(dim=1) + self.covariance.trace()).sqrt()

    def against(self, shape: Shape) -> GaussianEmbeddings:
        """These embeddings with `mean_i^T R' mean_i` stored for the other tower's R': pairs then cost O(1)."""
        return replace(self, stored=(shape, self.quadratic(shape)))

    def quadratic(self, shape: Shape) -> Tensor:  # [N]
        """`mean_i^T R' mean_i`, from the store when it holds this very shape."""
        if self.stored is not None and self.stored[0] is shape:
            return self.stored[1]
        return shape.quadratic(self.mean)


def _moved(basis: Tensor | None, *args: Any, **kwargs: Any) -> Tensor | None:
    return None if basis is None else basis.to(*args, **kwargs)


def _rotated(vectors: Tensor, basis: Tensor | None) -> Tensor:  # [N, d]
    return vectors if basis is None else vectors @ basis


def _overlap(left: Tensor | None, right: Tensor | None, spectra: Tensor) -> Tensor:  # [d, m] -> [d, m]
    """(Q_left^T Q_right)^2 applied to spectra: how a covariance diagonal in one basis looks along the other's axes."""
    if left is right:
        return spectra
    if left is None:
        assert right is not None
        return right.square() @ spectra
    if right is None:
        return left.T.square() @ spectra
    return (left.T @ right).square() @ spectra
