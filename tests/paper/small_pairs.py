"""A lab in small, for items about the posterior: one model without an encoder, pairs and sets drawn at random."""

from __future__ import annotations

import torch
from core.references import generator

from bayesvlm import BayesVLM
from bayesvlm.core.features import Features
from bayesvlm.core.tuning import TauGrid
from bayesvlm.experiments.scoring import Scores
from bayesvlm_paper.plans import Plan


def small_vlm(loss: str = "infonce", logit_scale: float = 2.0) -> BayesVLM:
    """Projections from 7 and 6 inputs to 5 outputs, that of images with a bias; float64."""
    draw = generator(0)
    weights = torch.randn(5, 7, generator=draw).double(), torch.randn(5, 6, generator=draw).double()
    bias = torch.randn(5, generator=draw).double()
    return BayesVLM.from_projections(
        *weights, logit_scale, -1.0 if loss == "sigmoid" else None, image_bias=bias, loss=loss
    )


def small_pairs(count: int, seed: int = 1) -> tuple[Features, Features]:
    """Images and texts that have something to do with each other."""
    draw = generator(seed)
    shared = torch.randn(count, 6, generator=draw).double()
    images = torch.cat([shared, shared[:, :1]], dim=1) + 0.5 * torch.randn(count, 7, generator=draw).double()
    return Features(images), Features(shared)


class SmallLab:
    """What the items ask of a `Lab`, for one small model under any names."""

    def __init__(
        self,
        models: tuple[str, ...] = ("small",),
        sets: tuple[str, ...] = (),
        pairs: int = 200,
        source: str = "train",
        loss: str = "infonce",
    ) -> None:
        self.models, self.sets, self._source = models, sets, source
        self._vlm, self._pairs = small_vlm(loss), small_pairs(pairs)
        self._vlm.fit([self._pairs], progress=False)

    def vlm(self, model: str) -> BayesVLM:
        return self._vlm

    def loaded(self, model: str) -> BayesVLM:
        return self._vlm

    @property
    def plan(self) -> Plan:
        return Plan(self.models, self.sets, "validation", (self._source,))

    def pairs(self, model: str) -> tuple[Features, Features]:
        return self._pairs

    def data(self, name: str = "validation") -> tuple[Features, torch.Tensor, Features]:
        """Images [60], their labels and classes [8]; other images for every name."""
        draw = generator(sum(name.encode()))
        classes = torch.randn(8, 6, generator=draw).double()
        labels = torch.randint(8, (60,), generator=draw)
        seen = classes[labels]
        images = torch.cat([seen, seen[:, :1]], dim=1) + torch.randn(60, 7, generator=draw).double()
        return Features(images), labels, Features(classes)

    def tuned(self, model: str, vlm: BayesVLM, taus: tuple[float, ...]) -> tuple[BayesVLM, TauGrid]:
        images, labels, classes = self.data()
        own = vlm.copy()
        grid = own.tune(images, labels, classes, taus=taus, progress=False).tuning
        assert grid is not None
        return own, grid

    def bayes(self, model: str, vlm: BayesVLM, data: str) -> Scores:
        images, labels, classes = self.data(data)
        return Scores.of(vlm.classify(images, classes).probs, labels)
