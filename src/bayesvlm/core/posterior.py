r"""The Gaussian posterior over one projection, from its Kronecker factors.

The mathematics: docs/method.md, "Posterior".

    damped (the paper):  Sigma = (sqrt(tau) A + sqrt(lam) I)^-1 (x) (sqrt(tau) B + sqrt(lam) I)^-1
    exact:               Sigma = (tau A (x) B + lam I)^-1

Both are diagonal in the joint eigenbasis of A and B, so nothing larger than the factors is ever formed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor

from bayesvlm.core.draws import coloured, colouring_cost, standard_normal
from bayesvlm.core.embeddings import GaussianEmbeddings, ItemCovariance, Shape, SharedCovariance, SharedCovarianceMap
from bayesvlm.core.errors import BayesVLMError, check_choice, check_positive
from bayesvlm.core.evidence import Evidence, Structure
from bayesvlm.core.factors import KroneckerFactors, Spectrum, symmetric_root
from bayesvlm.core.features import Features
from bayesvlm.core.printing import described
from bayesvlm.core.projection import Projection
from bayesvlm.core.settings import Covariance, Settings


@dataclass(frozen=True, eq=False)
class Posterior:
    """N(W, Sigma) over the projection W of one tower.

    Args:
        projection: the mean.
        factors: Kronecker factors of the curvature, [p, p] and [d, d] as the projection's input and output widths.
        tau: pseudo-data count.
        lam: prior precision.
        structure: "damped" (the paper) or "exact".
        covariance: of embeddings: "diagonal" (the paper) or "full".
    """

    projection: Projection
    factors: KroneckerFactors
    tau: float
    lam: float
    structure: Structure = "damped"
    covariance: Covariance = "diagonal"

    predicted: ClassVar[bool] = False
    __repr__ = described

    def __post_init__(self) -> None:
        check_positive("tau", self.tau)
        check_positive("lam", self.lam)
        check_choice("structure", self.structure, get_args(Structure))
        check_choice("covariance", self.covariance, get_args(Covariance))
        _check_size(self.projection, self.factors)

    @classmethod
    def read(
        cls, projection: Projection, factors: KroneckerFactors, settings: Settings, lam: float | None = None
    ) -> Posterior:
        """The posterior that these settings make of the factors; `lam` None: by the evidence."""
        _check_size(projection, factors)
        if lam is None:
            spectra = factors.A_spectrum.values, factors.B_spectrum.values
            lam = Evidence(*spectra, projection.norm_squared, settings.tau, settings.structure).best_lam()
        return cls(projection, factors, settings.tau, lam, settings.structure, settings.covariance)

    @property
    def origin(self) -> str:
        return f"fitted on {self.factors.n} pairs"

    def under(self, settings: Settings, lam: float | None) -> Posterior:
        """The same factors, read with other settings; `lam` None: by the evidence."""
        return Posterior.read(self.projection, self.factors, settings, lam)

    def kronecker(self, wanted: str) -> Posterior:
        """Itself: here are the factors."""
        return self

    def tensors(self) -> dict[str, Tensor]:
        """The factors' sums."""
        return {"A": self.factors.A_sum, "B": self.factors.B_sum}

    def to(self, *args: Any, **kwargs: Any) -> Posterior:
        """Move or cast the projection; factors move, and stay in float64."""
        projection = self.projection.to(*args, **kwargs)
        return replace(self, projection=projection, factors=self.factors.to(projection.weight.device))

    @cached_property
    def shape(self) -> Shape:
        """R, with Cov[g(x)] = a(x) R: Bt^-1, or its diagonal. Damped only."""
        if self.structure != "damped":
            raise BayesVLMError(
                "An exact posterior has no covariance shape that all inputs share; use structure='damped'."
            )
        spectrum = 1 / self._damped_B
        if self.covariance == "full":
            return Shape(self._cast(spectrum), self._cast(self._U_B))
        return Shape(self._cast(self._U_B.square() @ spectrum))

    def embed(self, features: Features) -> GaussianEmbeddings:
        """Gaussian embeddings of the inputs: N(W phi + b + r, Cov[W phi])."""
        mean = directed(self.projection.embed(features))
        squares = self.rotated_inputs(features).square()
        if self.structure == "damped":
            scale = squares @ self._cast(1 / self._damped_A)
            return GaussianEmbeddings(mean, SharedCovariance(scale, self.shape))
        spectra = squares @ self._cast(self.variances.T)
        basis = self._cast(self._U_B)
        if self.covariance == "full":
            return GaussianEmbeddings(mean, ItemCovariance(spectra, basis))
        return GaussianEmbeddings(mean, ItemCovariance(spectra @ basis.square().T))

    def marginals(self, features: Features) -> GaussianEmbeddings:
        """The same with the full covariance, which is what draws have."""
        full = self if self.covariance == "full" else self._full
        return full.embed(features)

    def shared_covariance(self) -> SharedCovarianceMap:
        """phi -> a(x) R. Damped only."""
        return SharedCovarianceMap(self.root, self.shape)

    def whitened(self, features: Features) -> Tensor:  # [N, p]
        """At^-1/2 phi, by the symmetric root. Damped only."""
        _ = self.shape  # refuses what is exact
        return self.projection.inputs(features) @ self._A_root

    def rotated_inputs(self, features: Features) -> Tensor:  # [N, p]
        """phi in the eigenbasis of A."""
        return self.projection.inputs(features) @ self._cast(self._U_A)

    @property
    def root(self) -> Tensor:  # [p, p]
        """L^T, with a(x) = |L phi|^2 the variance that every output shares. Damped only."""
        return self._cast(self._U_A * self._damped_A.rsqrt().to(self._U_A))

    @cached_property
    def variances(self) -> Tensor:  # [d, p]
        """Variance of every parameter in the joint eigenbasis, float64."""
        if self.structure == "damped":
            return 1 / torch.outer(self._damped_B, self._damped_A)
        curvature = torch.outer(self.factors.B_spectrum.values, self.factors.A_spectrum.values)
        return (1 / (self.tau * curvature + self.lam)).to(self._device)

    def sample(self, draws: int, generator: torch.Generator) -> Iterator[Projection]:
        """Draws of the projection itself: one draw applies to all inputs, which keeps them dependent."""
        U_A, U_B = self._cast(self._U_A), self._cast(self._U_B)
        for _ in range(draws):
            moved = U_B @ self._coloured(self._noise(1, generator)[0]) @ U_A.T
            yield self.projection.with_augmented(self.projection.augmented + moved)

    def drawn_embeddings(self, features: Features, draws: int, generator: torch.Generator) -> Tensor:  # [S, N, d]
        """Embeddings of the inputs under the draws that `sample` makes, all inputs under the same draws."""
        mean, noise = self.projection.embed(features), self._noise(draws, generator)
        if self.structure == "damped":
            return coloured(mean, self.projection.inputs(features) @ self._A_root, noise, self._B_root)
        return coloured(mean, self.rotated_inputs(features), self._coloured(noise), self._cast(self._U_B.T))

    def draw_cost(self, inputs: int) -> float:
        """Floating-point operations of one draw for so many inputs; of an exact posterior noise is turned twice."""
        d, p = self.projection.augmented.shape
        turned = 0.0 if self.structure == "damped" else 2.0 * d * p * (d + p)
        return colouring_cost(inputs, d, p) + turned

    def _coloured(self, noise: Tensor) -> Tensor:  # [..., d, p]
        """White noise in the joint eigenbasis, scaled there: signs and bases of eigenvectors cancel on the way back."""
        inside = self._cast(self._U_B.T) @ noise @ self._cast(self._U_A)
        return self._cast(self.variances.sqrt()) * inside

    def _noise(self, draws: int, generator: torch.Generator) -> Tensor:  # [S, d, p]
        return standard_normal(draws, self.projection.augmented.shape, generator, self.projection.weight)

    @cached_property
    def _full(self) -> Posterior:
        return replace(self, covariance="full")

    @cached_property
    def _A_root(self) -> Tensor:  # [p, p]
        """At^-1/2, the symmetric one: it does not depend on which eigenvectors a machine returns. Damped only."""
        return self._cast(symmetric_root(Spectrum(1 / self._damped_A, self._U_A)))

    @cached_property
    def _B_root(self) -> Tensor:  # [d, d]
        """Bt^-1/2, likewise."""
        return self._cast(symmetric_root(Spectrum(1 / self._damped_B, self._U_B)))

    @property
    def _damped_A(self) -> Tensor:  # [p]
        return (math.sqrt(self.tau) * self.factors.A_spectrum.values + math.sqrt(self.lam)).to(self._device)

    @property
    def _damped_B(self) -> Tensor:  # [d]
        return (math.sqrt(self.tau) * self.factors.B_spectrum.values + math.sqrt(self.lam)).to(self._device)

    @property
    def _U_A(self) -> Tensor:  # [p, p]
        return self.factors.A_spectrum.vectors

    @property
    def _U_B(self) -> Tensor:  # [d, d]
        return self.factors.B_spectrum.vectors.to(self._device)

    @property
    def _device(self) -> torch.device:
        return self.projection.weight.device

    def _cast(self, tensor: Tensor) -> Tensor:
        """To the projection's dtype and device: eigen-decompositions stay in float64 until here."""
        return tensor.to(self.projection.weight)


def directed(mean: Tensor) -> Tensor:  # [N, d]
    """Mean embeddings as they are, if each has a direction."""
    zero = ~mean.any(dim=1)
    if bool(zero.any()):
        raise BayesVLMError(
            f"The embeddings of rows {torch.nonzero(zero).flatten().tolist()[:10]} are zero and have no direction "
            "to compare; check those inputs."
        )
    return mean


def _check_size(projection: Projection, factors: KroneckerFactors) -> None:
    have = (factors.A_sum.shape[0], factors.B_sum.shape[0])
    want = (projection.input_width, projection.embedding_width)
    if have != want:
        raise BayesVLMError(
            f"The factors are for a projection with (inputs, outputs) = {have}, this one has {want} "
            "(a bias counts as one input); they belong to another model or tower."
        )
