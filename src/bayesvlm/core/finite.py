"""Whether what a tower gave is finite: asked at once, or where a GPU should not be waited for, a little later."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError


def finite_matrix(value: Any, name: str, shape: str) -> Tensor:
    """A floating-point matrix of finite numbers, of whatever can be made one.

    Raises:
        BayesVLMError: when it is something else; within `checked_later` NaN and Inf are found later.
    """
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = f"{type(value).__name__}: {error}".splitlines()[0]
        raise BayesVLMError(f"{name} must be a floating-point matrix {shape}, got something else ({reason}).") from None
    if tensor.ndim != 2 or not tensor.is_floating_point():
        raise BayesVLMError(
            f"{name} must be a floating-point matrix {shape}, got {tensor.dtype} of shape {list(tensor.shape)}."
        )
    check, later = _Check(name, torch.isfinite(tensor).all(dim=1)), _LATER.get()
    if later is None:
        check.made()
    else:
        later.note(check)
    return tensor


class _Check:
    """Whether all rows of a matrix are finite: asked for at once, answered when it is needed."""

    def __init__(self, name: str, finite: Tensor) -> None:  # [N]
        self.name, self.finite = name, finite

    def begin(self) -> None:
        """Have a GPU send the answer when it gets there, without waiting for it."""
        self._all = self.finite.all().to("cpu", non_blocking=True)
        self._sent = torch.cuda.current_stream(self.finite.device).record_event() if self.finite.is_cuda else None

    def made_later(self) -> None:
        if self._sent is not None:
            self._sent.synchronize()
        if not bool(self._all):
            self.made()

    def made(self) -> None:
        if bool(self.finite.all()):
            return
        rows = torch.nonzero(~self.finite).flatten().tolist()
        shown = ", ".join(map(str, rows[:10])) + (", ..." if len(rows) > 10 else "")
        raise BayesVLMError(
            f"{self.name} hold NaN or Inf in {len(rows)} of {len(self.finite)} rows ({shown}); "
            "check those inputs, or run the encoder in a wider dtype than the one that overflowed."
        )


class Checks:
    """What has not been checked yet of Features that were made within `checked_later`."""

    def __init__(self) -> None:
        self._open: list[_Check] = []

    def note(self, check: _Check) -> None:
        check.begin()
        self._open.append(check)

    def made(self) -> None:
        """Wait until all of them can be made, and make them.

        Raises:
            BayesVLMError: as `Features` does.
        """
        for check in self._open:
            check.made_later()
        self._open.clear()


_LATER: ContextVar[Checks | None] = ContextVar("checks that are made later", default=None)


@contextmanager
def checked_later() -> Iterator[Checks]:
    """Features made here, in this thread, are checked for NaN and Inf when the checks are `made`, not at once: a check
    waits for a GPU, which would then wait for what is launched next.

    Example:
        >>> from bayesvlm import Features
        >>> with checked_later() as checks:
        ...     _ = Features(torch.full((2, 3), torch.nan))
        >>> checks.made()  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        bayesvlm.core.errors.BayesVLMError: activations hold NaN or Inf in 2 of 2 rows (0, 1); check those inputs, ...
    """
    checks = Checks()
    token = _LATER.set(checks)
    try:
        yield checks
    finally:
        _LATER.reset(token)
