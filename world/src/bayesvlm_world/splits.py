"""The splits of the world, each as images in memory: all of them together are twelve megabytes."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

from bayesvlm.core.errors import BayesVLMError, check_choice, check_count
from bayesvlm.core.printing import described
from bayesvlm.data import LabelledShards, Sample, SkippedImages

FOLDER = Path(__file__).parent
"""Where the package lies, and below it the drawings, the models and their posteriors."""
DATA = FOLDER / "data"

SPLITS = {
    "train": "six drawing styles of 1,531 concepts, less one held-out family of drawings for each",
    "validation": "a held-out family's drawing, for a third of the concepts",
    "new-drawing": "a held-out family's drawing, for the other two thirds: seen styles, seen concepts, a new drawing",
    "set-aside": "nearly what is trained on or tested elsewhere, so for no measurement",
    "emojione-colour": "a style never trained on",
    "emojione-black": "the same drawings in black and white",
    "openmoji-colour": "a style never trained on: flat colours, black outlines",
    "openmoji-black": "the same drawings as outlines only",
    "fluent-high-contrast": "black and white drawings of a vendor whose colour styles were trained on",
    "unseen-concepts": "a hundred concepts never trained on, in all styles",
    "flags": "out of domain: flags, in two styles that were trained on",
}
"""What each split is."""

FLAGS = 523
"""Images of the split flags; those of the others are listed in a file."""

GROUPS = (
    "smileys-emotion",
    "people-body",
    "animals-nature",
    "food-drink",
    "travel-places",
    "activities",
    "objects",
    "symbols",
)
"""Unicode's groups: the kinds of things there are, and sub-tasks with the classes of one of them."""


TEMPLATES = (
    "{c}",
    "a {c}",
    "the {c}",
    "{c} emoji",
    "a drawing of a {c}",
    "a picture of a {c}",
    "an icon of a {c}",
    "a symbol for {c}",
)


@dataclass(frozen=True)
class Split:
    """Images as they are stored, with what is known about them; `classes` are the names a model chooses from.

    Any image here goes into `BayesVLM.classify` and the others as it is. It is a labelled set (`data.LabelledSet`) too.
    """

    name: str
    keys: tuple[str, ...]  # "style_codepoints"
    images: tuple[bytes, ...]
    labels: tuple[int, ...]  # indices into classes
    captions: tuple[str, ...]
    classes: tuple[str, ...]

    __repr__ = described

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[Sample]:
        for sample in zip(self.keys, self.images, self.labels, self.captions, strict=True):
            yield Sample(*sample)

    @property
    def size(self) -> int:
        """The number of images."""
        return len(self)

    @property
    def templates(self) -> tuple[str, ...]:
        """Prompts with {c} for the class: its name alone, as in training, then ways to say it that are as usual."""
        return TEMPLATES

    @property
    def skipped(self) -> SkippedImages:
        """Nothing: every image here can be read, and the first one that could not would be an error."""
        return SkippedImages(strict=True)

    def fingerprint(self) -> str:
        """A hash of the images, labels and class names."""
        digest = hashlib.sha256(json.dumps([self.classes, self.labels]).encode())
        for image in self.images:
            digest.update(hashlib.sha256(image).digest())
        return digest.hexdigest()

    @property
    def styles(self) -> tuple[str, ...]:
        """The drawing style of each image."""
        return tuple(key.partition("_")[0] for key in self.keys)

    def pairs(self, batch_size: int = 64) -> Iterator[tuple[list[bytes], list[str]]]:
        """Batches of images and captions, as `BayesVLM.fit` takes them."""
        check_count("batch_size", batch_size)
        for start in range(0, len(self), batch_size):
            batch = slice(start, start + batch_size)
            yield list(self.images[batch]), list(self.captions[batch])

    def half(self, which: Literal["pool", "target"]) -> Split:
        """For active learning: the images of an unseen style to choose labels for, or those to get better at."""
        check_choice("which", which, ("pool", "target"))
        sides = _halves()
        chosen = [row for row, key in enumerate(self.keys) if sides.get(key) == which]
        if not chosen:
            raise BayesVLMError(f"The split {self.name!r} has no {which}; take the split of a style never trained on.")
        return self._rows(f"{self.name}/{which}", chosen)

    def group(self, group: str) -> Split:
        """The sub-task of one Unicode group: its images, and its classes to choose from."""
        check_choice("group", group, GROUPS)
        inside = [index for index, name in enumerate(self.classes) if name in _by_label() and group_of(name) == group]
        if not inside:
            raise BayesVLMError(f"The split {self.name!r} has no classes of the group {group!r}; take another split.")
        place = {index: position for position, index in enumerate(inside)}
        part = self._rows(f"{self.name}/{group}", [row for row, label in enumerate(self.labels) if label in place])
        labels, classes = (place[label] for label in part.labels), (self.classes[index] for index in inside)
        return replace(part, labels=tuple(labels), classes=tuple(classes))

    def kinds(self, group: str | None = None) -> Split:
        """The same images with the eight groups as classes; or those of one group, with its subgroups as classes."""
        within = self if group is None else self.group(group)
        names, of = (GROUPS, group_of) if group is None else (subgroups(group), subgroup_of)
        place = [names.index(of(name)) for name in within.classes]
        labels = tuple(place[label] for label in within.labels)
        return replace(within, name=f"{within.name}/kinds", labels=labels, classes=names)

    def _rows(self, name: str, rows: Sequence[int]) -> Split:
        return Split(
            name,
            tuple(self.keys[row] for row in rows),
            tuple(self.images[row] for row in rows),
            tuple(self.labels[row] for row in rows),
            tuple(self.captions[row] for row in rows),
            self.classes,
        )


def load(split: str) -> Split:
    """One of `SPLITS`.

    Its classes are the 1,531 concepts that were trained on; for unseen-concepts the hundred that were not, for
    set-aside both, and for flags the flags' names.
    """
    check_choice("split", split, tuple(SPLITS))
    folder = folder_of(split)
    shards = LabelledShards.open(folder.parent, folder.name, strict=True)
    samples = list(shards)
    seen = sum(_seen())
    first, last = {"flags": (0, None), "set-aside": (0, None), "unseen-concepts": (seen, None)}.get(split, (0, seen))
    return Split(
        split,
        tuple(sample.key for sample in samples),
        tuple(sample.image for sample in samples if isinstance(sample.image, bytes)),
        tuple(sample.label - first for sample in samples),
        tuple(sample.caption or "" for sample in samples),
        shards.classes[first:last],
    )


def folder_of(split: str) -> Path:
    """Where the shards of one of `SPLITS` are."""
    check_choice("split", split, tuple(SPLITS))
    return DATA / ("flags/test" if split == "flags" else f"emoji/{split}")


def count_of(split: str) -> int:
    """How many images one of `SPLITS` has; none of them is read."""
    check_choice("split", split, tuple(SPLITS))
    return FLAGS if split == "flags" else _counts()[split]


def group_of(concept: str) -> str:
    """The Unicode group of a class name."""
    return _concept(concept)["group"]


def subgroup_of(concept: str) -> str:
    """The Unicode subgroup of a class name."""
    return _concept(concept)["subgroup"]


def subgroups(group: str) -> tuple[str, ...]:
    """Unicode's subgroups of one of `GROUPS`, in its order, of the concepts that were trained on."""
    check_choice("group", group, GROUPS)
    return tuple(dict.fromkeys(row["subgroup"] for row in _concepts() if row["group"] == group and row["seen"] == "1"))


def _concept(name: str) -> dict[str, str]:
    if name not in _by_label():
        raise BayesVLMError(f"There is no concept {name!r} in the world; concepts are the classes of its splits.")
    return _by_label()[name]


@cache
def _concepts() -> list[dict[str, str]]:
    with (DATA / "emoji/concepts.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def _counts() -> Counter[str]:
    return Counter(row["split"] for row in _drawings())


@cache
def _halves() -> dict[str, str]:
    return {row["key"]: row["active"] for row in _drawings()}


def _drawings() -> list[dict[str, str]]:
    with gzip.open(DATA / "emoji/splits.csv.gz", "rt", encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _seen() -> list[bool]:
    return [row["seen"] == "1" for row in _concepts()]


@cache
def _by_label() -> dict[str, dict[str, str]]:
    return {row["label"]: row for row in _concepts()}
