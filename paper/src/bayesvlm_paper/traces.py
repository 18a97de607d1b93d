"""Traces of the curvature of pairs, for the items that ask how stable it is: rows and contrast batches are chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesvlm.core.curvature import infonce_curvature, sigmoid_curvature
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import TOWERS, Tower
from bayesvlm.core.features import Features
from bayesvlm.core.projection import Projection
from bayesvlm.vlm import BayesVLM
from bayesvlm_paper.lab import Lab, shuffled
from bayesvlm_paper.plans import CLIP_BASE, LAION, Plan, same_model
from bayesvlm_paper.printed import published_curves

PAPER_NEGATIVES = 32768
"""The size of the paper's contrast batches."""


@dataclass(frozen=True, eq=False)
class EmbeddedPairs:
    """Image-text pairs as the curvature sees them; the model's posterior, where it has one, is not used.

    Args:
        vlm: the model.
        embeddings: g of each tower, not normalised.
        inputs: |phi|^2 of each tower: a pair's share of tr(A).
    """

    vlm: BayesVLM
    embeddings: Mapping[Tower, Tensor]  # [N, d]
    inputs: Mapping[Tower, Tensor]  # [N], float64

    @classmethod
    def of(cls, vlm: BayesVLM, images: Features, texts: Features, least: int = 2) -> EmbeddedPairs:
        """Of features; refuses fewer than `least` pairs, and models without a curvature."""
        if vlm.predicts_variance:
            raise BayesVLMError("This model predicts its variances, so there is no curvature to look at; name another.")
        if len(images) < least:
            raise BayesVLMError(f"There are {len(images)} image-text pairs; at least {least} are needed here.")
        towers: dict[Tower, tuple[Projection, Features]] = {"image": (vlm.image, images), "text": (vlm.text, texts)}
        return cls(
            vlm,
            {tower: projection.embed(given) for tower, (projection, given) in towers.items()},
            {tower: _squared(projection.inputs(given)) for tower, (projection, given) in towers.items()},
        )

    def __len__(self) -> int:
        return len(self.embeddings["image"])

    def trace_A(self, tower: Tower, rows: Tensor) -> float:  # [n]
        """`tr sum_i phi_i phi_i^T` over some pairs."""
        return float(self.inputs[tower][rows.to(self.vlm.device)].sum())

    def trace_B(self, tower: Tower, rows: Tensor, batch: Tensor) -> float:  # [n], [K]
        """`tr sum_i J_i^T Lambda_i J_i` over some pairs, contrasted with those of a batch they belong to."""
        image, text = TOWERS
        source = self.embeddings[tower][rows.to(self.vlm.device)]
        target = self.embeddings[text if tower == image else image][batch.to(self.vlm.device)]
        if self.vlm.loss == "infonce":
            return float(infonce_curvature(source, target, self.vlm.scale).trace())
        bias, normalise = self.vlm.logit_bias or 0.0, self.vlm.normalise or "paper"
        return float(sigmoid_curvature(source, target, self.vlm.scale, bias, normalise).trace())


def embedded_pairs(lab: Lab, least: int) -> EmbeddedPairs:
    """The plan's first pairs; no posterior is fitted for it."""
    model = lab.models[0]
    return EmbeddedPairs.of(lab.loaded(model), *lab.pairs(model), least)


def orders(pairs: EmbeddedPairs, trials: int) -> list[Tensor]:  # [N] each
    """Random orders of the pairs, one per trial."""
    return [shuffled(len(pairs), seed) for seed in range(trials)]


def printed_curves(name: str, tower: Tower) -> list[Mapping[str, Any]]:
    """The paper's curves of a tower."""
    return [each for each in published_curves(name)["series"] if each["modality"] == tower]


def as_published(plan: Plan) -> bool:
    """Whether curves of the paper belong beside ours: it names no model for them, CLIP-Base is its usual one."""
    return same_model(plan.model, CLIP_BASE) and plan.pairs[0] == LAION


def power_of_two(most: int) -> int:
    """The largest that is not above."""
    return 1 << (most.bit_length() - 1)


def over_trials(trials: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:  # [T][n] -> [n], [n]
    """Mean and standard deviation over trials; the latter is that of a sample."""
    found = [torch.std_mean(torch.tensor(values, dtype=torch.float64)) for values in zip(*trials, strict=True)]
    return [float(mean) for _, mean in found], [float(std) for std, _ in found]


def _squared(phi: Tensor) -> Tensor:  # [N, p] -> [N]
    return phi.double().square().sum(dim=1)
