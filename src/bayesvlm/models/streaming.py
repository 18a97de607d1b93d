"""Features of any number of images, a batch at a time: read and made ready by workers while the encoder runs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
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
from bayesvlm.images.workers import choose_workers, in_order
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


@dataclass(frozen=True)
class EncodedBatch:
    """Some inputs, one after another: the features of those that could be read.

    Args:
        features: [n]; with an expansion that makes V images of each, [n * V], those of an input one after the other.
        places: [n], of the inputs these belong to, counted from the first input on.
        unreadable: by place, why an input could not be read.
    """

    features: Features
    places: list[int]
    unreadable: dict[int, str] = field(default_factory=dict)

    @property
    def seen(self) -> int:
        """How many inputs, with those that could not be read."""
        return len(self.places) + len(self.unreadable)


def stream_features(
    adapter: Adapter,
    inputs: ImageInputs,
    *,
    batch_size: int = 64,
    workers: int | None = None,
    strict: bool = False,
    expansion: Expansion | None = None,
    label: str = "inputs",
) -> Iterator[EncodedBatch]:
    """The features of images from any iterable, in order, a batch at a time, in memory that does not grow.

    Files are read, decoded and made ready by worker processes, while the encoder runs on the batch before. The iterable
    itself is consumed in this process, up to three batches per worker ahead.

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

    Yields:
        Batches; every input is in one of them, by the place it has, as read or as unreadable.

    Raises:
        BayesVLMError: when an input cannot be read and `strict` is set, or a worker process ends too soon.
    """
    check_count("batch_size", batch_size)
    if workers is not None:
        check_count("workers", workers, least=0)
    given = as_inputs(inputs)
    remaining = iter(given)
    for first in remaining:
        everything = chain([first], remaining)
        if _is_ready(first):
            batches = _ready_batches(everything, adapter.preprocessor, batch_size, label)
        else:
            if workers is None:
                stored = isinstance(getattr(first, "image", first), str | os.PathLike | bytes)
                workers = choose_workers(given, batch_size * adapter.preprocessor.bytes) if stored else 0
            preparing = _Preparing(adapter.preprocessor, expansion)
            tasks = _tasks(everything, label, preparing, workers > 0)
            batches = in_order(
                _grouped(tasks, batch_size // (expansion.count if expansion else 1)),
                preparing,
                PixelBatch.of,
                workers,
                pin=adapter.device.type == "cuda",
            )
        yield from _encoded(adapter, batches, strict)


def _encoded(adapter: Adapter, batches: Iterable[PixelBatch], strict: bool) -> Iterator[EncodedBatch]:
    nothing: Features | None = None
    for batch in batches:
        if batch.failure is not None:
            raise BayesVLMError(batch.failure)
        if strict and batch.unreadable:
            raise BayesVLMError(batch.unreadable[min(batch.unreadable)])
        if batch.pixels is not None:
            features = adapter.encode_pixels(batch.pixels)
        else:
            features = nothing = nothing or adapter.encode_pixels(adapter.preprocessor.blank)[:0]
        yield EncodedBatch(features, batch.places, batch.unreadable)


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
class PixelBatch:
    """Some inputs, one after another, as the encoder takes them.

    Args:
        pixels: of those that could be read, or None where none could.
        places: of those.
        unreadable: by place, why an input could not be read.
        failure: what went wrong that is no input's fault.
    """

    pixels: PixelTensors | None
    places: list[int]
    unreadable: dict[int, str] = field(default_factory=dict)
    failure: str | None = None

    @classmethod
    def of(cls, prepared: list[_Prepared]) -> PixelBatch:
        """Inputs put together."""
        rows = [each.pixels for each in prepared if each.pixels is not None]
        return cls(
            _concatenated(rows) if rows else None,
            [each.place for each in prepared if each.pixels is not None],
            {each.place: each.unreadable for each in prepared if each.unreadable is not None},
            next((each.failure for each in prepared if each.failure is not None), None),
        )

    def pin_memory(self) -> PixelBatch:
        """The same where a GPU can fetch it while the processor does something else."""
        pinned = self.pixels and {name: value.pin_memory() for name, value in self.pixels.items()}
        return replace(self, pixels=pinned)


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


def _tasks(inputs: Iterable[Any], label: str, preparing: _Preparing, to_processes: bool) -> Iterator[_Task]:
    place = 0
    for given in inputs:
        if _is_ready(given):
            raise BayesVLMError(
                f"{label}[{place}] holds ready pixels, and those before it are images; pass one kind only."
            )
        several = isinstance(given, np.ndarray | Tensor) and given.ndim == 4
        for image in given if several else [given]:
            if isinstance(image, Stored):
                called, key = "image" if isinstance(image.image, Path) else image.name, image.name
                image = image.image
            else:
                called = key = f"{label}[{place}]"
            yield _Task(place, _sendable(image, called, preparing, to_processes), called, key)
            place += 1


def _sendable(image: ImageLike, label: str, preparing: _Preparing, to_processes: bool) -> ImageLike | BayesVLMError:
    """An input as it can be given to others: what its owner may change is copied, what does not pickle is read."""
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


def _grouped(tasks: Iterable[_Task], size: int) -> Iterator[list[_Task]]:
    remaining = iter(tasks)
    while group := list(islice(remaining, max(1, size))):
        yield group


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
                yield PixelBatch(_concatenated(waiting), [*range(done, done + count)])
                done, count, waiting = done + count, 0, []
            waiting.append(part)
            count += rows
    if waiting:
        yield PixelBatch(_concatenated(waiting), [*range(done, done + count)])


def _concatenated(rows: list[PixelTensors]) -> PixelTensors:
    if len(rows) == 1:
        return rows[0]
    return {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
