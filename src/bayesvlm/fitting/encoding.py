"""Both towers on batches of pairs: one batch after another, or, on a GPU, with the next ones in its queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from bayesvlm.core.features import Features
from bayesvlm.core.finite import Checks, checked_later
from bayesvlm.fitting.stages import IMAGES, TEXTS, WAITING, Stages
from bayesvlm.models.preprocessing import PixelTensors
from bayesvlm.models.streaming import PixelBatch
from bayesvlm.plain import PlainVLM

_AHEAD = 2  # batches in a GPU's queue beyond the one that is waited for
_TEXTS = 4  # batches of images whose texts are encoded together: a text is little work, launching it is as much as ever

Of = TypeVar("Of")


class EncodedPairs(NamedTuple, Generic[Of]):
    """A batch of pairs after both towers.

    Attributes:
        of: what came with the batch.
        images, texts: rows belong together; None where no image of the batch could be read.
    """

    batch: PixelBatch
    of: Of
    images: Features | None
    texts: Features | None


def encoded_pairs(
    vlm: PlainVLM,
    batches: Iterator[PixelBatch],
    of: Callable[[], Of],
    closes: Callable[[Of], bool],
    stages: Stages,
    *,
    ahead: bool,
) -> Generator[EncodedPairs[Of], None, None]:
    """Every batch, encoded, in order.

    Args:
        of: asked once for every batch, when it comes, for what is handed on with it.
        closes: whether the texts of what comes later are not encoded together with those of this batch.
        ahead: begin with the next batches before the features of one are waited for and checked. What is encoded
            together is the same, and so is the result.
    """
    queue = _Queue(vlm, stages)
    waiting: deque[_Begun[Of]] = deque()
    while True:
        with stages(WAITING):
            batch = next(batches, None)
        if batch is not None:
            waiting.append(queue.begin(batch, of()))
        untold = [begun for begun in waiting if begun.texts is None]
        if untold and (batch is None or len(untold) == _TEXTS or closes(untold[-1].of)):
            queue.add_texts(untold)
        while waiting and waiting[0].texts is not None and (batch is None or len(waiting) > ahead * _AHEAD):
            yield queue.finish(waiting.popleft())
        if batch is None:
            return


@dataclass
class _Begun(Generic[Of]):
    """A batch in a GPU's queue; its texts follow, unless it has none."""

    batch: PixelBatch
    of: Of
    images: Features | None
    checks: list[Checks]
    texts: Sequence[Features] | None = None  # one, or none where no image could be read


class _Queue:
    """Batches on their way through both towers.

    One thread hands a GPU its work: Python lets one thread run at a time, and of two that launch hundreds of kernels
    each waits for the other (a batch of texts took 32 ms beside images, 9 alone). Images, texts and copies of pixels
    have streams of their own: they run beside one another, and what the text tower waits for is not the image tower.
    """

    def __init__(self, vlm: PlainVLM, stages: Stages) -> None:
        self._vlm, self._stages = vlm, stages
        self._encoder = vlm.encoder("images")
        self._cuda = vlm.device.type == "cuda"
        if self._cuda:
            self._copies, self._images, self._texts = (_stream(vlm.device) for _ in range(3))

    def begin(self, batch: PixelBatch, of: Of) -> _Begun[Of]:
        if batch.pixels is None:
            return _Begun(batch, of, None, [])
        with checked_later() as checks, self._stages(IMAGES):
            pixels = self._placed(batch.pixels)
            with self._on("_images"):
                images = self._encoder.encode_pixels(pixels)
        return _Begun(batch, of, images, [checks])

    def add_texts(self, begun: Sequence[_Begun[Of]]) -> None:
        """Encode the texts of some batches together."""
        captions = [[each.batch.input(place).text for place in each.batch.places] for each in begun]
        for each in begun:
            each.texts = ()
        if not any(captions):
            return
        with checked_later() as checks, self._stages(TEXTS), self._on("_texts"):
            texts, done = self._vlm.text_features([text for some in captions for text in some], progress=False), 0
            for each, some in zip(begun, captions, strict=True):
                if some:
                    each.texts, done = (texts[done : done + len(some)],), done + len(some)
                    each.checks.append(checks)

    def finish(self, begun: _Begun[Of]) -> EncodedPairs[Of]:
        with self._stages(IMAGES):
            for checks in begun.checks:
                checks.made()
        if begun.images is None or not begun.texts:
            return EncodedPairs(begun.batch, begun.of, None, None)
        (texts,) = begun.texts
        if self._cuda:
            current = torch.cuda.current_stream(self._vlm.device)  # which reads what another stream made
            for tensor in (*begun.images.tensors().values(), *texts.tensors().values()):
                tensor.record_stream(current)
        return EncodedPairs(begun.batch, begun.of, begun.images, texts)

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
