r"""The entropy of a prediction in its two parts, for inputs one by one and classes that stay.

The mathematics: docs/method.md, "Draws".

    cos(g_k, h_kc),    g_k = g + Sigma_g^(1/2) e_k,    h_kc = W_k psi_c,    k = 1..S

How the entropy of one input divides depends on the distribution of its own embedding alone, and that is a Gaussian in d
dimensions: `S d` numbers are drawn, where `bayesvlm.core.predict.monte_carlo` draws the projection itself, `S d p`, so
that inputs stay dependent. Draws of the text projection, which classes do share, are made once and kept for all of
them, `S d (p + 1)` numbers; of a class that is one of many, only its length under every draw is kept beside them.

A list of few classes, up to `(p + 1) / 4`, has its embeddings kept under every draw instead, `S d C` numbers that
belong to this list alone: up to a quarter of what all lists share (134 MB of a ViT-B/32 with S = 128).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional

from bayesvlm.core.blocks import row_blocks
from bayesvlm.core.distribution import EmbeddingDistribution
from bayesvlm.core.draws import group_sizes, standard_normal
from bayesvlm.core.embeddings import GaussianEmbeddings
from bayesvlm.core.errors import check_count
from bayesvlm.core.features import Features
from bayesvlm.core.predict import LEAST_LENGTH, EntropySplit, entropy, tower_generators
from bayesvlm.core.printing import described
from bayesvlm.core.projection import Projection

FEW = 4  # of the projection's inputs, a quarter: so many classes have their embeddings kept under every draw


@dataclass(frozen=True, eq=False)
class ClassDraws:
    """Fixed classes under draws of the text projection, with noise for the embeddings of single inputs.

    Args:
        noise: e_k, [S, d].
        table: unit embeddings of the classes, [S, d, C]; or the projections, [S, d, p + 1], where `inputs` are given.
        inputs: of the classes, with the constant that goes with a bias, [C, p + 1].
        lengths: of the classes' embeddings under every draw, [S, 1, C].
    """

    noise: Tensor  # [S, d]
    table: Tensor  # [S, d, m]
    inputs: Tensor | None = None  # [C, m]
    lengths: Tensor | None = None  # [S, 1, C]

    __repr__ = described

    @property
    def own_bytes(self) -> int:
        """What these classes take beside the projections, which others share."""
        own = self.noise, self.table if self.inputs is None else self.lengths
        return sum(tensor.numel() * tensor.element_size() for tensor in own if tensor is not None)

    def __len__(self) -> int:
        return int(self.table.shape[2] if self.inputs is None else self.inputs.shape[0])

    @torch.no_grad()
    def split(self, images: GaussianEmbeddings, scale: float) -> EntropySplit:
        """Average probabilities over the draws, and their entropy in two parts, as if every input were alone.

        Args:
            images: what their embeddings are drawn from (`EmbeddingDistribution.marginals`), [N].
            scale: t.
        """
        parts = [
            self._split(images[rows], scale) for rows in row_blocks(len(images), len(self.table) * max(1, len(self)))
        ]
        return EntropySplit(*(torch.cat(each) for each in zip(*parts, strict=True)))

    def _split(self, images: GaussianEmbeddings, scale: float) -> EntropySplit:
        cosines = torch.bmm(functional.normalize(self._embeddings(images), dim=2, eps=LEAST_LENGTH), self.table)
        if self.inputs is not None and self.lengths is not None:
            cosines = (cosines @ self.inputs.T).div_(self.lengths)
        log_probs = torch.log_softmax(cosines.mul_(scale), dim=2)  # [S, N, C]
        probs = log_probs.exp()
        conditional = -log_probs.mul_(probs).sum(dim=2).mean(dim=0)
        mean = probs.mean(dim=0)
        return EntropySplit(mean, entropy(mean), conditional)

    def _embeddings(self, images: GaussianEmbeddings) -> Tensor:  # [S, N, d]
        spread = images.covariance.per_item()
        noise = self.noise if spread.basis is None else self.noise @ spread.basis
        moved = noise[:, None] * spread.variance.sqrt()
        return images.mean + (moved if spread.basis is None else moved @ spread.basis.T)


class TextDraws:
    """Draws of one text tower's projection, made when they are first asked for and kept.

    They are those of `monte_carlo` with the same seed.

    Args:
        text: how the tower's embeddings are distributed.
        projection: of the tower, for its shape.
        count: how many draws, S.
        seed: of the draws.
    """

    def __init__(self, text: EmbeddingDistribution, projection: Projection, count: int, seed: int) -> None:
        self._text, self._projection = text, projection
        self._count, self._seed = check_count("draws", count), seed

    @torch.no_grad()
    def of(self, texts: Features) -> ClassDraws:
        """The draws for these classes, [C]."""
        like, width = self._projection.weight, self._projection.embedding_width
        noise = standard_normal(self._count, [width], tower_generators(self._seed)[0], like)
        if self._text.predicted or texts.residual is not None:  # more than a linear map of the activations
            drawn = self._text.drawn_embeddings(texts, self._count, tower_generators(self._seed)[1])
            return ClassDraws(noise, functional.normalize(drawn, dim=2, eps=LEAST_LENGTH).transpose(1, 2))
        projections, inputs = self._projections, _with_constant(texts).to(like)
        few = FEW * len(texts) <= inputs.shape[1]
        if few:
            return ClassDraws(noise, functional.normalize(projections @ inputs.T, dim=1, eps=LEAST_LENGTH))
        lengths = [torch.linalg.vector_norm(projection @ inputs.T, dim=0) for projection in projections]
        return ClassDraws(noise, projections, inputs, torch.stack(lengths)[:, None].clamp_min_(LEAST_LENGTH))

    @cached_property
    def _projections(self) -> Tensor:  # [S, d, p + 1]
        """Every draw, with the bias as its last column: embeddings of the unit vectors, and of zero."""
        weight, width = self._projection.weight, self._projection.activation_width
        units = Features(torch.cat([torch.eye(width), torch.zeros(1, width)]).to(weight))
        generator, parts = tower_generators(self._seed)[1], []
        for count in group_sizes(self._count, 4 * weight.element_size() * weight.numel()):
            drawn = self._text.drawn_embeddings(units, count, generator)  # [s, p + 1, d]
            bias = drawn[:, -1:].clone()
            drawn[:, :-1] -= bias
            parts.append(drawn.transpose(1, 2))
        return torch.cat(parts).contiguous()


def _with_constant(texts: Features) -> Tensor:  # [C, p + 1]
    """Activations, and what goes with a bias."""
    ones = texts.activations.new_ones(len(texts), 1)
    return torch.cat([texts.activations, ones if texts.constant is None else texts.constant.to(ones)], dim=1)
