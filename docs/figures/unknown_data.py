"""What the figures of docs/unknown.md are made from: the embedded world as three models see it, encoded once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import torch
from torch import Tensor

from bayesvlm import BayesVLM, Features, world
from bayesvlm.core.blocks import row_blocks
from bayesvlm.data import resolve
from bayesvlm.data.cache import FeatureCache
from bayesvlm.evaluation import apply_temperature, fit_temperature, raised_temperature
from bayesvlm.experiments.feature_store import FeatureStore

MODELS = ("emoji-clip-colour", "emoji-clip", "emoji-siglip")
KNOWN = "new-drawing"
"""Known names in known styles, drawn by other hands: what nothing is new about."""
STYLES = ("emojione-colour", "openmoji-colour", "fluent-high-contrast", "emojione-black", "openmoji-black")
"""Known names in styles that no model was trained on: a shift, but nothing unknown."""
SEVEN = (KNOWN, *STYLES, "unseen-concepts")
OUTSIDE = ("unseen-concepts", "flags", "cifar10")
"""What is on none of them is among the known names, or is a photograph."""
PREDICTIVES = ("plain", "temperature", "raised temperature", "Bayes")


@dataclass(frozen=True, eq=False)
class Set:
    """A labelled set as a model sees it, with the names it is to be told apart by."""

    images: Features  # [N]
    labels: Tensor  # [N]
    classes: Features  # [C]
    names: tuple[str, ...]


@dataclass(frozen=True)
class Seen:
    """The world as one model sees it.

    Args:
        name: of the model.
        cifar: the folder of CIFAR-10 as world/recipes/cifar10 makes it.
    """

    name: str
    cifar: Path | None = None

    @cached_property
    def vlm(self) -> BayesVLM:
        return BayesVLM.from_pretrained(self.name, device="cpu")

    @cached_property
    def store(self) -> FeatureStore:
        return FeatureStore(self.vlm, FeatureCache())

    @cache  # noqa: B019  one object per model, for one run
    def set(self, name: str) -> Set:
        """A set of the world, or CIFAR-10."""
        data = resolve(self.cifar or "cifar10").open() if name == "cifar10" else world.load(name)
        encoded = self.store.images(data)
        return Set(encoded.features, encoded.labels, self.store.texts(list(data.classes)), tuple(data.classes))

    @cached_property
    def known(self) -> Set:
        return self.set(KNOWN)

    @cached_property
    def temperatures(self) -> dict[str, float]:
        """The best on the validation drawings, and the largest that is within a standard error of it."""
        of = self.set("validation")
        logits = self.vlm.logits(of.images, of.classes)
        return {
            "temperature": fit_temperature(logits, of.labels).value,
            "raised temperature": raised_temperature(logits, of.labels).value,
        }

    def probs(self, predictive: str, images: Features, classes: Features) -> Tensor:  # [N, C]
        """Class probabilities by one of `PREDICTIVES`."""
        predict: Callable[[Features], Tensor]
        if predictive == "plain":
            predict = lambda part: self.vlm.plain(part, classes)  # noqa: E731
        elif predictive == "Bayes":
            predict = lambda part: self.vlm.classify(part, classes).probs  # noqa: E731
        else:
            value = self.temperatures[predictive]
            predict = lambda part: apply_temperature(self.vlm.logits(part, classes), value)  # noqa: E731
        return torch.cat([predict(images[rows]) for rows in row_blocks(len(images), len(classes))])
