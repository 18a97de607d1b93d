"""The paper's tables and figures, a small module per group: each measures numbers, and tells a finding from them.

catalogue.json has what there is to know of an item without its code: title, question, what it is run on.
"""

from __future__ import annotations

import json
from pathlib import Path

from bayesvlm.core.errors import check_choice
from bayesvlm_paper.item import Code, Item
from bayesvlm_paper.items import (
    approximation,
    cost,
    covariance,
    error_and_entropy,
    evidence,
    independence,
    learning_curves,
    link,
    negatives,
    neighbours,
    perturbation,
    proxy_data,
    proxy_shift,
    pseudo_count,
    samples,
    structure,
    zero_shot,
)

_MODULES = (
    zero_shot,
    proxy_data,
    proxy_shift,
    pseudo_count,
    cost,
    learning_curves,
    error_and_entropy,
    neighbours,
    approximation,
    perturbation,
    independence,
    samples,
    negatives,
    structure,
    covariance,
    link,
    evidence,
)
_CODE: Code = {name: code for module in _MODULES for name, code in module.ITEMS.items()}
_CATALOGUE = json.loads((Path(__file__).parent / "catalogue.json").read_text(encoding="utf-8"))
ITEMS: dict[str, Item] = {name: Item.of(name, facts, *_CODE[name]) for name, facts in _CATALOGUE.items()}
"""Every item by its name, in the order of the page."""


def find_item(name: str) -> Item:
    """One of `ITEMS`."""
    check_choice("NAME", name, tuple(ITEMS))
    return ITEMS[name]
