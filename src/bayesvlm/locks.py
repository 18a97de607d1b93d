"""One process at a time with a file or folder: a lock that the operating system frees when its holder dies."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from bayesvlm.core.errors import BayesVLMError

logger = logging.getLogger(__name__)

_TRIES = 100  # of making a folder that others may take away
_PAUSE = 0.01  # seconds between them


@contextmanager
def locked(path: Path, busy: Callable[[], None]) -> Iterator[None]:
    """Hold a lock in this block; its file is there as long as the block lasts.

    Where files cannot be locked (some network file systems), everybody goes on.

    Args:
        path: the lock's own file, made with its folder.
        busy: called where another process holds the lock; when it returns instead of raising, this process waits.
    """
    lock = FileLock(path)
    if not _acquire(lock, path, blocking=False):
        busy()
        _acquire(lock, path, blocking=True)
    try:
        yield
    finally:
        with suppress(OSError):  # before the lock is free: who takes it next makes a file that nobody removes
            path.unlink()
        lock.release()


def _acquire(lock: BaseFileLock, path: Path, blocking: bool) -> bool:
    """Whether nobody else holds the lock now; raises where its file cannot be written."""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        except FileNotFoundError:  # another process that gave up took the folder away again
            continue
        try:
            lock.acquire(blocking=blocking)
        except Timeout:
            return False
        except FileNotFoundError:
            continue
        except OSError as error:
            logger.info("%s cannot be locked (%s); going on without", path, error)
        return True
    raise BayesVLMError(
        f"The folder {path.parent} cannot be made, or is taken away again each time: its file system says that it is "
        "not there; choose another place."
    )
