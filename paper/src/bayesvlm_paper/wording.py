"""How numbers, counts and lists are put into words, so that a sentence is true whatever was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import TypeVar

from bayesvlm.evaluation import Estimate

Name = TypeVar("Name", bound=str)


def rounded(value: float, decimals: int = 3) -> str:
    """Without a sign that rounding has emptied.

    >>> rounded(-0.0004), rounded(-0.0012)
    ('0.000', '-0.001')
    """
    return f"{round(value, decimals) + 0.0:.{decimals}f}"


def signed(value: float, decimals: int = 3) -> str:
    """With its sign, as a difference; what rounds to nothing is +0.

    >>> signed(-0.0004), signed(-0.0012), signed(2.5, 1)
    ('+0.000', '-0.001', '+2.5')
    """
    return f"{round(value, decimals) + 0.0:+.{decimals}f}"


def from_to(values: Sequence[float], decimals: int = 3) -> str:
    """The smallest and the largest difference; one where they are the same.

    >>> from_to([0.2, -0.1], 1), from_to([0.21, 0.2], 1)
    ('-0.1 to +0.2', '+0.2')
    """
    low, high = signed(min(values), decimals), signed(max(values), decimals)
    return low if low == high else f"{low} to {high}"


def with_error(estimate: Estimate, decimals: int = 3, scale: float = 1.0, signs: bool = False) -> str:
    """A mean, and its standard error where there is one."""
    beside = "" if math.isnan(estimate.standard_error) else f" ± {scale * estimate.standard_error:.{decimals}f}"
    return f"{(signed if signs else rounded)(scale * estimate.value, decimals)}{beside}"


def spread(values: Sequence[float], decimals: int = 3) -> str:
    """A mean, and the standard deviation of more than one."""
    beside = f" ± {stdev(values):.{decimals}f}" if len(values) > 1 else ""
    return f"{rounded(mean(values), decimals)}{beside}"


def by_name(values: Mapping[str, float], decimals: int = 3, signs: bool = False) -> str:
    """Each value with whose it is.

    >>> by_name({"a": 0.5, "b": -0.25}, 2)
    '0.50 (a), -0.25 (b)'
    """
    form = signed if signs else rounded
    return ", ".join(f"{form(value, decimals)} ({name})" for name, value in values.items())


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """
    >>> counted(1, "seed"), counted(2, "seed"), counted(2, "class", "classes")
    ('1 seed', '2 seeds', '2 classes')
    """
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def all_of(names: Sequence[str]) -> str:
    """
    >>> all_of(["a"]), all_of(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def each_of(texts: Mapping[Name, str]) -> str:
    """
    >>> each_of({"image": "0.5", "text": "0.6"})
    '0.5 (image) and 0.6 (text)'
    """
    return all_of([f"{text} ({name})" for name, text in texts.items()])


def not_on(failing: Sequence[str]) -> str:
    """Where something is not so, behind how often it is; nothing where it always is.

    >>> not_on(["a", "b"]), not_on([])
    (' (not on a, b)', '')
    """
    return f" (not on {', '.join(failing)})" if failing else ""
