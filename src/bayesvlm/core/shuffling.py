"""Orders that a seed stands for."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def shuffled_order(count: int, *seed: int) -> NDArray[np.int64]:  # [count]
    """The numbers below `count` in the order that a seed stands for, the same on every machine and with every numpy.

    Raw numbers of a bit generator, which numpy promises never to change, are sorted.
    """
    return np.argsort(np.random.Philox(np.random.SeedSequence(seed)).random_raw(count), kind="stable")


@lru_cache(maxsize=2)
def kept_order(count: int, seed: int) -> NDArray[np.int64]:  # [count]
    """The same, of a list that is asked for again and again: by every group of a plan, by every share of one."""
    order = shuffled_order(count, seed)
    order.setflags(write=False)
    return order
