"""The embedded world for active learning: its drawing styles are the domains."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch

from bayesvlm.core.errors import check_choice
from bayesvlm.core.features import Features
from bayesvlm.experiments.adaptation import Labelled, Task
from bayesvlm.experiments.feature_store import FeatureStore
from bayesvlm_world import GROUPS, Split, group_of, load, subgroup_of, subgroups

STYLES = ("emojione-colour", "emojione-black", "openmoji-colour", "openmoji-black", "fluent-high-contrast")
"""The drawing styles of the world that no model was trained on: its domains."""

HELD_BACK = 5  # one pool concept in so many is for validation


KINDS = "kinds"
"""The eight Unicode groups as classes; `group/kinds` has a group's subgroups. A class stands for its concepts."""

CLASSES = (KINDS, *GROUPS, *(f"{group}/{KINDS}" for group in GROUPS))
"""What a task may be to tell apart: kinds, the concepts of a group, or the kinds within it."""


def world_task(encoder: FeatureStore, target: str, classes: str = KINDS) -> Task:
    """Get better at a drawing style that the model was not trained on.

    The target is one half of the style. The pool is everything else: the other half of the style and of its family (the
    same outlines in other colours), the other unseen styles whole, the training drawings. A fifth of the concepts, in
    all unseen styles, is taken from it for validation.

    Args:
        target: one of `STYLES`.
        classes: "kinds", the eight groups, where a class stands for all names of its concepts; "food-drink/kinds", the
            subgroups of a group, likewise; or one of `world.GROUPS`, whose concepts are the classes then: every one of
            them has at most one drawing in a style.
    """
    check_choice("target", target, STYLES)
    check_choice("classes", classes, CLASSES)
    group = classes.removesuffix(KINDS).rstrip("/") or None

    def named(split: Split) -> Split:
        return split.kinds(group) if classes.endswith(KINDS) else split.group(classes)

    def choose(split: Split) -> Split:
        same = split.name.partition("-")[0] == target.partition("-")[0]
        return named(split.half("pool") if same else split)

    parts = [_Part(encoder, load(style), choose) for style in STYLES]
    known = _Part(encoder, load("train"), named)
    aimed = _Part(encoder, load(target), lambda split: named(split.half("target")))
    pool = [part.rows(lambda key: not _held_back(key)) for part in parts] + [known.rows()]
    held_back = [part.rows(_held_back) for part in parts]
    domains = [style for part, style in zip(pool, (*STYLES, "train"), strict=True) for _ in range(len(part))]
    return Task(
        target if classes == KINDS else f"{target}/{classes}",
        Labelled.concatenate(pool),
        aimed.rows(),
        Labelled.concatenate(held_back),
        _kinds(encoder, group) if classes.endswith(KINDS) else encoder.texts(list(aimed.chosen.classes)),
        tuple(domains),
    )


def _kinds(encoder: FeatureStore, group: str | None) -> Features:
    """What the text tower makes of each kind: the mean over the names of its concepts, which are what it was taught."""
    concepts = [name for name in load("train").classes if group in (None, group_of(name))]
    kinds, of = (GROUPS, group_of) if group is None else (subgroups(group), subgroup_of)
    return encoder.texts(concepts).pooled(torch.tensor([kinds.index(of(name)) for name in concepts]), len(kinds))


class _Part:
    """Some images of a split, their features taken from those of the whole, which other commands use too."""

    def __init__(self, encoder: FeatureStore, whole: Split, choose: Callable[[Split], Split]) -> None:
        self.chosen = choose(whole)
        encoded = encoder.images(whole)
        place = {key: row for row, key in enumerate(encoded.keys)}
        self.features = encoded.features[[place[key] for key in self.chosen.keys]]

    def rows(self, keep: Callable[[str], bool] = lambda key: True) -> Labelled:
        kept = [row for row, key in enumerate(self.chosen.keys) if keep(key)]
        return Labelled(self.features[kept], torch.tensor(self.chosen.labels)[kept])


def _held_back(key: str) -> bool:
    """By the concept alone, so that all drawings of it go the same way."""
    concept = key.partition("_")[2]
    return int.from_bytes(hashlib.sha256(concept.encode()).digest()[:4]) % HELD_BACK == 0
