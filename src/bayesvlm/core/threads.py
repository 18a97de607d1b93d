"""How many cores a computation is worth.

Torch splits an operation among all cores and waits for the last of them. Of small operations that is mostly waiting: it
gains little on a quiet machine, and beside a busy neighbour every wait may last until the scheduler comes round. A
second's work then takes minutes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

import torch

WORTH = 5e9  # floating-point operations, a tenth of a second or so, that are worth another thread

Part = TypeVar("Part")
Result = TypeVar("Result")


class _Setting:
    """Torch's number of threads, which is the process's: what it was before anybody changed it comes back at last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = self._before = 0

    @contextmanager
    def of(self, threads: int) -> Iterator[None]:
        before = torch.get_num_threads()
        with self._lock:
            self._before = self._before if self._inside else before
            self._inside += 1
            torch.set_num_threads(threads)
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                torch.set_num_threads(before if self._inside else self._before)


_setting = _Setting()


def threads_for(operations: float) -> AbstractContextManager[None]:
    """Inside, torch has a thread for every `WORTH` operations, at least one and at most those it had."""
    return _setting.of(_worthwhile(operations))


def in_threads(work: Callable[[Part], Result], parts: Sequence[Part], operations: float) -> list[Result]:
    """`work` of every part, in order: whole parts at the same time, rather than every operation of each one split."""
    count = min(_worthwhile(operations), len(parts))
    with threads_for(0):
        if count <= 1:
            return [work(part) for part in parts]
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(work, parts))


def _worthwhile(operations: float) -> int:
    return max(1, min(torch.get_num_threads(), int(operations / WORTH)))
