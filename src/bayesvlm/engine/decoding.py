"""Batches made ready by tasks on any node of a cluster, in order, ahead of who takes them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from PIL import Image, ImageFile

from bayesvlm.engine.cluster import Resources, end_with_node, on_workers

Item = TypeVar("Item")
Made = TypeVar("Made")
Batch = TypeVar("Batch")

_ENOUGH = object()


@dataclass(frozen=True)
class Preparation(Generic[Item, Made, Batch]):
    """What a task does to a batch of items, with Pillow's settings of the process that asks for it."""

    prepare: Callable[[Item], Made]
    collate: Callable[[list[Made]], Batch]
    most_pixels: int | None = field(default_factory=lambda: Image.MAX_IMAGE_PIXELS)
    truncated: bool = field(default_factory=lambda: ImageFile.LOAD_TRUNCATED_IMAGES)


def prepared(preparation: Preparation[Item, Made, Batch], items: list[Item]) -> Batch:
    """A batch, prepared and put together by one thread of a process that does nothing else."""
    end_with_node()
    torch.set_num_threads(1)
    Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = preparation.most_pixels, preparation.truncated
    return preparation.collate([preparation.prepare(item) for item in items])


@dataclass(frozen=True)
class DecodingTasks:
    """The pool that has batches prepared by tasks of Ray, in the place of worker processes.

    The items are consumed by a thread of this process, so that the encoder does not wait while they are read; what is
    made of them lies in the object store of Ray, a few batches of it at once.
    """

    resources: Resources

    def in_order(
        self,
        batches: Iterable[list[Item]],
        prepare: Callable[[Item], Made],
        collate: Callable[[list[Made]], Batch],
        pin: bool = False,
    ) -> Iterator[Batch]:
        """Every batch of items, prepared and put together, in order; see `bayesvlm.images.workers.in_order`.

        Raises:
            BayesVLMError: when the processes that prepare a batch end before they are done, each time it is tried.
        """
        import ray

        task = ray.remote(num_cpus=self.resources.decode_cpus)(prepared)
        preparation = ray.put(Preparation(prepare, collate))
        for made in begun_ahead(batches, lambda items: task.remote(preparation, items), self.resources.ahead):
            batch = result(made)
            yield batch.pin_memory() if pin else batch


def result(reference: Any) -> Any:
    """What a task or an actor has made, waiting for it."""
    import ray

    with on_workers():
        return ray.get(reference)


def begun_ahead(items: Iterable[Item], begin: Callable[[Item], Made], most: int) -> Iterator[Made]:
    """What was begun for every item, in order; a thread consumes the items, so many ahead at most."""
    begun: queue.Queue[Any] = queue.Queue(maxsize=most)
    stop = threading.Event()

    def offer(thing: Any) -> None:
        while not stop.is_set():
            with suppress(queue.Full):
                begun.put(thing, timeout=0.1)
                return

    def run() -> None:
        try:
            for item in items:
                if stop.is_set():
                    return
                offer(begin(item))
        except BaseException as error:  # of the caller's own iterable: raised where the results are taken
            offer(error)
        else:
            offer(_ENOUGH)

    reader = threading.Thread(target=run, name="reads ahead", daemon=True)
    reader.start()
    try:
        while (taken := begun.get()) is not _ENOUGH:
            if isinstance(taken, BaseException):
                raise taken
            yield taken
    finally:
        stop.set()
        reader.join()
