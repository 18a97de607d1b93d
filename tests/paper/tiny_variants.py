"""A lab with tiny models and data in memory: what the items ask of a lab, and nothing of the world."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch

from bayesvlm import BayesVLM
from bayesvlm.core.features import Features
from bayesvlm.core.tuning import DEFAULT_TAUS, TauGrid
from bayesvlm.experiments.feature_store import EncodedSet
from bayesvlm.experiments.scoring import Scores
from bayesvlm_paper.plans import Plan

CLASSES = 6


def tiny_vlm(seed: int = 0) -> BayesVLM:
    """Six dimensions, eight and seven inputs, fitted on 200 pairs that belong together."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    vlm = BayesVLM.from_projections(draw(6, 8), draw(6, 7), logit_scale=2.5)
    texts = Features(draw(200, 7))
    return vlm.fit([(seen(vlm, texts, 0.6, generator), texts)], progress=False)


def seen(vlm: BayesVLM, texts: Features, noise: float, generator: torch.Generator) -> Features:
    """Images whose embeddings are near those of their texts."""
    wanted = vlm.text.embed(texts) @ torch.linalg.pinv(vlm.image.weight).T
    return Features(wanted + noise * torch.randn(wanted.shape, generator=generator, dtype=wanted.dtype))


@dataclass
class TinyLab:
    """As `Lab`, with sets that differ in their noise."""

    models: tuple[str, ...] = ("one", "two")
    sets: tuple[str, ...] = ("near", "middle", "far")
    images_each: int = 80
    plan: Plan = field(default_factory=lambda: Plan(validation="validation"))

    @cached_property
    def _vlms(self) -> dict[str, BayesVLM]:
        return {model: tiny_vlm(seed) for seed, model in enumerate(self.models)}

    def vlm(self, model: str) -> BayesVLM:
        return self._vlms[model]

    def classes(self, model: str, data: str) -> Features:
        generator = torch.Generator().manual_seed(100)
        return Features(torch.randn(CLASSES, 7, generator=generator, dtype=torch.float64))

    def images(self, model: str, data: str) -> EncodedSet:
        noise = {"validation": 0.84, "near": 0.5, "middle": 0.7, "far": 0.9}[data]
        generator = torch.Generator().manual_seed(int(100 * noise))
        labels = torch.randint(CLASSES, (self.images_each,), generator=generator)
        found = seen(self.vlm(model), self.classes(model, data)[labels], noise, generator)
        return EncodedSet(found, labels, [str(row) for row in range(len(labels))], {}, data)

    def validation(self, model: str) -> EncodedSet:
        return self.images(model, "validation")

    @property
    def validation_set(self) -> str:
        return "validation"

    def tuned(
        self, model: str, vlm: BayesVLM, taus: tuple[float, ...] = DEFAULT_TAUS, refine: bool = True
    ) -> tuple[BayesVLM, TauGrid]:
        found, own = self.validation(model), vlm.copy()
        classes = self.classes(model, "validation")
        grid = own.tune(found.features, found.labels, classes, taus=taus, refine=refine, progress=False).tuning
        assert grid is not None
        return own, grid

    def bayes(self, model: str, vlm: BayesVLM, data: str) -> Scores:
        found = self.images(model, data)
        return Scores.of(vlm.classify(found.features, self.classes(model, data)).probs, found.labels)
