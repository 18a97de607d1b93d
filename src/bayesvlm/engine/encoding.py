"""Features of any number of images, in order: decoded by tasks, encoded by actors that hold the model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.engine.cluster import Resources, end_with_node
from bayesvlm.engine.decoding import Preparation, begun_ahead, prepared, result
from bayesvlm.images.decoding import ImageInputs
from bayesvlm.models.adapter import Adapter
from bayesvlm.models.streaming import EncodedBatch, Expansion, PixelBatch, stream_pixels

Item = TypeVar("Item")
Made = TypeVar("Made")
Batch = TypeVar("Batch")


@contextmanager
def ray_encoder(adapter: Adapter, resources: Resources) -> Iterator[RayEncoder]:
    """Actors that encode, for as long as the block lasts.

    Args:
        adapter: the model; the actors get it from here, so that they need not find it themselves.
        resources: of the cluster that this process is connected to.
    """
    encoder = RayEncoder(adapter, resources)
    try:
        yield encoder
    finally:
        encoder.close()


class RayEncoder:
    """`bayesvlm.models.streaming.stream_features` on a cluster: the same batches in the same order.

    Images that are given as paths are read where they are decoded, so every node must see them under that path; bytes
    of images travel from this process. Ready pixels go from where they are made to the actor that takes them. The
    actors are started when the first image comes.

    Args:
        adapter, resources: as for `ray_encoder`, which ends the actors too.
    """

    def __init__(self, adapter: Adapter, resources: Resources) -> None:
        self.adapter, self.resources = adapter, resources
        self._actors: deque[Any] = deque()
        self._model: Any = None

    @property
    def device(self) -> str:
        """The type of device that the actors compute on."""
        return self.resources.device

    def close(self) -> None:
        """End the actors."""
        import ray

        while self._actors:
            ray.kill(self._actors.pop())
        self._model = None

    def __call__(
        self,
        inputs: ImageInputs,
        *,
        batch_size: int = 64,
        strict: bool = False,
        expansion: Expansion | None = None,
        label: str = "inputs",
        total: int | None = None,
    ) -> Generator[EncodedBatch, None, None]:
        """The features of images from any iterable; arguments as for `stream_features`.

        The iterable is consumed in this process, a few batches per actor ahead. A batch whose actor or node is lost is
        encoded again.
        """
        options: dict[str, Any] = {"batch_size": batch_size, "expansion": expansion, "label": label, "total": total}
        with closing(stream_pixels(self.adapter.preprocessor, inputs, workers=self, **options)) as batches:
            for batch in batches:
                if strict and batch.unreadable:
                    raise BayesVLMError(batch.unreadable[min(batch.unreadable)])
                # pixels that came ready from the caller have been through no task
                found = batch if isinstance(batch, _Encoded) else result(self._next_actor().encode.remote(batch))
                yield EncodedBatch(
                    features=found.features, places=batch.places, unreadable=batch.unreadable, inputs=batch.inputs
                )

    def in_order(
        self,
        batches: Iterable[list[Item]],
        prepare: Callable[[Item], Made],
        collate: Callable[[list[Made]], Batch],
        pin: bool = False,
    ) -> Iterator[Batch]:
        """Every batch, with features in the place of pixels; this is the pool that `stream_pixels` has do its work."""
        import ray

        task = ray.remote(num_cpus=self.resources.decode_cpus)(prepared)
        preparation = ray.put(Preparation(prepare, collate))

        def begin(items: list[Item]) -> Any:
            return self._next_actor().encode.remote(task.remote(preparation, items))

        for encoded in begun_ahead(batches, begin, self.resources.ahead * self.resources.actors):
            yield result(encoded)

    def _next_actor(self) -> Any:
        if not self._actors:
            self._start()
        self._actors.rotate(-1)
        return self._actors[0]

    def _start(self) -> None:
        import ray

        self._model = ray.put(self.adapter.to(torch.device("cpu")))  # kept: an actor that is replaced gets it again
        actor = ray.remote(**self.resources.of_actor)(_Encoder)
        self._actors.extend(actor.remote([self._model], self.device) for _ in range(self.resources.actors))


@dataclass(frozen=True, kw_only=True)
class _Encoded(PixelBatch):
    """A batch whose pixels were encoded and left where that was."""

    pixels: None = None
    features: Features  # [n]
    failure: str | None = None


class _Encoder:
    """What an actor of Ray is: one copy of the model."""

    def __init__(self, model: list[Any], device: str) -> None:
        import ray

        end_with_node()
        adapter: Adapter = ray.get(model[0])
        self.adapter = adapter.to(torch.device(device))
        self.nothing = self.adapter.encode_pixels(self.adapter.preprocessor.blank)[:0].to("cpu")

    def encode(self, batch: PixelBatch) -> _Encoded:
        features = self.nothing
        if batch.pixels is not None:
            features = self.adapter.encode_pixels(batch.pixels).to("cpu")
        return _Encoded(
            features=features,
            places=batch.places,
            unreadable=batch.unreadable,
            failure=getattr(batch, "failure", None),
        )
