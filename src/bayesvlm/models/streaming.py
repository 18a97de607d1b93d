"""Features of any number of images, a batch at a time: read and made ready by workers while the encoder runs."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError, check_count, first_line
from bayesvlm.core.features import Features
from bayesvlm.images.decoding import PIXEL_VALUES, ImageInputs, ImageLike, Readable, as_inputs, read_stream, to_rgb
from bayesvlm.images.files import Stored
from bayesvlm.images.workers import Item, Pool, Workers, choose_workers, in_order, in_other_processes
from bayesvlm.models.preprocessing import PixelTensors, Preprocessor

if TYPE_CHECKING:
    from bayesvlm.models.adapter import Adapter


class Expansion(Protocol):
    """Several images in the place of one, such as random crops of it; worker processes have a copy."""

    @property
    def count(self) -> int:
        """How many images are made of one."""

    def of(self, image: Image.Image, key: str) -> Iterable[Image.Image]:
        """The images made of one in upright RGB, which is called `key`."""


@dataclass(frozen=True, kw_only=True)
class StreamedBatch:
    """Some inputs, one after another.

    Args:
        places: of those that could be read, counted from the first input on.
        unreadable: by place, why an input could not be read.
        inputs: all of them, as they were given; none where the pixels were ready.
    """

    places: list[int]
    unreadable: dict[int, str] = field(default_factory=dict)
    inputs: list[Any] = field(default_factory=list)

    @property
    def seen(self) -> int:
        """How many inputs, with those that could not be read."""
        return len(self.places) + len(self.unreadable)

    def input(self, place: int) -> Any:
        """What was given in a place of this batch."""
        return self.inputs[place - min([*self.places, *self.unreadable])]


@dataclass(frozen=True, kw_only=True)
class PixelBatch(StreamedBatch):
    """Inputs as an encoder takes them.

    Args:
        pixels: of those that could be read, or None where none could; with an expansion that makes V images of each
            input, those of an input one after the other.
    """

    pixels: PixelTensors | None

    def pin_memory(self) -> PixelBatch:
        """The same where a GPU can fetch it while the processor does something else."""
        pinned = self.pixels and {name: value.pin_memory() for name, value in self.pixels.items()}
        return replace(self, pixels=pinned)


@dataclass(frozen=True, kw_only=True)
class EncodedBatch(StreamedBatch):
    """Inputs as the encoder leaves them.

    Args:
        features: [n] of the n inputs that could be read, or [n * V]; no rows where none could.
    """

    features: Features


def stream_features(
    adapter: Adapter,
    inputs: ImageInputs,
    *,
    batch_size: int = 64,
    workers: int | None = None,
    strict: bool = False,
    expansion: Expansion | None = None,
    label: str = "inputs",
    total: int | None = None,
) -> Generator[EncodedBatch, None, None]:
    """The features of images from any iterable, in order, a batch at a time, in memory that does not grow.

    Files are read, decoded and made ready by worker processes, while the encoder runs on the batch before. The iterable
    itself is consumed in this process, up to two batches per worker ahead.

    Ready pixels are taken as they are: an input that is a mapping with "pixel_values", which is what image processors
    of `transformers` return, of one image or of a batch. So a DataLoader of one's own works; where it gives bare
    tensors, as with open_clip's preprocessing, wrap them: `({"pixel_values": batch} for batch in loader)`. Any other
    array or tensor is an image, or a 4-D batch of images, of uint8 or of floats in 0..1.

    Args:
        adapter: the model.
        inputs: one image or an iterable: paths, bytes of image files, opened files, PIL images, arrays, tensors, ready
            pixels, or objects that have `.image` and `.name`.
        batch_size: how many images go through the model at once.
        workers: processes that read; 0 has threads do it, None chooses (see `bayesvlm.images.workers.choose_workers`).
        strict: an input that cannot be read is an error.
        expansion: makes several images of each.
        label: what the inputs are called in errors.
        total: how many images there are, where the iterable does not know and the caller does.

    Yields:
        Batches; every input is in one of them, by the place it has, as read or as unreadable.

    Raises:
        BayesVLMError: when an input cannot be read and `strict` is set, or a worker process ends too soon.
    """
    options: dict[str, Any] = {"batch_size": batch_size, "workers": workers, "expansion": expansion, "label": label}
    options["total"] = total
    nothing: Features | None = None
    for batch in stream_pixels(adapter.preprocessor, inputs, pin=adapter.device.type == "cuda", **options):
        if strict and batch.unreadable:
            raise BayesVLMError(batch.unreadable[min(batch.unreadable)])
        if batch.pixels is not None:
            features = adapter.encode_pixels(batch.pixels)
        else:
            features = nothing = nothing or adapter.encode_pixels(adapter.preprocessor.blank)[:0]
        yield EncodedBatch(features=features, places=batch.places, unreadable=batch.unreadable, inputs=batch.inputs)


def stream_pixels(
    preprocessor: Preprocessor,
    inputs: ImageInputs,
    *,
    batch_size: int = 64,
    workers: Workers | None = None,
    expansion: Expansion | None = None,
    label: str = "inputs",
    total: int | None = None,
    pin: bool = False,
) -> Generator[PixelBatch, None, None]:
    """What an encoder takes for images from any iterable; `stream_features` without the encoder.

    Args:
        pin: put the pixels where a GPU can fetch them by itself.
    """
    check_count("batch_size", batch_size)
    if workers is not None and not isinstance(workers, Pool):
        check_count("workers", workers, least=0)
    given = as_inputs(inputs)
    remaining = iter(given)
    for first in remaining:
        everything = chain([first], remaining)
        if _is_ready(first):
            yield from _ready_batches(everything, preprocessor, batch_size, label)
            return
        if workers is None:
            count = len(given) if total is None and isinstance(given, Sized) else total
            stored = isinstance(getattr(first, "image", first), str | os.PathLike | bytes)
            workers = choose_workers(count, batch_size * preprocessor.bytes) if stored else 0
        preparing = _Preparing(preprocessor, expansion)
        size = max(1, batch_size // (expansion.count if expansion else 1))
        tasks = _tasks(everything, label, preparing, to_processes=in_other_processes(workers))
        yield from _read_batches(_of_size(tasks, size), preparing, workers, pin)


def stream_pixel_batches(
    preprocessor: Preprocessor, batches: Iterable[Iterable[Any]], *, workers: Workers, label: str = "inputs", pin: bool
) -> Generator[PixelBatch, None, None]:
    """The same for inputs that are in batches already, which stay as they are; one may be empty.

    Args:
        batches: of objects that have `.image` and `.name`, or of anything else that is read; a few are taken ahead.
    """
    preparing = _Preparing(preprocessor, None)

    def begun() -> Iterator[list[tuple[Any, _Task]]]:
        place = 0
        for batch in batches:
            tasks = list(_tasks(batch, label, preparing, to_processes=in_other_processes(workers), place=place))
            place += len(tasks)
            yield tasks

    yield from _read_batches(begun(), preparing, workers, pin)


# Reading, in threads or in worker processes ---------------------------------------------------------------------------


@dataclass(frozen=True)
class _Task:
    """One input on its way to who reads it."""

    place: int
    image: ImageLike | BayesVLMError  # why it could not be sent
    label: str  # what to call it in an error
    key: str  # what to call it in an expansion


@dataclass(frozen=True)
class _Prepared:
    """What became of an input: pixels, or the reason why there are none."""

    place: int
    pixels: PixelTensors | None = None
    unreadable: str | None = None
    failure: str | None = None  # which is not the input's


@dataclass(frozen=True)
class _Preparing:
    """From an input to pixels; worker processes have a copy."""

    preprocessor: Preprocessor
    expansion: Expansion | None

    def __call__(self, task: _Task) -> _Prepared:
        try:
            return _Prepared(task.place, self._pixels(task))
        except BayesVLMError as error:
            return _Prepared(task.place, unreadable=str(error))
        except Exception as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            return _Prepared(task.place, failure=f"{task.label} was read, but not made ready for the model ({reason}).")

    def read(self, image: ImageLike, label: str) -> Image.Image:
        """In RGB: as large as it is where it is to be expanded, as small as the model looks at it else."""
        return self.preprocessor.read(image, label) if self.expansion is None else to_rgb(image, label)

    def _pixels(self, task: _Task) -> PixelTensors:
        if isinstance(task.image, BayesVLMError):
            raise task.image
        image = self.read(task.image, task.label)
        if self.expansion is None:
            return self.preprocessor.to_pixels([image])
        return self.preprocessor.to_pixels([*map(self.preprocessor.shrunk, self.expansion.of(image, task.key))])


def _of_size(items: Iterator[Item], size: int) -> Iterator[list[Item]]:
    while batch := list(islice(items, size)):
        yield batch


def _read_batches(
    batches: Iterable[list[tuple[Any, _Task]]], preparing: _Preparing, workers: Workers, pin: bool
) -> Iterator[PixelBatch]:
    sent: deque[list[Any]] = deque()  # of every batch that was begun, what was given

    def begun() -> Iterator[list[_Task]]:
        for batch in batches:
            sent.append([given for given, _ in batch])
            yield [task for _, task in batch]

    for made in in_order(begun(), preparing, _Made.of, workers, pin):
        if made.failure is not None:
            raise BayesVLMError(made.failure)
        yield replace(made, inputs=sent.popleft())


@dataclass(frozen=True, kw_only=True)
class _Made(PixelBatch):
    """A batch as a worker gives it back."""

    failure: str | None = None  # which is no input's fault

    @classmethod
    def of(cls, prepared: list[_Prepared]) -> _Made:
        rows = [each.pixels for each in prepared if each.pixels is not None]
        return cls(
            pixels=_concatenated(rows) if rows else None,
            places=[each.place for each in prepared if each.pixels is not None],
            unreadable={each.place: each.unreadable for each in prepared if each.unreadable is not None},
            failure=next((each.failure for each in prepared if each.failure is not None), None),
        )


def _tasks(
    inputs: Iterable[Any], label: str, preparing: _Preparing, to_processes: bool, place: int = 0
) -> Iterator[tuple[Any, _Task]]:
    """Every image with what is to be done, as it was given; the first one has this place."""
    for given in inputs:
        if _is_ready(given):
            raise BayesVLMError(
                f"{label}[{place}] holds ready pixels, and those before it are images; pass one kind only."
            )
        several = isinstance(given, np.ndarray | Tensor) and given.ndim == 4
        for one in given if several else [given]:
            image, key = (one.image, one.name) if isinstance(one, Stored) else (one, f"{label}[{place}]")
            called = "image" if image is not one and isinstance(image, Path) else key
            yield one, _Task(place, _sendable(image, called, preparing, to_processes), called, key)
            place += 1


def _sendable(
    image: ImageLike | BayesVLMError, label: str, preparing: _Preparing, to_processes: bool
) -> ImageLike | BayesVLMError:
    """An input as it can be given to others: what its owner may change is copied, what does not pickle is read."""
    if isinstance(image, BayesVLMError):
        return image
    try:
        if isinstance(image, np.ndarray | Tensor):
            return preparing.read(image, label)
        if not to_processes or isinstance(image, str | bytes):
            return image
        if isinstance(image, os.PathLike):
            return os.fspath(image)
        if isinstance(image, bytearray | memoryview):
            return bytes(image)
        return read_stream(image, label) if isinstance(image, Readable) else preparing.read(image, label)
    except BayesVLMError as error:
        return error


# Ready pixels ---------------------------------------------------------------------------------------------------------


def _is_ready(given: Any) -> bool:
    return isinstance(given, Mapping) and PIXEL_VALUES in given


def _ready_batches(
    inputs: Iterable[Any], preprocessor: Preprocessor, batch_size: int, label: str
) -> Iterator[PixelBatch]:
    """Ready pixels in batches of at most so many images."""
    done = count = 0
    waiting: list[PixelTensors] = []
    for index, given in enumerate(inputs):
        called = f"{label}[{index}]"
        if not _is_ready(given):
            raise BayesVLMError(
                f"{called} is a {type(given).__name__}, and those before it are ready pixels; pass one kind only."
            )
        ready = preprocessor.ready(given, called)
        for start in range(0, len(ready[PIXEL_VALUES]), batch_size):
            part = {name: value[start : start + batch_size] for name, value in ready.items()}
            rows = len(part[PIXEL_VALUES])
            if count + rows > batch_size:
                yield PixelBatch(pixels=_concatenated(waiting), places=[*range(done, done + count)])
                done, count, waiting = done + count, 0, []
            waiting.append(part)
            count += rows
    if waiting:
        yield PixelBatch(pixels=_concatenated(waiting), places=[*range(done, done + count)])


def _concatenated(rows: list[PixelTensors]) -> PixelTensors:
    if len(rows) == 1:
        return rows[0]
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
