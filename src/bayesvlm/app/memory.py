"""Memory that comes back: a server with many threads, each of which the C library would give a heap of its own."""

from __future__ import annotations

import ctypes
import sys

HEAPS = 2
_M_ARENA_MAX = -8  # of glibc's malloc.h


def share_heaps() -> bool:
    """Have the threads that are started from now on share a few heaps; whether this C library can.

    glibc keeps what a thread freed for that thread. Under load the page then holds some hundred megabytes that nobody
    uses (docs/app.md).
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_M_ARENA_MAX, HEAPS))
