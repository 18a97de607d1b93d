"""Batches made ready by tasks on any node of a cluster, in order, ahead of the actor that takes them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from PIL import Image, ImageFile

from bayesvlm.core.errors import BayesVLMError, first_line
from bayesvlm.engine.cluster import Resources

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

    def __call__(self, items: list[Item]) -> Batch:
        torch.set_num_threads(1)
        Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES = self.most_pixels, self.truncated
        return self.collate([self.prepare(item) for item in items])


@dataclass(frozen=True)
class DecodingTasks:
    """`bayesvlm.images.workers.in_order`, by tasks of Ray in the place of worker processes.

    The items are consumed by a thread of this process, so that reading them does not wait for the encoder; what is
    made of them lies in the object store of Ray, and no more than a few batches of it at once.
    """

    resources: Resources

    def in_order(
        self,
        batches: Iterable[list[Item]],
        prepare: Callable[[Item], Made],
        collate: Callable[[list[Made]], Batch],
        pin: bool = False,
    ) -> Iterator[Batch]:
        """Every batch of items, prepared and put together, in order; arguments as for `in_order`.

        Raises:
            BayesVLMError: when the processes that prepare a batch die again and again.
        """
        import ray

        task = ray.remote(num_cpus=self.resources.decode_cpus)(_prepared)
        preparation = ray.put(Preparation(prepare, collate))
        for made in begun_ahead(batches, lambda items: task.remote(preparation, items), self.resources.ahead):
            try:
                batch = ray.get(made)
            except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as error:
                raise BayesVLMError(
                    f"The process that prepared a batch of images ended before its work was done, each time it was "
                    f"tried ({first_line(error)}), mostly for want of memory: give smaller batches."
                ) from error
            yield batch.pin_memory() if pin else batch


def _prepared(preparation: Preparation[Any, Any, Any], items: list[Any]) -> Any:
    return preparation(items)


def begun_ahead(items: Iterable[Item], begin: Callable[[Item], Made], most: int) -> Iterator[Made]:
    """What was begun for every item, in order; a thread consumes the items, at most so many ahead."""
    begun: queue.Queue[Any] = queue.Queue(maxsize=most)
    stop = threading.Event()

    def offer(thing: Any) -> None:
        while not stop.is_set():
            try:
                return begun.put(thing, timeout=0.1)
            except queue.Full:
                continue

    def run() -> None:
        try:
            for item in items:
                if stop.is_set():
                    return
                offer(begin(item))
        except BaseException as error:  # the caller's own iterable's: raised where the results are taken
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
