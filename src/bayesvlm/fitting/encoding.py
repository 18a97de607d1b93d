"""Both towers on batches of pairs: one batch after another, or, on a GPU, with the next ones in its queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch

from bayesvlm.core.features import Features
from bayesvlm.core.finite import Checks, checked_later
from bayesvlm.fitting.stages import IMAGES, TEXTS, WAITING, Stages
from bayesvlm.models.preprocessing import PixelTensors
from bayesvlm.models.streaming import PixelBatch
from bayesvlm.plain import PlainVLM

_AHEAD = 2  # batches in a GPU's queue beyond the one that is waited for


class EncodedPairs(NamedTuple):
    """A batch of pairs after both towers.

    Attributes:
        images, texts: rows belong together; None where no image of the batch could be read.
    """

    batch: PixelBatch
    images: Features | None
    texts: Features | None


def encoded_pairs(
    vlm: PlainVLM, batches: Iterator[PixelBatch], stages: Stages, *, ahead: bool
) -> Generator[EncodedPairs, None, None]:
    """Every batch, encoded, in order.

    Args:
        ahead: begin with the next batches before the features of one are waited for and checked. What is encoded
            together is the same, and so is the result.
    """
    queue = _Queue(vlm, stages)
    waiting: deque[_Begun] = deque()
    while True:
        with stages(WAITING):
            batch = next(batches, None)
        if batch is not None:
            waiting.append(queue.begin(batch))
        while waiting and (batch is None or len(waiting) > ahead * _AHEAD):
            yield queue.finish(waiting.popleft())
        if batch is None:
            return


class _Begun(NamedTuple):
    pairs: EncodedPairs
    checks: Checks


class _Queue:
    """Batches on their way through both towers.

    One thread hands a GPU its work: Python lets one thread run at a time, and two that launch hundreds of kernels each
    mostly wait for one another (a fit took 1.4 times as long that way). Images, texts and copies of pixels have streams
    of their own: they run beside one another, and what the text tower waits for is not the image tower.
    """

    def __init__(self, vlm: PlainVLM, stages: Stages) -> None:
        self._vlm, self._stages = vlm, stages
        self._encoder = vlm.encoder("images")
        self._cuda = vlm.device.type == "cuda"
        if self._cuda:
            self._copies, self._images, self._texts = (_stream(vlm.device) for _ in range(3))

    def begin(self, batch: PixelBatch) -> _Begun:
        if batch.pixels is None:
            return _Begun(EncodedPairs(batch, None, None), Checks())
        captions = [batch.input(place).text for place in batch.places]
        with checked_later() as checks:
            with self._stages(IMAGES):
                pixels = self._placed(batch.pixels)
                with self._on("_images"):
                    images = self._encoder.encode_pixels(pixels)
            with self._stages(TEXTS), self._on("_texts"):
                texts = self._vlm.text_features(captions, progress=False)
        return _Begun(EncodedPairs(batch, images, texts), checks)

    def finish(self, begun: _Begun) -> EncodedPairs:
        with self._stages(IMAGES):
            begun.checks.made()
        if self._cuda and begun.pairs.images is not None and begun.pairs.texts is not None:
            current = torch.cuda.current_stream(self._vlm.device)  # which reads what another stream made
            for tensor in (*begun.pairs.images.tensors().values(), *begun.pairs.texts.tensors().values()):
                tensor.record_stream(current)
        return begun.pairs

    def _placed(self, pixels: PixelTensors) -> PixelTensors:
        if not self._cuda:
            return pixels
        with self._on("_copies"):
            placed = self._encoder.placed(pixels)
        self._images.wait_stream(self._copies)
        for tensor in placed.values():
            tensor.record_stream(self._images)
        return placed

    def _on(self, name: str) -> AbstractContextManager[Any]:
        return torch.cuda.stream(getattr(self, name)) if self._cuda else nullcontext()


def _stream(device: torch.device) -> torch.cuda.Stream:
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))  # where the weights may still be on their way
    return stream
