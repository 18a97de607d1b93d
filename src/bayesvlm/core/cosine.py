r"""ProbCosine: the mean and variance of the cosine between two Gaussian embeddings (paper, section 3.1).

    mean = mu_g . mu_h / (s_g s_h),                                     s_g^2 = |mu_g|^2 + tr Sigma_g
    var  = [ mu_h^T Sigma_g mu_h + mu_g^T Sigma_h mu_g + tr(Sigma_g Sigma_h) ] / (s_g^2 s_h^2)

With `Sigma_g = a_g R_g` the numerator of the variance is rank two in per-item numbers, so that all N x C variances
are one [N,2] x [2,C] product, for the diagonal and for the full matrix alike:

    a_i a_j <R_g, R_h> + a_i (mu_j^T R_g mu_j) + a_j (mu_i^T R_h mu_i)
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesvlm.core.embeddings import GaussianEmbeddings
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Index, row_index
from bayesvlm.core.notebook import html_table
from bayesvlm.core.printing import FIRST, described


class PairProduct(NamedTuple):
    """A matrix over all pairs as the product of a few numbers per item: `left @ right.T`, not yet multiplied out."""

    left: Tensor  # [N, r]
    right: Tensor  # [C, r]

    def __repr__(self) -> str:
        return described(self)


class CosineMoments:
    """Mean and variance of the cosine of every pair.

    Args:
        mean: [N, C].
        variance: [N, C], or its rank-two factors: then it is multiplied out when first asked for as a whole, and a
            block of rows at a time where that is all a prediction needs.
    """

    def __init__(self, mean: Tensor, variance: Tensor | PairProduct) -> None:
        self._mean, self._variance = mean, variance

    def __repr__(self) -> str:
        return f"CosineMoments of {self.mean.shape[0]} x {self.mean.shape[1]} pairs (.mean, .variance, .interval(0.95))"

    def _repr_html_(self) -> str:
        """A small table for notebooks: the first pairs, each with its mean and 95 % interval."""
        low, high = self[:FIRST].interval(0.95)
        rows = []
        for i, means in enumerate(self.mean[:FIRST, :FIRST].tolist()):
            cells = (f"{mean:.3f} ({float(low[i, j]):.2f} to {float(high[i, j]):.2f})" for j, mean in enumerate(means))
            rows.append([str(i), *cells])
        columns = ["", *map(str, range(min(FIRST, self.mean.shape[1])))]
        more = max(self.mean.shape) > FIRST
        return html_table(
            f"Cosines of {len(self)} x {self.mean.shape[1]} pairs", columns, rows, more, "With 95 % intervals."
        )

    @property
    def mean(self) -> Tensor:  # [N, C]
        return self._mean

    @cached_property
    def variance(self) -> Tensor:  # [N, C]
        return self.variance_of(slice(None))

    def variance_of(self, rows: slice) -> Tensor:  # [n, C]
        """The variance of some rows."""
        if isinstance(self._variance, PairProduct):
            return self._variance.left[rows] @ self._variance.right.T
        return self._variance[rows]

    @property
    def std(self) -> Tensor:  # [N, C]
        return self.variance.sqrt()

    def __len__(self) -> int:
        return int(self.mean.shape[0])

    def __getitem__(self, index: Index) -> CosineMoments:
        """The chosen rows, still two-dimensional."""
        rows = row_index(index, len(self), self.mean.device)
        if isinstance(self._variance, PairProduct):
            return CosineMoments(self.mean[rows], PairProduct(self._variance.left[rows], self._variance.right))
        return CosineMoments(self.mean[rows], self._variance[rows])

    def to(self, *args: Any, **kwargs: Any) -> CosineMoments:
        """Move or cast, as `torch.Tensor.to`."""
        if isinstance(self._variance, PairProduct):
            spread: Tensor | PairProduct = PairProduct(*(part.to(*args, **kwargs) for part in self._variance))
        else:
            spread = self._variance.to(*args, **kwargs)
        return CosineMoments(self.mean.to(*args, **kwargs), spread)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:  # [N, C], [N, C]
        """Central credible interval of the cosine under a normal approximation, cut to [-1, 1]."""
        if not 0 < level < 1:
            raise BayesVLMError(f"level={level}; a credible level lies strictly between 0 and 1, such as 0.95.")
        half = math.sqrt(2) * float(torch.erfinv(torch.tensor(level, dtype=torch.float64))) * self.std
        return (self.mean - half).clamp(-1, 1), (self.mean + half).clamp(-1, 1)


def prob_cosine(x: GaussianEmbeddings, y: GaussianEmbeddings) -> CosineMoments:
    """Moments of the cosine between every embedding of x [N] and every one of y [C]."""
    mean = expected_cosine(x, y)
    factors = variance_factors(x, y)
    return CosineMoments(mean, _general_variance(x, y) if factors is None else factors)


def expected_cosine(x: GaussianEmbeddings, y: GaussianEmbeddings) -> Tensor:  # [N, C]
    """The mean alone."""
    if x.mean.shape[1] != y.mean.shape[1]:
        raise BayesVLMError(
            f"The embeddings are {x.mean.shape[1]} and {y.mean.shape[1]} wide; both towers must map to one space."
        )
    if (x.mean.dtype, x.mean.device) != (y.mean.dtype, y.mean.device):
        raise BayesVLMError(
            f"The embeddings are {x.mean.dtype} on {x.mean.device} and {y.mean.dtype} on {y.mean.device}; "
            "bring both to one dtype and device first."
        )
    return (x.mean / x.expected_norm[:, None]) @ (y.mean / y.expected_norm[:, None]).T


def variance_factors(x: GaussianEmbeddings, y: GaussianEmbeddings) -> PairProduct | None:  # [N, 2], [C, 2]
    """Two numbers per item, whose dot product is the variance of a pair; None where covariances share no shape."""
    x_shared, y_shared = x.covariance.shared(), y.covariance.shared()
    if x_shared is None or y_shared is None:
        return None
    x_square, y_square = x.expected_norm.square(), y.expected_norm.square()
    x_scale, y_scale = x_shared.scale / x_square, y_shared.scale / y_square
    x_quadratic = x.quadratic(y_shared.shape) / x_square  # mu_i^T R_h mu_i / s_i^2
    y_quadratic = y.quadratic(x_shared.shape) / y_square  # mu_j^T R_g mu_j / s_j^2
    both = x_shared.shape.inner(y_shared.shape)
    left = torch.stack([x_scale, x_quadratic], dim=1)
    return PairProduct(left, torch.stack([both * y_scale + y_quadratic, y_scale], dim=1))


def _general_variance(x: GaussianEmbeddings, y: GaussianEmbeddings) -> Tensor:  # [N, C]
    """The variance with a spectrum for every item: three products instead of one."""
    x_spread, y_spread = x.covariance.per_item(), y.covariance.per_item()
    numerator = x_spread.quadratic(y.mean) + y_spread.quadratic(x.mean).T + x_spread.inner(y_spread)
    return numerator / x.expected_norm.square()[:, None] / y.expected_norm.square()
