"""One command at a time in a folder: a lock that the operating system holds, and frees when its process dies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bayesvlm.core.errors import BayesVLMError

try:
    import fcntl
except ImportError:  # not a Unix: no locks
    fcntl = None  # type: ignore[assignment]

LOCK = ".bayesvlm-lock"


@contextmanager
def only_command_in(folder: Path) -> Iterator[None]:
    """Refuse while another process is in this block with the same folder, which is made; left empty it goes again."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        descriptor = lock_file(folder / LOCK)
        if descriptor is None:
            raise BayesVLMError(
                f"Another command is writing to {folder} at this moment; wait until it is done, or name another folder."
            )
        try:
            yield
        finally:
            with suppress(OSError):
                (folder / LOCK).unlink()
            os.close(descriptor)
    finally:
        for path in missing:
            with suppress(OSError):  # not empty
                path.rmdir()


def lock_file(path: Path) -> int | None:
    """A descriptor of the file, made if need be, that this process alone has locked; None where another has.

    Closing it frees the lock. Where files cannot be locked (some network file systems), everybody gets one.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)  # another command that gave up may have taken it away
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if fcntl is not None:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError:
            return descriptor
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        os.close(descriptor)  # whoever had it before moved this file away: lock the one that takes its place
