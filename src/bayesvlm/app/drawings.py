"""The embedded world's drawings as the page needs them: examples, and drawings of a class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from bayesvlm.embedded import world

CLASSES = ("cat face", "dog", "pizza", "rocket", "guitar", "bicycle", "umbrella", "snowman")
"""What the page asks about before somebody types anything."""
LISTS = {
    "eight things": CLASSES,
    "faces": ("grinning face", "winking face", "crying face", "angry face", "sleeping face", "cowboy hat face"),
    "on the table": ("pizza", "hamburger", "taco", "sushi", "doughnut", "red apple", "banana", "carrot"),
    "vehicles": ("bicycle", "rocket", "airplane", "ambulance", "tractor", "sailboat", "helicopter"),
}
"""Class lists to begin with."""
_EXAMPLES = (
    ("new-drawing", "dog"),
    ("openmoji-colour", "pizza"),
    ("openmoji-black", "cat face"),
    ("fluent-high-contrast", "rocket"),
    ("openmoji-black", "umbrella"),
    ("emojione-colour", "guitar"),
    ("openmoji-black", "sailboat"),
    ("flags", None),
)
CALIBRATION = (
    "new-drawing",
    "emojione-colour",
    "emojione-black",
    "openmoji-colour",
    "openmoji-black",
    "fluent-high-contrast",
)
"""Splits whose drawings tell what is familiar: none of them tuned tau."""
MOST = 400  # drawings to calibrate on


@dataclass(frozen=True)
class Drawing:
    """One drawing: its key in its split, what it shows, its file's bytes."""

    split: str
    key: str
    name: str
    image: bytes

    @property
    def title(self) -> str:
        """To speak of it."""
        return f"{self.name}, {self.split}"


@cache
def drawings(split: str) -> tuple[Drawing, ...]:
    """All drawings of a split, in its order."""
    found = world("What the page shows").load(split)
    return tuple(
        Drawing(split, key, found.classes[label], image)
        for key, image, label in zip(found.keys, found.images, found.labels, strict=True)
    )


@cache
def examples() -> tuple[Drawing, ...]:
    """Drawings to try: a new one in a style that is known, others in styles never trained on, among them a false alarm
    (the cat face), something that is none of `CLASSES` (the sailboat), and a flag, which is no concept that was."""
    found = []
    for split, name in _EXAMPLES:
        found.append(next(each for each in drawings(split) if name in (None, each.name)))
    return tuple(found)


def of_classes(names: Sequence[str]) -> list[Drawing]:
    """Drawings of these classes to calibrate on, at most `MOST`, evenly spread; the examples are not among them."""
    wanted = set(names)
    found = [each for each in _familiar() if each.name in wanted]
    step = max(1, -(-len(found) // MOST))
    return found[::step]


def undrawn(names: Sequence[str]) -> list[str]:
    """Those of the names that there is no drawing of to calibrate on, so that nothing can be promised of them."""
    drawn = {each.name for each in _familiar()}
    return [name for name in dict.fromkeys(names) if name not in drawn]


@cache
def _familiar() -> tuple[Drawing, ...]:
    shown = {(each.split, each.key) for each in examples()}
    every = (each for split in CALIBRATION for each in drawings(split))
    return tuple(each for each in every if (each.split, each.key) not in shown)
