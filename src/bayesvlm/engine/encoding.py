"""Features of any number of images, in order: decoded by tasks, encoded by actors that hold the model."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any, TypeVar

import torch

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.engine.cluster import Resources
from bayesvlm.engine.decoding import Preparation, begun_ahead
from bayesvlm.images.decoding import ImageInputs
from bayesvlm.models.adapter import Adapter
from bayesvlm.models.streaming import EncodedBatch, Expansion, PixelBatch, stream_pixels

Item = TypeVar("Item")
Made = TypeVar("Made")


class RayEncoder:
    """`bayesvlm.models.streaming.stream_features` on a cluster: the same batches, so the same features.

    Images that are given as paths are read where they are decoded, so every node must see them under that path; bytes
    of images travel from this process. Ready pixels go from where they are made to the actor that takes them.

    Args:
        adapter: the model; the actors get it from here, so that they need not find it themselves.
        resources: of the cluster this process is connected to.
    """

    def __init__(self, adapter: Adapter, resources: Resources) -> None:
        import ray

        self.preprocessor, self.resources = adapter.preprocessor, resources
        model = ray.put(adapter.to(torch.device("cpu")))
        actor = ray.remote(max_restarts=-1, max_task_retries=-1, **resources.of_actor)(_Encoder)
        self._actors = deque(actor.remote(model, resources.device) for _ in range(resources.actors))
        self._task = ray.remote(num_cpus=resources.decode_cpus)(_prepared)

    def stream(
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
        encoded again by another.
        """
        batches = stream_pixels(
            self.preprocessor,
            inputs,
            batch_size=batch_size,
            expansion=expansion,
            label=label,
            total=total,
            in_order=self._in_order,
        )
        with closing(batches):
            for batch in batches:
                if strict and batch.unreadable:
                    raise BayesVLMError(batch.unreadable[min(batch.unreadable)])
                features = Features(**batch.pixels) if batch.pixels is not None else self._nothing
                yield EncodedBatch(
                    features=features, places=batch.places, unreadable=batch.unreadable, inputs=batch.inputs
                )

    def close(self) -> None:
        """End the actors."""
        import ray

        for actor in self._actors:
            ray.kill(actor)
        self._actors.clear()

    def _in_order(
        self,
        batches: Iterable[list[Item]],
        prepare: Callable[[Item], Made],
        collate: Callable[[list[Made]], PixelBatch],
    ) -> Iterator[PixelBatch]:
        """Every batch with the features in the place of its pixels."""
        import ray

        preparation = ray.put(Preparation(prepare, collate))

        def begin(items: list[Item]) -> Any:
            self._actors.rotate(-1)
            return self._actors[0].encoded.remote(self._task.remote(preparation, items))

        ahead = self.resources.ahead * self.resources.actors
        for encoded in begun_ahead(batches, begin, ahead):
            yield ray.get(encoded)
