"""Which image is for what: fixed by hashes of names, so that no random generator's version can change it."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from concepts import Concept
from styles import Style

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


def twin_groups(codes: Iterable[str], twins: Iterable[Collection[str]]) -> dict[str, str]:
    """The first of each concept's group, where concepts that share a drawing, however indirectly, are one group."""
    leader = {code: code for code in codes}

    def find(code: str) -> str:
        while leader[code] != code:
            code = leader[code]
        return code

    for sharing in twins:
        first, *others = sorted(map(find, sharing))
        for other in others:
            leader[other] = first
    return {code: find(code) for code in leader}


def held_out_families(groups: Mapping[str, str], drawn: Mapping[str, Sequence[Style]]) -> dict[str, str]:
    """The drawing family of each seen concept that no model is trained on, evenly over the families it has.

    Concepts with a drawing in common hold out the same family: no tested drawing is a training drawing of another name.
    """
    families = defaultdict(list)
    for code, leader in groups.items():
        families[leader].append({style.family for style in drawn[code] if style.trained})
    chosen = {
        leader: min(set.intersection(*sets), key=lambda family: rank("held out", f"{leader}/{family}"))
        for leader, sets in families.items()
    }
    return {code: chosen[leader] for code, leader in groups.items()}


def assign(
    concepts: Sequence[Concept], drawn: Mapping[str, Sequence[Style]], twins: Iterable[Collection[str]]
) -> dict[tuple[str, str], str]:
    """The split of every image, by (code, style).

    Near-duplicates are never split: of a held-out Fluent family one rendering is tested, the other two are set aside.

    Args:
        concepts: all of them.
        drawn: the styles that draw each.
        twins: concepts that have the very same drawing in some training style.
    """
    unseen = unseen_concepts(concepts)
    groups = twin_groups((concept.code for concept in concepts), twins)
    for code in sorted(unseen):
        if any(groups[other] == groups[code] for other in groups if other not in unseen):
            raise ValueError(f"the unseen concept {code} shares a drawing with a seen one")
    held_out = held_out_families({code: leader for code, leader in groups.items() if code not in unseen}, drawn)
    leaders = sorted({groups[code] for code in held_out}, key=lambda code: rank("validation", code))
    validation: set[str] = set()
    for leader in leaders:
        if len(validation) < VALIDATION:
            validation |= {code for code in held_out if groups[code] == leader}
    splits = {}
    for concept in concepts:
        code = concept.code
        family = [style.name for style in drawn[code] if style.trained and style.family == held_out.get(code)]
        tested = min(family, key=lambda name: rank("tested", f"{code}/{name}"), default=None)
        for style in drawn[code]:
            if code in unseen:
                split = "unseen-concepts"
            elif not style.trained:
                split = style.name
            elif style.family != held_out[code]:
                split = "train"
            elif style.name != tested:
                split = "set-aside"
            else:
                split = "validation" if code in validation else "new-drawing"
            splits[code, style.name] = split
    return splits


def half(code: str, style: Style) -> str:
    """For active learning, an unseen style's image is in the pool or a target, with all of its family's drawings."""
    return "pool" if int(rank("active", f"{code}/{style.family}")[:8], 16) % 2 else "target"


def caption(concept: Concept, name: str) -> str:
    """What the image is called: its label, for every other image with one to three keywords."""
    number = int(rank("caption", name)[:8], 16)
    others = [word for word in concept.keywords if word != concept.label]
    words = sorted(others, key=lambda word: rank(name, word))[: number // 2 % 3 + 1]
    return concept.label if number % 2 or not words else ", ".join([concept.label, *words])
