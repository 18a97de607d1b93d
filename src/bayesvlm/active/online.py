r"""The posterior over the image projection while labelled images come in, one at a time.

The mathematics: docs/method.md, "Active learning".

After the s-th image (phi, y), with n pairs behind the first factors,

    W <- W - gamma grad CE(phi, y),   A_s = (sqrt(n) A_0 + beta sum_i phi_i phi_i^T) / sqrt(n + s),   B_s likewise.

In sums this is plain addition: `A_sum + beta phi phi^T`, `B_sum + beta J^T Lambda J`, n + 1. The damped A keeps its
first eigenbasis U and gains a growing low-rank term; the scale of both changes with s:

    At_s = U D_s U^T + kappa_s Phi Phi^T,   D_s = sqrt(tau n/(n+s)) alpha + sqrt(lam),   kappa_s = beta sqrt(tau/(n+s))

With `Psi = D^-1/2 U^T Phi` and the Cholesky factor L of `I + kappa Psi^T Psi` a square root of its inverse is

    R = U D^-1/2 (I + Psi K Psi^T) U^T,   K = -kappa L^-T (L + I)^-1

(`K + K^T + K Psi^T Psi K^T = -kappa (L L^T)^-1`, which is Woodbury's). It does not change with the signs and bases of
the eigenvectors, so that a seed's draws are the same everywhere, and nothing of size p x p is decomposed again (but to
find lam again, which is optional). B gains up to min(C - 1, d) directions with every image, which soon is everything,
and d is small: it is factorised anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from bayesvlm.active.contrast import ClassContrast
from bayesvlm.core.distribution import EmbeddingDistribution
from bayesvlm.core.draws import coloured, colouring_cost, standard_normal
from bayesvlm.core.embeddings import GaussianEmbeddings, Shape, SharedCovarianceMap
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.evidence import Evidence
from bayesvlm.core.factors import KroneckerFactors, Spectrum, spectrum, symmetric_root
from bayesvlm.core.features import Features
from bayesvlm.core.posterior import Posterior
from bayesvlm.core.projection import Projection
from bayesvlm.core.settings import Settings


@dataclass(frozen=True, eq=False)
class OnlineLaplace:
    """A damped posterior and what was learnt since; `step` gives a new one and changes nothing.

    Args:
        start: the posterior before the first labelled image.
        projection: W now.
        added: [s, p], inputs of the labelled images in the eigenbasis of the first A, float64.
        B_sum: [d, d], with the labelled images' curvature.
        contrast: the classes.
        beta: weight of a labelled image's outer product and curvature in the factors; it always adds one to n.
        lam: prior precision now.
    """

    start: Posterior
    projection: Projection
    added: Tensor  # [s, p]
    B_sum: Tensor  # [d, d]
    contrast: ClassContrast
    beta: float
    lam: float

    @classmethod
    def begin(cls, distribution: EmbeddingDistribution, contrast: ClassContrast, beta: float) -> OnlineLaplace:
        """The posterior as it is, before any labelled image."""
        start = distribution.kronecker("Online steps add to the Kronecker factors, and there are none")
        if start.structure != "damped":
            raise BayesVLMError(
                f"structure={start.structure!r}: online steps are defined for the damped posterior of the paper; "
                "use vlm.replace(structure='damped')."
            )
        if not (math.isfinite(beta) and beta >= 0):
            raise BayesVLMError(f"beta={beta}; it is the weight of a labelled image in the factors, at least 0.")
        p = start.projection.input_width
        nothing = start.factors.A_sum.new_zeros(0, p)
        return cls(start, start.projection, nothing, start.factors.B_sum, contrast, beta, start.lam)

    @torch.no_grad()
    def step(self, image: Features, label: int | None, gamma: float, *, solve_lam: bool = False) -> OnlineLaplace:
        """The posterior after one more image.

        Args:
            image: one row.
            label: its class; None where it is not known: then W stays, and the factors, which need no label, do not.
            gamma: rate of the gradient step.
            solve_lam: find lam again by the evidence, which takes the eigenvalues of A as it is now.
        """
        if len(image) != 1:
            raise BayesVLMError(f"An online step takes one image, got {len(image)}; take them one after the other.")
        phi = self.projection.inputs(image)
        embedding = self.projection.embed(image)
        B_sum = self.B_sum + self.beta * self.contrast.curvature(embedding).to(self.B_sum)
        rotated = phi.to(self.added) @ self.start.factors.A_spectrum.vectors
        projection = self.projection
        if label is not None and gamma:
            slope = self.contrast.slope(embedding[0], label)
            projection = projection.with_augmented(projection.augmented - gamma * torch.outer(slope, phi[0]))
        after = replace(self, projection=projection, added=torch.cat([self.added, rotated]), B_sum=B_sum)
        return replace(after, lam=after._best_lam()) if solve_lam else after

    def decomposed(self) -> OnlineLaplace:
        """Itself, with all that draws need computed, rather than at the first draw."""
        _ = self.B_spectrum, self._root
        return self

    @property
    def n(self) -> int:
        """Pairs and labelled images so far."""
        return self.start.factors.n + len(self.added)

    @property
    def factors(self) -> KroneckerFactors:
        """The factors as they are now, written out."""
        basis = self.start.factors.A_spectrum.vectors
        phi = self.added @ basis.T
        return KroneckerFactors(self.start.factors.A_sum + self.beta * phi.T @ phi, self.B_sum, self.n)

    @cached_property
    def posterior(self) -> Posterior:
        """The posterior as it is now, decomposed from scratch: what this class computes in pieces."""
        return replace(self.start, projection=self.projection, factors=self.factors, lam=self.lam)

    # As any distribution of embeddings ------------------------------------------------------------------------------

    predicted: ClassVar[bool] = False

    @property
    def origin(self) -> str:
        return f"{self.start.origin}, then {len(self.added)} labelled images"

    def kronecker(self, wanted: str) -> Posterior:
        """The posterior as it is now."""
        return self.posterior

    def under(self, settings: Settings, lam: float | None) -> Posterior:
        """The factors as they are now, read with other settings."""
        return self.posterior.under(settings, lam)

    def embed(self, features: Features) -> GaussianEmbeddings:
        """Gaussian embeddings of the inputs, by the posterior as it is now."""
        return self.posterior.embed(features)

    def marginals(self, features: Features) -> GaussianEmbeddings:
        """The same with the full covariance."""
        return self.posterior.marginals(features)

    @property
    def shape(self) -> Shape:
        """R of the posterior as it is now."""
        return self.posterior.shape

    def shared_covariance(self) -> SharedCovarianceMap:
        """phi -> a(x) R."""
        return self.posterior.shared_covariance()

    def whitened(self, features: Features) -> Tensor:  # [N, p]
        """At^-1/2 phi by the symmetric root of A as it is now; `whitened_inputs` takes a root that is sooner had."""
        return self.posterior.whitened(features)

    def tensors(self) -> dict[str, Tensor]:
        """The factors' sums as they are now."""
        return self.posterior.tensors()

    def to(self, *args: Any, **kwargs: Any) -> Posterior:
        """The posterior as it is now, moved or cast as `torch.Tensor.to` does."""
        return self.posterior.to(*args, **kwargs)

    # Draws -----------------------------------------------------------------------------------------------------------

    @cached_property
    def B_spectrum(self) -> Spectrum:
        return spectrum(self.B_sum / math.sqrt(self.n), "B")

    def whitened_inputs(self, features: Features) -> Tensor:  # [N, p]
        """R^T phi, where R R^T is the inverse of the damped A: their squared norms are a(x)."""
        inverse_root, psi, K = (tensor.to(self.projection.weight) for tensor in self._root)
        u = self.start.rotated_inputs(features) * inverse_root
        basis = self.start.factors.A_spectrum.vectors.to(self.projection.weight)
        return (u + ((u @ psi) @ K) @ psi.T) @ basis.T

    def drawn_embeddings(self, features: Features, draws: int, generator: torch.Generator) -> Tensor:  # [S, N, d]
        """Embeddings of the inputs under draws of the projection, all inputs under the same draws."""
        damped = math.sqrt(self.start.tau) * self.B_spectrum.values + math.sqrt(self.lam)
        root = symmetric_root(Spectrum(1 / damped, self.B_spectrum.vectors)).to(self.projection.weight)
        noise = standard_normal(draws, self.projection.augmented.shape, generator, root)
        return coloured(self.projection.embed(features), self.whitened_inputs(features), noise, root)

    def draw_cost(self, inputs: int) -> float:
        """Floating-point operations of one draw for so many inputs."""
        d, p = self.projection.augmented.shape
        return colouring_cost(inputs, d, p)

    @cached_property
    def output_factor(self) -> Tensor:  # [d, d]
        """F with F F^T the inverse of the damped B: triangular, float64. As unique as a symmetric root, and sooner had.

        A ridge of the rounding error keeps a B that is singular in float64 positive definite, however small lam is.
        """
        damped = math.sqrt(self.start.tau / self.n) * self.B_sum
        ridge = math.sqrt(self.lam) + torch.finfo(damped.dtype).eps * float(damped.trace()) * len(damped)
        identity = torch.eye(len(damped), dtype=damped.dtype, device=damped.device)
        lower = torch.linalg.cholesky(damped + ridge * identity)
        inverse: Tensor = torch.linalg.solve_triangular(lower.T, identity, upper=True)
        return inverse

    @property
    def step_cost(self) -> float:
        """Floating-point operations of one step, about: B and what was added factorised, and products."""
        d, p = self.projection.augmented.shape
        added = len(self.added) + 1
        return 10.0 * (d**3 + added**3) + 2.0 * p * (p + added * added)

    @cached_property
    def _root(self) -> tuple[Tensor, Tensor, Tensor]:  # [p], [p, s], [s, s]
        """D^-1/2, Psi and K of the module's docstring."""
        factors, tau = self.start.factors, self.start.tau
        shrunk = math.sqrt(tau * factors.n / self.n) * factors.A_spectrum.values
        inverse_root = (shrunk + math.sqrt(self.lam)).rsqrt()
        psi = self.added.T * inverse_root[:, None]
        kappa = self.beta * math.sqrt(tau / self.n)
        one = torch.eye(len(self.added), dtype=psi.dtype, device=psi.device)
        lower = torch.linalg.cholesky(one + kappa * psi.T @ psi)
        K = torch.linalg.solve_triangular(lower + one, lower.inverse().T, upper=False, left=False)
        return inverse_root, psi, -kappa * K

    def _best_lam(self) -> float:
        A = spectrum(self.factors.A, "A").values
        norm = self.projection.norm_squared
        return Evidence(A, self.B_spectrum.values, norm, self.start.tau, self.start.structure).best_lam()
