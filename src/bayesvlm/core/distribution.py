"""How the embeddings of one tower are distributed: one protocol, wherever their variance comes from.

    Posterior           fitted: a Gaussian over the projection, from Kronecker factors
    InvertedPosterior   published: the same, known by its inverses only
    PredictedVariance   predicted: every input brings a variance of its own (ProLIP, PCME++)
    OnlineLaplace       a fitted one, brought up to date with labelled images (`bayesvlm.active.online`)

What only some of them can do is asked of the distribution itself, which says in a sentence why it cannot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from bayesvlm.core.embeddings import GaussianEmbeddings, Shape, SharedCovarianceMap
from bayesvlm.core.features import Features
from bayesvlm.core.settings import Settings

if TYPE_CHECKING:
    from bayesvlm.core.posterior import Posterior


class Drawn(Protocol):
    """What embeddings can be drawn from."""

    def drawn_embeddings(self, features: Features, draws: int, generator: torch.Generator) -> Tensor:  # [S, N, d]
        """Embeddings of all inputs under so many draws of the projection, each draw shared by all inputs."""

    def draw_cost(self, inputs: int) -> float:
        """Floating-point operations of one draw for so many inputs, about."""


class EmbeddingDistribution(Drawn, Protocol):
    """The distribution of a tower's embeddings, given the activations that enter its projection."""

    @property
    def predicted(self) -> bool:
        """Whether every input brings a variance of its own: there is no posterior to fit then."""

    @property
    def origin(self) -> str:
        """Where the variance comes from, in a few words."""

    def embed(self, features: Features) -> GaussianEmbeddings:
        """Gaussian embeddings of the inputs, [N]."""

    def marginals(self, features: Features) -> GaussianEmbeddings:
        """What `drawn_embeddings` draws of every input by itself, whatever covariance `embed` was told to take."""

    def kronecker(self, wanted: str) -> Posterior:
        """This distribution as a posterior with Kronecker factors, tau and lam.

        Args:
            wanted: what needs it and cannot be had without, to begin a sentence with: "There is no tau to tune".

        Raises:
            BayesVLMError: where there are no factors.
        """

    @property
    def shape(self) -> Shape:
        """R, where all inputs have covariances a(x) R.

        Raises:
            BayesVLMError: where they do not.
        """

    def shared_covariance(self) -> SharedCovarianceMap:
        """The map from an input to its covariance a(x) R, where all inputs share R.

        Raises:
            BayesVLMError: where they do not.
        """

    def whitened(self, features: Features) -> Tensor:  # [N, p]
        """At^-1/2 phi: what two inputs share, k_ij = w_i . w_j with Cov[g_i, g_j] = k_ij R, and a(x) = |w|^2.

        By the symmetric root, so that rows written on one machine go with rows computed on another.

        Raises:
            BayesVLMError: where inputs share no covariance shape.
        """

    def under(self, settings: Settings, lam: float | None) -> EmbeddingDistribution:
        """The same factors read with other settings; itself where there is nothing to choose.

        Args:
            lam: prior precision of this tower; None: by the evidence.
        """

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that decide it, by name: what a cached result is keyed by. None for predicted variances."""

    def to(self, *args: Any, **kwargs: Any) -> EmbeddingDistribution:
        """Move or cast, as `torch.Tensor.to`."""
