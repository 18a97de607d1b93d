"""How true the analytic uncertainty is: its standard deviation and its probabilities against draws of the projections.

A prediction can be useful and untrue: tau is tuned, and takes up what an approximation gets wrong. These figures hold
the posterior fixed and ask only whether the closed forms describe it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.core.predict import monte_carlo, sample_cosines
from bayesvlm.vlm import BayesVLM

DRAWS = 1000
"""Of the projections, that variants of a posterior are held against."""
BATCHES = 10
"""Parts of the draws, from whose differences the error of a figure is taken."""


@dataclass(frozen=True)
class Ratio:
    """Analytic over drawn standard deviation of the cosine, over all pairs of an image and a text.

    Args:
        median: one where the analytic form is right.
        low, high: the middle 90 % of the pairs; the noise of the draws, 1 / sqrt(2 draws) each, widens it.
        error: standard error of the median, of the draws.
    """

    median: float
    low: float
    high: float
    error: float

    @property
    def off(self) -> float:
        """How far from one."""
        return abs(self.median - 1)

    def numbers(self) -> dict[str, float]:
        """For json."""
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.median:.3f}"


@dataclass(frozen=True, eq=False)
class DrawnSpread:
    """Standard deviation of the cosine of every pair over joint draws of both projections."""

    std: Tensor  # [N, C], over all draws
    parts: Tensor  # [BATCHES, N, C], over each part of them

    @classmethod
    @torch.no_grad()
    def of(cls, vlm: BayesVLM, images: Features, texts: Features, draws: int, seed: int = 0) -> DrawnSpread:
        """From the model's own posterior, `BATCHES` equal parts of draws, summed in float64."""
        each = draws // BATCHES
        if each < 2:
            raise BayesVLMError(f"draws={draws}; a spread takes {2 * BATCHES} or more.")
        sums = torch.zeros(2, BATCHES, len(images), len(texts), dtype=torch.float64)
        posterior, count = vlm.posterior, each * BATCHES
        images, texts = images.to(vlm.device), texts.to(vlm.device)
        drawn = sample_cosines(posterior["image"], images, posterior["text"], texts, count, seed)
        for number, cosine in enumerate(drawn):
            value = cosine.double().cpu()
            sums[0, number % BATCHES] += value
            sums[1, number % BATCHES] += value.square()
        return cls(_std(sums.sum(dim=1), count), _std(sums, each))

    def ratio(self, vlm: BayesVLM, images: Features, texts: Features) -> Ratio:
        """The analytic standard deviation of a model, which need not be the one the draws are of, over this one."""
        analytic = vlm.similarity(images, texts).std.double().cpu()
        pairs = (analytic / self.std).flatten()
        medians = (analytic / self.parts).flatten(1).quantile(0.5, dim=1)
        low, median, high = pairs.quantile(torch.tensor([0.05, 0.5, 0.95], dtype=pairs.dtype)).tolist()
        return Ratio(median, low, high, float(medians.std()) / BATCHES**0.5)


def _std(sums: Tensor, count: int) -> Tensor:  # [2, ...] -> [...]
    mean, square = sums / count
    variance: Tensor = (square - mean.square()) * count / (count - 1)
    return variance.clamp_min(0).sqrt()


def drawn_probabilities(
    vlm: BayesVLM, images: Features, texts: Features, draws: int
) -> tuple[Tensor, float]:  # [N, C], []
    """Softmax averaged over draws, and its own error in total variation.

    Two halves are drawn by themselves; their mean is half as far from the truth as they are from one another.
    """
    posterior = vlm.posterior
    images, texts = images.to(vlm.device), texts.to(vlm.device)
    first, second = (
        monte_carlo(posterior["image"], images, posterior["text"], texts, vlm.scale, draws // 2, seed).probs
        for seed in (1, 2)
    )
    return (first + second) / 2, total_variation(first, second) / 2


def total_variation(p: Tensor, q: Tensor) -> float:  # [N, C], [N, C]
    """Mean over the rows of 1/2 sum_c |p_c - q_c|."""
    return float((p - q).abs().sum(dim=1).mean()) / 2
