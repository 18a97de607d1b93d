"""How long each stage of a pass takes, without holding it up."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

WAITING, IMAGES, TEXTS, CURVATURE, CHECKPOINT = "waiting", "images", "texts", "curvature", "checkpoint"
SHOWN = {
    WAITING: "waiting for images",
    IMAGES: "encoding images",
    TEXTS: "encoding texts",
    CURVATURE: "curvature",
    CHECKPOINT: "checkpoints",
}
"""The stages, as a person would call them. A pass waits for images that workers have not made ready yet; the curvature
is what it takes from the encoders, so what is computed beside them does not count."""
_MANY = 64  # events that are looked at together


class Stages:
    """Seconds per stage of the work on one device.

    A GPU is told to note when it begins and ends a stage, and asked later: asking at once would have it wait for the
    processor.
    """

    def __init__(self, device: torch.device) -> None:
        self._seconds = dict.fromkeys(SHOWN, 0.0)
        self._cuda = device.type == "cuda"
        self._noted: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._inner = 0.0  # seconds of stages inside the one that is timed

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        """Time this block; what a stage inside it takes is not counted twice."""
        if self._cuda and stage in (IMAGES, TEXTS, CURVATURE):
            begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begun.record()
            yield
            ended.record()
            self._noted.append((stage, begun, ended))
            if len(self._noted) >= _MANY:
                self._collect(wait=False)
            return
        outer, self._inner, begin = self._inner, 0.0, time.perf_counter()
        try:
            yield
        finally:
            taken = time.perf_counter() - begin
            self._seconds[stage] += taken - self._inner
            self._inner = outer + taken

    def taken(self) -> dict[str, float]:
        """Seconds per stage so far."""
        self._collect(wait=True)
        return dict(self._seconds)

    def __str__(self) -> str:
        """Shares of the time, for a line of progress."""
        return shares(self._seconds)

    def _collect(self, wait: bool) -> None:
        waiting = []
        for stage, begun, ended in self._noted:
            if wait:
                ended.synchronize()
            if wait or ended.query():  # type: ignore[no-untyped-call]
                self._seconds[stage] += begun.elapsed_time(ended) / 1000
            else:
                waiting.append((stage, begun, ended))
        self._noted = waiting


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
