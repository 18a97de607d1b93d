"""The paper's tables and figures, one small module each: run on the embedded world, on its own data, or on a user's."""

from __future__ import annotations

from bayesvlm.core.errors import check_choice
from bayesvlm_paper import (
    approximation,
    cost,
    error_and_entropy,
    independence,
    learning_curves,
    negatives,
    neighbours,
    perturbation,
    proxy_data,
    proxy_shift,
    pseudo_count,
    samples,
    variant_items,
    zero_shot_tables,
)
from bayesvlm_paper.item import Done, Item, reproduce
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import Plan

_MODULES = (
    zero_shot_tables,
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
    variant_items,
)
ITEMS: dict[str, Item] = {item.name: item for module in _MODULES for item in module.ITEMS}
"""Every item by its name, in the order of the page."""


def find_item(name: str) -> Item:
    """One of `ITEMS`."""
    check_choice("NAME", name, tuple(ITEMS))
    return ITEMS[name]


__all__ = ["ITEMS", "Done", "Item", "Lab", "Plan", "find_item", "reproduce"]
