"""The embedded default: real emoji artwork in eleven drawing styles, and tiny models trained on some of them.

>>> split = load("new-drawing")
>>> len(split), len(split.classes), split.styles[0]
(979, 1531, 'noto')
"""

from bayesvlm_world.pairs import WorldPairs
from bayesvlm_world.splits import (
    FOLDER,
    GROUPS,
    SPLITS,
    Split,
    count_of,
    folder_of,
    group_of,
    load,
    subgroup_of,
    subgroups,
)

__all__ = [
    "FOLDER",
    "GROUPS",
    "SPLITS",
    "Split",
    "WorldPairs",
    "count_of",
    "folder_of",
    "group_of",
    "load",
    "subgroup_of",
    "subgroups",
]
