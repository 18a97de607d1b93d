"""Tasks for active learning: one class list, a pool of mixed domains, a target of one of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch

from bayesvlm.core.errors import check_choice
from bayesvlm.core.features import Features
from bayesvlm.experiments.adaptation import Labelled, Task
from bayesvlm.experiments.encoding import Encoder
from bayesvlm.world import Split, load

STYLES = ("emojione-colour", "emojione-black", "openmoji-colour", "openmoji-black", "fluent-high-contrast")
"""The drawing styles of the world that no model was trained on: its domains."""

HELD_BACK = 5  # one pool concept in so many is for validation


def world_task(encoder: Encoder, target: str, group: str) -> Task:
    """The world's styles as domains: get better at one of them, for the classes of one Unicode group.

    The target is one half of a style. The pool is everything else: the other half of the style and of its family (the
    same outlines in other colours), the other unseen styles whole, the training drawings. A fifth of the concepts, in
    all unseen styles, is taken from it for validation.

    Args:
        target: one of `STYLES`.
        group: one of `world.GROUPS`.
    """
    check_choice("target", target, STYLES)

    def choose(split: Split) -> Split:
        same = split.name.partition("-")[0] == target.partition("-")[0]
        return (split.half("pool") if same else split).group(group)

    parts = [_Part(encoder, load(style), choose) for style in STYLES]
    known = _Part(encoder, load("train"), lambda split: split.group(group))
    aimed = _Part(encoder, load(target), lambda split: split.half("target").group(group))
    pool = [part.rows(lambda key: not _held_back(key)) for part in parts] + [known.rows()]
    held_back = [part.rows(_held_back) for part in parts]
    domains = [style for part, style in zip(pool, (*STYLES, "train"), strict=True) for _ in range(len(part))]
    return Task(
        f"{target}/{group}",
        _joined(pool),
        aimed.rows(),
        _joined(held_back),
        encoder.texts([str(name) for name in aimed.chosen.classes]),
        tuple(domains),
    )


class _Part:
    """Some images of a split, their features taken from those of the whole, which other commands use too."""

    def __init__(self, encoder: Encoder, whole: Split, choose: Callable[[Split], Split]) -> None:
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


def _joined(parts: list[Labelled]) -> Labelled:
    return Labelled(Features.concatenate([part.features for part in parts]), torch.cat([part.labels for part in parts]))
