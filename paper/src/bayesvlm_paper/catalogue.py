"""What items/catalogue.json says of every item: its facts, the claims that are judged, remarks that are always true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bayesvlm_paper.finding import Claim

CATALOGUE: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "items" / "catalogue.json").read_text(encoding="utf-8")
)
Judgement = tuple[bool | None, str]
"""Whether a claim holds, and the figure that decides it; None and a reason where it cannot be tested here."""


def judged(name: str, *found: Judgement, **values: object) -> list[Claim]:
    """The claims of an item in the catalogue's order, one judgement for each; `values` go where a claim has braces."""
    texts = CATALOGUE[name]["claims"]
    return [Claim.judged(text.format(**values), *each) for text, each in zip(texts, found, strict=True)]


def remarks(name: str) -> list[str]:
    """What a reader should know whatever was measured."""
    return list(CATALOGUE[name]["remarks"])
