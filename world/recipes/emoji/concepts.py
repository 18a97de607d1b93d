"""The concepts of the world and what they are called: emojibase's names, keywords, Unicode groups and subgroups."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

FLAGS, COMPONENTS, KEYCAPS = "flags", "component", "keycap"
SEPARATORS = ("fe0f", "200d")  # how an emoji is to be shown, and the glue between its parts: vendors differ in them


@dataclass(frozen=True)
class Concept:
    """One emoji, whatever its drawing: its code points, its name, and the words people use for it."""

    code: str  # as the vendors' files are named, without separators: "1f469-1f680"
    label: str
    keywords: tuple[str, ...]
    group: str
    subgroup: str
    tones: tuple[str, ...]  # the codes of its skin-tone variants


def read_concepts(packages: Path) -> tuple[list[Concept], list[Concept]]:
    """All concepts in Unicode's order, without components and keycaps; flags apart."""
    folder = packages / "emojibase-data"
    meta = json.loads((folder / "meta/groups.json").read_text(encoding="utf-8"))
    concepts, flags = [], []
    for entry in sorted(json.loads((folder / "en/data.json").read_text(encoding="utf-8")), key=_order):
        if "group" not in entry or meta["groups"][str(entry["group"])] == COMPONENTS:
            continue
        group, subgroup = meta["groups"][str(entry["group"])], meta["subgroups"][str(entry["subgroup"])]
        if subgroup == KEYCAPS:
            continue
        tones = tuple(code(skin["hexcode"]) for skin in entry.get("skins", ()) if isinstance(skin.get("tone"), int))
        concept = Concept(code(entry["hexcode"]), entry["label"], tuple(entry.get("tags", ())), group, subgroup, tones)
        (flags if group == FLAGS else concepts).append(concept)
    return concepts, flags


def code(name: str) -> str:
    """The code points of a file name or hexcode, lower case, without separators."""
    return "-".join(part for part in name.lower().split("-") if part not in SEPARATORS)


def _order(entry: dict[str, int]) -> int:
    return entry.get("order", -1)
