"""Which image is for what: fixed by hashes of names, so that no random generator's version can change it."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from concepts import Concept
from styles import Style

Key = tuple[str, str]  # code and style
Picture = NDArray[np.uint8]  # [64, 64, 3], on white

# Concepts no model is trained on, by Unicode group. People are left out: their concepts are variants of each other
# (woman, man, person doing one thing), so that a held-out one would not be unseen.
UNSEEN = {
    "smileys-emotion": 12,
    "animals-nature": 15,
    "food-drink": 13,
    "travel-places": 15,
    "activities": 11,
    "objects": 19,
    "symbols": 15,
}
VALIDATION = 510  # concepts whose held-out drawing is for validation; the others' are the test "new-drawing"
NEAR = 0.05  # drawings that differ by less are one drawing


def rank(purpose: str, name: str) -> str:
    """A fixed arbitrary order of names, another one for every purpose."""
    return hashlib.sha256(f"{purpose}:{name}".encode()).hexdigest()


def unseen_concepts(concepts: Sequence[Concept]) -> frozenset[str]:
    """The codes of the concepts never trained on."""
    groups = defaultdict(list)
    for concept in concepts:
        groups[concept.group].append(concept.code)
    chosen = [sorted(groups[group], key=lambda code: rank("unseen", code))[:count] for group, count in UNSEEN.items()]
    return frozenset(code for codes in chosen for code in codes)


def unsaid(concepts: Sequence[Concept]) -> list[Concept]:
    """The concepts without keywords that are an unseen concept's name: no caption of a seen one says it."""
    unseen = unseen_concepts(concepts)
    names = {concept.label.casefold() for concept in concepts if concept.code in unseen}
    kept = [[word for word in concept.keywords if word.casefold() not in names] for concept in concepts]
    return [
        concept if concept.code in unseen else replace(concept, keywords=tuple(words))
        for concept, words in zip(concepts, kept, strict=True)
    ]


def held_out_family(code: str, styles: Iterable[Style]) -> str:
    """The drawing family of a seen concept that no model is trained on, evenly over the families it has."""
    families = {style.family for style in styles if style.trained}
    return min(families, key=lambda family: rank("held out", f"{code}/{family}"))


def assign(concepts: Sequence[Concept], drawn: Mapping[str, Sequence[Style]]) -> dict[Key, str]:
    """The split of every image.

    Of a held-out Fluent family one rendering is tested, the other two are set aside: they are near-duplicates.

    Args:
        concepts: all of them.
        drawn: the styles that draw each.
    """
    unseen = unseen_concepts(concepts)
    seen = [concept.code for concept in concepts if concept.code not in unseen]
    validation = frozenset(sorted(seen, key=lambda code: rank("validation", code))[:VALIDATION])
    splits = {(code, style.name): "unseen-concepts" for code in unseen for style in drawn[code]}
    for code in seen:
        held_out = held_out_family(code, drawn[code])
        family = [style.name for style in drawn[code] if style.trained and style.family == held_out]
        tested = min(family, key=lambda name: rank("tested", f"{code}/{name}"))
        for style in drawn[code]:
            if not style.trained:
                split = style.name
            elif style.family != held_out:
                split = "train"
            elif style.name != tested:
                split = "set-aside"
            else:
                split = "validation" if code in validation else "new-drawing"
            splits[code, style.name] = split
    return splits


def set_aside_near(splits: Mapping[Key, str], pictures: Mapping[Key, Picture]) -> dict[Key, str]:
    """The splits, with every drawing that is nearly a training drawing, of whatever concept or style, set aside."""
    trained = [key for key, split in splits.items() if split == "train"]
    others = [key for key, split in splits.items() if split != "train"]
    found = near([pictures[key] for key in others], [pictures[key] for key in trained])
    return dict(splits) | {key: "set-aside" for key, is_near in zip(others, found, strict=True) if is_near}


def near(pictures: Sequence[Picture], references: Sequence[Picture]) -> NDArray[np.bool_]:
    """Which pictures differ from some reference by less than NEAR (root mean square, of 1)."""
    against = np.stack(references).reshape(len(references), -1).astype(np.float32) / 255
    lengths = np.square(against).sum(axis=1)
    found = []
    for first in range(0, len(pictures), 256):
        chunk = np.stack(pictures[first : first + 256]).reshape(-1, against.shape[1]).astype(np.float32) / 255
        squares = np.square(chunk).sum(axis=1)[:, None] + lengths - 2 * chunk @ against.T
        found.append(squares.min(axis=1) < NEAR**2 * against.shape[1])
    return np.concatenate(found)


def half(code: str, style: Style) -> str:
    """For active learning, an unseen style's image is in the pool or a target, with all of its family's drawings."""
    return "pool" if int(rank("active", f"{code}/{style.family}")[:8], 16) % 2 else "target"


def caption(concept: Concept, name: str) -> str:
    """What the image is called: its label, for every other image with one to three keywords."""
    number = int(rank("caption", name)[:8], 16)
    others = [word for word in concept.keywords if word != concept.label]
    words = sorted(others, key=lambda word: rank(name, word))[: number // 2 % 3 + 1]
    return concept.label if number % 2 or not words else ", ".join([concept.label, *words])
