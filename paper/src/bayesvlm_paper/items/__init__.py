"""The paper's tables and figures, a small module per group: each measures numbers, and tells a finding from them.

catalogue.json has what there is to know of an item without its code: title, question, what it is run on, the claims it
judges and the remarks that hold whatever was measured.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from bayesvlm.core.errors import check_choice
from bayesvlm_paper.catalogue import CATALOGUE
from bayesvlm_paper.item import Code, Item

_MODULES = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
_CODE: Code = {name: code for module in _MODULES for name, code in module.ITEMS.items()}
ITEMS: dict[str, Item] = {name: Item.of(name, facts, *_CODE[name]) for name, facts in CATALOGUE.items()}
"""Every item by its name, in the order of the page."""


def find_item(name: str) -> Item:
    """One of `ITEMS`."""
    check_choice("NAME", name, tuple(ITEMS))
    return ITEMS[name]
