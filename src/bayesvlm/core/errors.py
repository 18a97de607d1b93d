"""The one exception raised for mistakes a user can mend, and the two checks that many raise it from."""

import math
from numbers import Real


class BayesVLMError(ValueError):
    """Bad input: the message names the value, what was expected and what to do.

    Everything a caller can get wrong raises this type, so that the command line (and a service built on
    the package) can print one sentence instead of a traceback, and let real bugs through.
    """


def check_positive(name: str, value: float) -> float:
    """`value` as a float, if it is a finite number above zero."""
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # an integer of hundreds of digits
        number = math.inf
    if not (math.isfinite(number) and number > 0):
        raise BayesVLMError(f"{name}={str(value)[:40]}; it must be a finite number above zero.")
    return number


def check_choice(name: str, value: object, known: tuple[str, ...]) -> None:
    """Refuse a `value` that is not one of the `known` words."""
    if value not in known:
        raise BayesVLMError(f"{name}={value!r} is not known; use {' or '.join(map(repr, known))}.")
