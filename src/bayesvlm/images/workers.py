"""Work on inputs one after another, ahead of who takes the results: by threads here, or by worker processes.

The inputs are consumed where they are given, a few batches ahead, whatever they come from; order is kept; memory
depends on the size of a batch and the number of workers, not on the number of inputs.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from PIL import Image, ImageFile
from torch.utils.data import DataLoader, Dataset

from bayesvlm.core.errors import BayesVLMError, check_count
from bayesvlm.images import decoding
from bayesvlm.images.resizing import Allowance

Item = TypeVar("Item")
Made = TypeVar("Made")
Batch = TypeVar("Batch")

_THREADS = 4  # that prepare inputs where no worker processes do
_AHEAD = 2  # batches that each worker process may be ahead
_FEW = 512  # inputs that are done sooner than worker processes are worth it
_LEAST = 2  # worker processes: one alone takes more from the encoder than threads do
_MOST = 8  # workers, where the caller does not say
_FORK = (
    "fork" in multiprocessing.get_all_start_methods() and sys.platform != "darwin"
)  # there it breaks system libraries
_ENDED = (
    "A worker process that prepares images ended before its work was done, mostly for want of memory: give fewer "
    "workers, smaller batches, or workers=0 to use none."
)


@runtime_checkable
class Pool(Protocol):
    """Processes elsewhere that do the work of worker processes."""

    def in_order(
        self,
        batches: Iterable[list[Item]],
        prepare: Callable[[Item], Made],
        collate: Callable[[list[Made]], Batch],
        pin: bool = False,
    ) -> Iterator[Batch]:
        """As the function of this name; items, functions and results are pickled."""


Workers = int | Pool
"""How many worker processes, 0 for threads of this process; or who does it in their place."""


def in_other_processes(workers: Workers) -> bool:
    """Whether inputs are sent to another process."""
    return isinstance(workers, Pool) or workers > 0


def choose_workers(count: int | None, batch_bytes: int) -> int:
    """How many worker processes to have where the caller does not say; 0 is threads of this process.

    As many as there are cores but one, at most eight, where that is quick and safe: not for a few inputs, nor on one or
    two cores, where threads leave more to the encoder than a process does (benchmarks/stream.py), nor on systems where
    a process cannot be forked (a new one would run the caller's script again), nor in a thread or in a worker of
    somebody else's, nor where too little shared memory is left for the batches, as in many containers.

    Args:
        count: of inputs; None where it is not known, which is taken for many.
        batch_bytes: what a batch takes.
    """
    few = count is not None and count < _FEW
    elsewhere = threading.current_thread() is not threading.main_thread() or multiprocessing.current_process().daemon
    workers = min(_cores() - 1, _MOST)
    if few or elsewhere or not _FORK or workers < _LEAST:
        return 0
    return workers if workers * (_AHEAD + 1) * batch_bytes < _shared_memory() else 0


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _shared_memory() -> int:
    """Bytes left where worker processes leave their results."""
    return shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else 2**62


def in_order(
    batches: Iterable[list[Item]],
    prepare: Callable[[Item], Made],
    collate: Callable[[list[Made]], Batch],
    workers: Workers = 0,
    pin: bool = False,
) -> Iterator[Batch]:
    """Every batch of items, prepared and put together, in order.

    Args:
        batches: consumed here, a few batches ahead.
        prepare: makes something of an item; errors end the iteration.
        collate: puts together what was made of a batch.
        workers: processes that do both, to which items, functions and results are pickled; with 0 threads of this
            process prepare, and it collates itself; a pool does it all.
        pin: put results, which then have a method `pin_memory`, where a GPU can fetch them by itself.

    Raises:
        BayesVLMError: when a worker process ends before its work does.
    """
    if isinstance(workers, Pool):
        yield from workers.in_order(batches, prepare, collate, pin)
    elif check_count("workers", workers, least=0):
        yield from _by_processes(batches, _Preparation(prepare, collate), workers, pin)
    else:
        for made in ahead(batches, lambda batch, pool: [pool.submit(prepare, item) for item in batch], 1):
            batch = collate([reading.result() for reading in made])
            yield batch.pin_memory() if pin else batch  # type: ignore[attr-defined]


def ahead(items: Iterable[Item], begin: Callable[[Item, ThreadPoolExecutor], Made], most: int) -> Iterator[Made]:
    """What was begun for every item, in order, at most so many items ahead of who takes it.

    Args:
        begin: from an item to what a few threads are told to do.
    """
    pool = ThreadPoolExecutor(_THREADS)
    waiting: deque[Made] = deque()
    try:
        for item in items:
            waiting.append(begin(item, pool))
            if len(waiting) > most:
                yield waiting.popleft()
        while waiting:
            yield waiting.popleft()
    finally:
        pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class _Preparation(Dataset[Any], Generic[Item, Made, Batch]):
    """What a worker process does to a batch. To torch's DataLoader it is a data set whose indices are the items."""

    prepare: Callable[[Item], Made]
    collate: Callable[[list[Made]], Batch]

    def __getitems__(self, items: list[Item]) -> Batch:
        return self.collate([self.prepare(item) for item in items])


def _by_processes(
    batches: Iterable[list[Item]], preparation: _Preparation[Item, Made, Batch], workers: int, pin: bool
) -> Iterator[Batch]:
    raised: list[Exception] = []  # by the caller's own iterable

    def watched() -> Iterator[list[Item]]:
        try:
            yield from batches
        except Exception as error:
            raised.append(error)
            raise

    context = multiprocessing.get_context("fork" if _FORK else "spawn")
    loader: DataLoader[Any] = DataLoader(
        preparation,
        batch_sampler=watched(),
        collate_fn=_unchanged,
        num_workers=workers,
        prefetch_factor=_AHEAD,
        pin_memory=pin,
        multiprocessing_context=context,
        worker_init_fn=_Start(Allowance(decoding.DECODING_BYTES, context)),
        generator=torch.Generator(),  # so that nothing is drawn from the caller's
    )
    with worker_failures():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # more workers than cores, a fork beside threads: both are meant
            waiting = iter(loader)
        try:
            yield from waiting
        except (OSError, EOFError) as error:  # a worker that is gone cannot hand over what it had made
            if error in raised:
                raise
            # its traceback holds the iterator, and with that workers whose end torch would tell of at any moment later
            raise BayesVLMError(_ENDED) from error.with_traceback(None)
        finally:
            del waiting  # ends the workers


@contextmanager
def worker_failures() -> Iterator[None]:
    """What torch says of a worker process that ended too soon, which it may say at any moment, as one sentence."""
    try:
        yield
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise BayesVLMError(_ENDED) from error


def _unchanged(batch: Batch) -> Batch:
    return batch


@dataclass(frozen=True)
class _Start:
    """What a worker process does first."""

    allowance: Allowance
    most_pixels: int | None = field(default_factory=lambda: Image.MAX_IMAGE_PIXELS)
    truncated: bool = field(default_factory=lambda: ImageFile.LOAD_TRUNCATED_IMAGES)
    bound: bool = field(default_factory=lambda: threading.current_thread() is threading.main_thread())

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that takes the results ends this one
        if self.bound:
            _end_with_parent()
        torch.set_num_threads(1)
        Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = self.most_pixels, self.truncated
        decoding.share_allowance(self.allowance)


def _end_with_parent() -> None:
    """Have this process end the moment its parent does, whatever ends that: it holds the locks that its parent holds.

    On Linux; elsewhere torch's workers look for their parent every five seconds.
    """
    if sys.platform == "linux":
        set_parent_death_signal = 1
        ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL)
