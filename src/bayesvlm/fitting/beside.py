"""Work beside the encoder: a thread of its own, and on a GPU a stream of its own."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

import torch

from bayesvlm.core.contrast import Precision


class ThreadBeside:
    """One piece of work at a time, in the order it was given; leaving the block waits for the last one."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = _stream(device) if device.type == "cuda" else None
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Begin when what the caller's stream was given so far is done."""
        given = None if self._stream is None else torch.cuda.current_stream(self._device).record_event()
        return self._pool.submit(self._run, work, given)

    def _run(self, work: Callable[[], None], given: torch.cuda.Event | None) -> None:
        if self._stream is None or given is None:
            work()
            return
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(given)
            try:
                work()
            finally:
                self._stream.synchronize()  # what it read may be overwritten once this returns


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def pays_beside(device: torch.device, precision: Precision | None) -> bool:
    """Whether the curvature had better be computed beside the encoder: on a GPU, whose switch for tf32 it leaves alone.

    That switch is one for the whole process: turned beside an encoder, it would change what the encoder computes.
    """
    if device.type != "cuda":
        return False
    matmul = torch.backends.cuda.matmul
    on = matmul.fp32_precision == "tf32" if hasattr(matmul, "fp32_precision") else matmul.allow_tf32
    return bool(on) == (precision == "tf32")
