"""Axes that several drawings share, and how a probability is written."""

from __future__ import annotations

import math
from collections.abc import Iterable


def tenths(low: Iterable[float], high: Iterable[float]) -> tuple[float, float]:
    """The ends of an axis of cosines that holds all of these intervals, on tenths."""
    first = math.floor(10 * min(low, default=0.0))
    return first / 10, max(math.ceil(10 * max(high, default=1.0)), first + 1) / 10


def percent(share: float) -> str:
    """A probability in whole percent, and never as none or all where it is neither.

    >>> [percent(share) for share in (0, 0.003, 0.52, 0.997, 1)]
    ['0 %', '<1 %', '52 %', '>99 %', '100 %']
    """
    if 0 < share < 0.005:
        return "<1 %"
    return ">99 %" if 0.995 <= share < 1 else f"{100 * share:.0f} %"
