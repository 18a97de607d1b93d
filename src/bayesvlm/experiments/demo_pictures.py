"""Drawings that `bayesvlm demo` leaves to be classified, under names that say what they show."""

from __future__ import annotations

from bayesvlm_world import load

NAMES = ("cat face", "dog face", "pizza")
"""What the suggested commands ask for; "dog face" is a name that the models were not trained on."""
PICTURES = {
    "cat-face": ("emojione-colour", "emojione-colour_1f431"),
    "cat-face-line": ("openmoji-black", "openmoji-black_1f431"),
    "dog-face": ("unseen-concepts", "emojione-colour_1f436"),
    "dog-face-line": ("unseen-concepts", "openmoji-black_1f436"),
    "pizza": ("emojione-colour", "emojione-colour_1f355"),
    "umbrella": ("emojione-colour", "emojione-colour_2602"),  # none of the names
}
"""The name of each picture -> the split it is in, and its key there. Both styles are new to the models."""


def pictures() -> dict[str, bytes]:
    """The pictures, encoded, by name."""
    splits = {split: load(split) for split, _ in PICTURES.values()}
    return {name: splits[split].images[splits[split].keys.index(key)] for name, (split, key) in PICTURES.items()}
