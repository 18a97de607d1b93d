"""A dict that is read only: what an object shows of itself, and what other things were computed from."""

from __future__ import annotations

from typing import Any, NoReturn, TypeVar

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.printing import brief

K = TypeVar("K")
V = TypeVar("V")


class FrozenDict(dict[K, V]):
    """A dict whose entries stay; it prints, compares and is written as json like any other.

    Example:
        >>> lam = FrozenDict(image=2.0, text=3.0)
        >>> lam["image"] = 5.0  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        bayesvlm.core.errors.BayesVLMError: {'image': 2.0, 'text': 3.0} is read-only, ...
    """

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise BayesVLMError(
            f"{brief(self)} is read-only, because what was computed from it would stay as it was; vlm.replace(...) "
            "returns a new BayesVLM with other settings, and dict(...) of this is a copy that can be changed."
        )

    __setitem__ = __delitem__ = __ior__ = update = pop = popitem = clear = setdefault = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self),)
