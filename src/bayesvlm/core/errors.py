"""The one exception raised for mistakes a user can mend, and the checks that many raise it from."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real
from typing import SupportsIndex


class BayesVLMError(ValueError):
    """Bad input: the message names the value, what was expected and what to do.

    Everything a caller can get wrong raises this type, so that the command line (and a service built on
    the package) can print one sentence instead of a traceback, and let real bugs through.
    """


class ReadOnlyError(BayesVLMError, AttributeError):
    """An attribute that cannot be set: an AttributeError too, as Python's own read-only objects raise."""


class BayesVLMWarning(UserWarning):
    """Something that may be right and deserves a look: the message says what, what it means and what to do."""


def check_positive(name: str, value: float) -> float:
    """`value` as a float, if it is a finite number above zero."""
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # an integer of hundreds of digits
        number = math.inf
    if not (math.isfinite(number) and number > 0):
        raise BayesVLMError(f"{name}={str(value)[:40]}; it must be a finite number above zero.")
    return number


def check_count(name: str, value: object, least: int = 1) -> int:
    """`value` as an int, if it is a whole number of at least 1, or of at least `least`."""
    whole = value.__index__() if isinstance(value, SupportsIndex) and not isinstance(value, bool) else least - 1
    if whole < least:
        raise BayesVLMError(f"{name} is {value!r}; expected a whole number of at least {least}.")
    return whole


def check_choice(name: str, value: object, known: tuple[str, ...]) -> None:
    """Refuse a `value` that is not one of the `known` words."""
    if value not in known:
        *others, last = map(repr, known)
        listed = f"{', '.join(others)} or {last}" if others else last
        raise BayesVLMError(f"{name}={value!r} is not known; use {listed}.")


@contextmanager
def writing(what: object, remedy: str) -> Iterator[None]:
    """Say in a sentence why something cannot be written in this block: a full disk, a folder without access."""
    try:
        yield
    except OSError as error:
        raise BayesVLMError(f"{what} cannot be written: {error.strerror or error}; {remedy}.") from None


def first_line(error: Exception) -> str:
    """The first line of another library's complaint, to quote in a sentence of ours; without addresses in memory."""
    line = re.sub(r" <[\w.]+ object at 0x[0-9a-f]+>", "", str(error).strip().split("\n")[0])
    return line.rstrip(".") or type(error).__name__
