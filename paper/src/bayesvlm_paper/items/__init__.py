"""The paper's tables and figures, a small module per group: each measures numbers, and tells a finding from them."""

from __future__ import annotations

from bayesvlm.core.errors import check_choice
from bayesvlm_paper.item import Item
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
ITEMS: dict[str, Item] = {item.name: item for module in _MODULES for item in module.ITEMS}
"""Every item by its name, in the order of the page."""


def find_item(name: str) -> Item:
    """One of `ITEMS`."""
    check_choice("NAME", name, tuple(ITEMS))
    return ITEMS[name]
