"""How the page ends: with what it put into temporary folders deleted, whoever ends it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ENDING = ("SIGTERM", "SIGHUP")  # of a service manager or a container, and of a terminal that is closed


@contextmanager
def tidy_end() -> Iterator[None]:
    """Have signals that end the process end it as its last line would.

    Python leaves at once on them, without the exit handlers that delete uploads and the index of the drawings. A signal
    that is ignored, as under nohup, still is.
    """
    if threading.current_thread() is not threading.main_thread():  # others may set no handlers
        yield
        return
    numbers = [getattr(signal, name) for name in _ENDING if hasattr(signal, name)]
    before = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        if handler is signal.SIG_DFL:
            signal.signal(number, _leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is _leave:
                signal.signal(number, signal.SIG_IGN if handler is None else handler)


def _leave(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # once is enough: a second one would end the tidying
    raise SystemExit(0)
