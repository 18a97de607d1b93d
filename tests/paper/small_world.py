"""A task of thirty images and a lab that has nothing else, for the items on active learning."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import torch
from core.references import normal

from bayesvlm import BayesVLM, Features
from bayesvlm.experiments.adaptation import Labelled, Run, Schedule, Task
from bayesvlm.experiments.earlier import Earlier
from bayesvlm_paper import labelling
from bayesvlm_paper.plans import Plan

CLASSES = 3


def model() -> BayesVLM:
    made = BayesVLM.from_projections(normal(5, 8, seed=0).float(), normal(5, 7, seed=1).float(), logit_scale=2.5)
    return made.fit([(Features(normal(60, 8, seed=2)), Features(normal(60, 7, seed=3)))])


def drawings(count: int, seed: int, shift: float = 0.0) -> Labelled:
    labels = torch.arange(count) % CLASSES
    return Labelled(Features(normal(CLASSES, 8, seed=4)[labels] + 0.5 * normal(count, 8, seed=seed) + shift), labels)


def small_task() -> Task:
    return Task("small", drawings(30, 1), drawings(18, 2, 0.5), drawings(12, 3), Features(normal(CLASSES, 7, seed=6)))


@dataclass
class SmallLab:
    """What the items ask of a lab."""

    out: Path
    models: tuple[str, ...] = ("tiny",)
    plan: Plan = field(default_factory=lambda: Plan(("tiny",), domains="world", targets=("small",)))
    seeds: int = 2
    made: BayesVLM = field(default_factory=model)
    earlier: Earlier = field(default_factory=Earlier)

    @property
    def kept(self) -> Path:
        return self.out

    def vlm(self, name: str) -> BayesVLM:
        return self.made

    def task(self, model: str, target: str) -> Task:
        return small_task()

    def say(self, text: str) -> None:
        pass


def quick(patch: pytest.MonkeyPatch) -> None:
    """Few epochs and draws, fast enough for a rate that moves something."""
    patch.setattr(labelling, "Schedule", partial(Schedule, epochs=4, draws=10, lr=1e-2))


def run_of(strategy: str, seed: int, nlpd: dict[int, float]) -> Run:
    """One that was never done."""
    points = {count: dict.fromkeys(_SCORES, at) for count, at in {0: 2.0, **nlpd}.items()}
    return Run(strategy, seed, list(range(max(nlpd))), points, {}, {})


_SCORES = ("nlpd", "balanced_accuracy", "ece", "accuracy", "plain_nlpd", "validation_nlpd")
