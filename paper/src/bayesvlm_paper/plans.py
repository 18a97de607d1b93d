"""What an item is run on: stand-ins of the embedded world by default, the paper's own models and data, or a user's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bayesvlm.artifacts.saved import CONFIG, is_posterior
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.experiments.domains import find_domains
from bayesvlm_paper.architectures import ARCHITECTURES

PLAN = "plan"
"""What an item was run on, among its numbers."""


@dataclass(frozen=True)
class Plan:
    """Models and data.

    Args:
        models: names or posteriors, as `BayesVLM.from_pretrained` takes them; what a model without a posterior needs is
            fitted on the first of `pairs` and tuned on `validation`.
        sets: labelled sets to test on.
        validation: where tau and the temperature are found.
        pairs: sources of image-text pairs; splits of the world, several joined by +, or what else `resolve` takes. The
            first is (like) the training data, the second a proxy for it.
        views: whether methods that vote over views of an image belong to it.
        domains: what active learning chooses from: "world", "officehome", "imagenet-variants", a folder.
        targets: the domains to get better at.
    """

    models: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    validation: str | None = None
    pairs: tuple[str, ...] = ()
    views: bool = False
    domains: str | None = None
    targets: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> Plan:
        """From what json has of it; what is not there is as usual."""
        values: dict[str, Any] = {n: tuple(each) if isinstance(each, list) else each for n, each in kept.items()}
        return cls(**values)

    @classmethod
    def of(cls, numbers: Mapping[str, Any]) -> Plan:
        """What the numbers of an item were measured on."""
        return cls.from_json(numbers[PLAN])

    @property
    def model(self) -> str:
        """The first of its models: most items are about one."""
        return self.models[0]

    def with_given(
        self,
        models: Sequence[str] = (),
        sets: Sequence[str] = (),
        validation: str | None = None,
        pairs: Sequence[str] = (),
    ) -> Plan:
        """This plan with what a user named in the place of its own; of active learning, `sets` is a set of domains."""
        if self.domains is not None and sets:
            if len(sets) > 1:
                raise BayesVLMError(f"Active learning takes one collection of domains, not {len(sets)}; name one.")
            targets = self.targets if sets[0] == self.domains else find_domains(sets[0]).targets
            return replace(self.with_given(models, (), validation, pairs), domains=sets[0], targets=targets)
        return replace(
            self,
            models=tuple(models) or self.models,
            sets=tuple(sets) or self.sets,
            validation=validation or self.validation,
            pairs=tuple(pairs) or self.pairs,
        )


CLIP_BASE, CLIP_LARGE, CLIP_HUGE, SIGLIP_BASE = (shape.model for shape in ARCHITECTURES.values())
PROLIP = "SanghyukChun/ProLIP-ViT-B-16-DC-1B-12_8B"
PCMEPP = "SanghyukChun/PCMEPP-ViT-B-16-CC3M-12M-RedCaps"

PAPER_SETS = {
    "Flowers-102": "flowers102",
    "Food-101": "food101",
    "CIFAR-10": "cifar10",
    "CIFAR-100": "cifar100",
    "ImageNet-R": "imagenet-r",
    "UCF101": "ucf101",
    "SUN397": "sun397",
    "ImageNet-A": "imagenet-a",
    "ImageNet-Sketch": "imagenet-sketch",
}
"""A column of the paper's tables -> the known set."""

LAION, CC12M = "laion400m", "cc12m"
"""Folders of shards, below the folder of the known sets."""
PAIRS = 10 * 32768
"""The most pairs that are taken of a source: the paper's ten contrast batches."""


def column_of(data: str) -> str | None:
    """The paper's column for a set; None for one it does not have."""
    return next((column for column, name in PAPER_SETS.items() if name == data), None)


def shape_of(model: str) -> str | None:
    """The paper's name of a model whose shape is known."""
    return next((name for name, shape in ARCHITECTURES.items() if model in (shape.model, shape.hub)), None)


def same_model(name: str, published: str) -> bool:
    """Whether a model is the published one, by one of its names, or a posterior of it."""
    names = {name, base_model(Path(name).expanduser()) or name}
    shape = shape_of(published)
    return published in names or (shape is not None and shape in map(shape_of, names))


def base_model(folder: Path) -> str | None:
    """The model that a saved posterior names; None for what is no posterior, or cannot be read."""
    try:
        named = json.loads((folder / CONFIG).read_text(encoding="utf-8")).get("model") if is_posterior(folder) else None
    except (OSError, ValueError, AttributeError):
        return None
    return named if isinstance(named, str) else None
