"""How long each stage of a pass takes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

WAITING, IMAGES, TEXTS, CURVATURE, CHECKPOINT = "waiting", "images", "texts", "curvature", "checkpoint"
SHOWN = {
    WAITING: "waiting for images",
    IMAGES: "encoding images",
    TEXTS: "encoding texts",
    CURVATURE: "curvature",
    CHECKPOINT: "checkpoints",
}
"""The stages, as a person would call them. A pass waits for images that workers have not made ready yet. What is
computed beside the image encoder counts as far as it holds the pass up."""


class Stages:
    """Seconds per stage of the work, as one thread sees them. A GPU is waited for where an encoder's features are
    checked: those of images are first, so that what the queue still holds counts as images."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(SHOWN, 0.0)
        self._inner = 0.0  # seconds of stages inside the one that is timed

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Time this block; what a stage inside it takes is not counted twice."""
        outer, self._inner, begin = self._inner, 0.0, time.perf_counter()
        try:
            yield
        finally:
            taken = time.perf_counter() - begin
            self._seconds[stage] += taken - self._inner
            self._inner = outer + taken

    def taken(self) -> dict[str, float]:
        """Seconds per stage so far."""
        return dict(self._seconds)

    def __str__(self) -> str:
        """Shares of the time, for a line of progress."""
        return shares(self._seconds)


def shares(seconds: Mapping[str, float]) -> str:
    """What share of the time each stage took.

    >>> shares({"waiting": 1.0, "images": 7.0, "texts": 1.5, "curvature": 0.5, "checkpoint": 0.0})
    'waiting for images 10 %, encoding images 70 %, encoding texts 15 %, curvature 5 %'
    """
    total = sum(seconds.values())
    if total <= 0:
        return ""
    shown = {SHOWN[name]: 100 * taken / total for name, taken in seconds.items()}
    return ", ".join(f"{name} {share:.0f} %" for name, share in shown.items() if share >= 0.5)
