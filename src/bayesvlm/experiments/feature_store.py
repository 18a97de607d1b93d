"""Features of data sets and prompts: through the model once, from the cache ever after."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import Any, Protocol

import PIL
import torch
import transformers
from PIL import Image
from torch import Tensor

from bayesvlm.core.blocks import row_blocks
from bayesvlm.core.errors import BayesVLMError, check_count
from bayesvlm.core.estimation import Tower
from bayesvlm.core.features import Features
from bayesvlm.core.printing import described
from bayesvlm.data.cache import Encode, Entry, FeatureCache, Part, tensor_fingerprint
from bayesvlm.data.distortion import Distortion
from bayesvlm.data.labelled.renamed import Renamed, images_of, relabelled
from bayesvlm.data.labelled.samples import LabelledSet, Sample, check_labels
from bayesvlm.data.pairs import PairSet
from bayesvlm.data.views import Views
from bayesvlm.images.decoding import heif_version
from bayesvlm.images.files import SkippedImages, Stored
from bayesvlm.models.adapter import Adapter
from bayesvlm.models.preprocessing import PixelTensors
from bayesvlm.models.streaming import (
    EncodedBatch,
    Expansion,
    PixelBatch,
    StreamedBatch,
    stream_features,
    stream_pixels,
)
from bayesvlm.progress import progress_bar
from bayesvlm.prompts import ClassPrompts
from bayesvlm.vlm import BayesVLM

SCHEMA = 2  # of this module: raise it when the same inputs come to give other features
_PART = 4096  # images, or as many views, that an interrupted run loses at most
_IMAGES = 256  # images, or views, that go through the model at once,
_PAIRS = 64  # and pairs


@dataclass(frozen=True)
class EncodedSet:
    """A labelled set as the towers see it."""

    features: Features  # [N], or [N * V]: the views of each image one after the other
    labels: Tensor  # [N]
    keys: Sequence[str]  # [N], which images they are
    skipped: Mapping[str, str]  # what could not be read, and why
    fingerprint: str  # of the data

    __repr__ = described


class StreamImages(Protocol):
    """The features of images from any iterable, in order, a batch at a time, as `stream_features` gives them."""

    def __call__(
        self, inputs: Any, *, batch_size: int, expansion: Expansion | None = None, total: int | None = None
    ) -> Generator[EncodedBatch, None, None]: ...


class ImageEncoder(StreamImages, Protocol):
    """The same from elsewhere."""

    @property
    def device(self) -> str:
        """The type of the devices it computes on: others give other roundings."""


class FeatureStore:
    """The features of a model's inputs: from its encoder the first time, from a cache ever after.

    Args:
        vlm: the model; its posterior is not used.
        cache: where features are kept; None keeps none.
        workers: processes that read images, see `bayesvlm.models.streaming.stream_features`; None chooses.
        images: what encodes images, such as `bayesvlm.engine.RayEncoder`; None: this process, as it does texts and
            pairs in any case.
    """

    def __init__(
        self,
        vlm: BayesVLM,
        cache: FeatureCache | None = None,
        workers: int | None = None,
        images: ImageEncoder | None = None,
    ) -> None:
        if vlm.adapter is None:
            raise BayesVLMError("This model has projections only and no encoder; load one with from_pretrained.")
        self.vlm, self.adapter, self.cache, self.workers = vlm, vlm.adapter, cache, workers
        self.stream: StreamImages = images or partial(stream_features, self.adapter, workers=workers)
        self._image_device = self.adapter.device.type if images is None else images.device
        self._fingerprints: list[tuple[LabelledSet | PairSet, str]] = []

    def fingerprint(self, data: LabelledSet | PairSet) -> str:
        """Of a set, hashed once: it takes reading all of its files."""
        for known, fingerprint in self._fingerprints:
            if known is data:
                return fingerprint
        made = data.fingerprint(self.fingerprint(data.renamed)) if isinstance(data, Renamed) else data.fingerprint()
        self._fingerprints.append((data, made))
        return made

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything but the data that decides the features: weights, architecture, preprocessing, versions."""
        adapter: Adapter = self.adapter
        return {
            "schema": SCHEMA,
            "weights": tensor_fingerprint(adapter.model.state_dict().items()),
            "architecture": adapter.architecture(),
            "preprocessing": adapter.preprocessing(),
            "dtype": str(adapter.dtype),
            "device": adapter.device.type,
            "versions": {
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "pillow": PIL.__version__,
                "pillow_heif": heif_version(),
            },
        }

    @property
    def image_identity(self) -> dict[str, Any]:
        """The same for images, which may be encoded elsewhere."""
        return {**self.identity, "device": self._image_device}

    def images(self, data: LabelledSet, views: Views | None = None) -> EncodedSet:
        """Features of a labelled set, or of random views of its images, with a progress bar."""
        found = self.unlabelled(data, views)
        check_labels(found.labels.tolist(), data.classes, data.name)
        return found

    def unlabelled(self, data: LabelledSet, views: Views | None = None) -> EncodedSet:
        """The same of a set whose labels need not mean anything, one or none of them among its classes."""
        key = self._image_key(data, views)
        rows = _PART if views is None else max(1, _PART // views.count)
        entry = self._collect(key, lambda start: self._parts(images_of(data), views, start), rows)
        labels = relabelled(data, entry.tensors["labels"])
        if data.skipped.strict and entry.notes["skipped"]:  # found when it was encoded, by a caller who did not mind
            raise BayesVLMError(entry.notes["skipped"][0][1])
        return EncodedSet(
            _features(entry.tensors),
            labels,
            entry.notes["keys"],
            {**data.skipped.reasons, **dict(entry.notes["skipped"])},
            self.fingerprint(data),
        )

    def keeps(self, data: LabelledSet, views: Views | None = None) -> bool:
        """Whether the features of a set are in the cache already."""
        return self.cache is not None and self.cache.get(self._image_key(data, views)) is not None

    def texts(self, prompts: Sequence[str]) -> Features:
        """Features of prompts."""
        key = {**self.identity, "prompts": list(prompts)}

        def parts(start: int) -> Iterator[Part]:
            left = list(prompts)[start:]
            with progress_bar("Encoding texts", total=len(left), unit="texts") as advance:
                for rows in row_blocks(max(len(left), 1), 1, _PART):
                    block = left[rows]
                    yield Part(_tensors(self.adapter.encode_texts(block, progress=False)), {}, len(block))
                    advance(len(block))

        return _features(self._collect(key, parts, _PART).tensors)

    def classes(self, asked: ClassPrompts) -> Features:  # [C]
        """Features of classes, of all prompts of each as one row."""
        if asked.single:
            return self.texts(asked.texts)
        key = {**self.identity, "prompts": list(asked.texts), "groups": list(asked.groups)}

        def parts(start: int) -> Iterator[Part]:
            yield Part(_tensors(self.adapter.encode_classes(asked)[start:]), {}, len(asked))

        return _features(self._collect(key, parts).tensors)

    def pairs(
        self, data: PairSet, limit: int | None = None, distortion: Distortion | None = None
    ) -> tuple[Features, Features]:
        """Features of image-text pairs, row i belongs to row i.

        Args:
            limit: how many pairs, from the first; None takes all.
            distortion: what is done to every image before it is encoded.
        """
        if limit is not None:
            check_count("limit", limit)
        images = self._tower_of_pairs("image", data, limit, distortion)
        texts = self._tower_of_pairs("text", data, limit, None)
        if len(images) != len(texts):  # one of them from the cache, and other images can be read today
            raise BayesVLMError(
                f"There are {len(images)} images and {len(texts)} texts of the same pairs, so the data have changed "
                "since some were encoded; put back what is missing, or name another cache with BAYESVLM_CACHE."
            )
        return images, texts

    def keeps_pairs(self, data: PairSet, limit: int | None = None, distortion: Distortion | None = None) -> bool:
        """Whether the features of pairs are in the cache already."""
        keys = self._pair_key("image", data, limit, distortion), self._pair_key("text", data, limit, None)
        return self.cache is not None and all(self.cache.get(key) is not None for key in keys)

    def _image_key(self, data: LabelledSet, views: Views | None) -> dict[str, Any]:
        return {
            **self.image_identity,
            "data": self.fingerprint(images_of(data)),
            "views": None if views is None else vars(views),
        }

    def _pair_key(
        self, tower: Tower, data: PairSet, limit: int | None, distortion: Distortion | None
    ) -> dict[str, Any]:
        key = {**self.identity, "pairs": self.fingerprint(data), "limit": limit, "tower": tower}
        return key if distortion is None else {**key, "distortion": vars(distortion)}

    def _tower_of_pairs(
        self, tower: Tower, data: PairSet, limit: int | None, distortion: Distortion | None
    ) -> Features:
        key = self._pair_key(tower, data, limit, distortion)
        what = "" if distortion is None else f", {distortion.kind} {distortion.level:g}"
        total = limit if data.size is None else min(data.size, limit or data.size)

        expansion = None if distortion is None else _Distorted(distortion)

        def parts(start: int) -> Iterator[Part]:
            seen = 0  # pairs that can be read
            with (
                progress_bar(f"Encoding {tower}s of pairs{what}", total=total, unit=f"{tower}s") as advance,
                closing(self._pixels(data.stored(), _PAIRS, expansion, data.size)) as batches,
            ):
                for batch in batches:
                    note_unreadable(batch, data.skipped)
                    first, seen = seen, seen + len(batch.places)
                    rows = slice(max(start - first, 0), None if limit is None else max(limit - first, 0))
                    chosen = batch.places[rows]
                    advance(len(batch.places))
                    if chosen:
                        texts = [batch.input(place).text for place in chosen]
                        yield Part(self._encode_tower(tower, batch.pixels or {}, rows, texts), {}, len(chosen))
                    if limit is not None and seen >= limit:
                        break
            if seen == 0:
                raise BayesVLMError("There is no pair whose image can be read; look at the data, or name other pairs.")

        return _features(self._collect(key, parts, _PART).tensors)

    def _pixels(
        self, inputs: Iterable[Stored], batch_size: int, expansion: Expansion | None, total: int | None
    ) -> Generator[PixelBatch, None, None]:
        return stream_pixels(
            self.adapter.preprocessor,
            inputs,
            batch_size=batch_size,
            workers=self.workers,
            expansion=expansion,
            total=None if total is None else total * (expansion.count if expansion else 1),
            pin=self.adapter.device.type == "cuda",
        )

    def _encode_tower(self, tower: Tower, pixels: PixelTensors, rows: slice, texts: list[str]) -> dict[str, Tensor]:
        """Of these rows of a batch of pixels, or of their texts."""
        if tower == "text":
            return _tensors(self.adapter.encode_texts(texts, progress=False))
        return _tensors(self.adapter.encode_pixels({name: value[rows] for name, value in pixels.items()}))

    def _collect(self, key: Mapping[str, Any], parts: Encode, rows: int = _PART) -> Entry:
        if self.cache is not None:
            return self.cache.collect(key, parts, rows)
        made = list(parts(0))
        tensors = {name: torch.cat([part.tensors[name] for part in made]) for name in made[0].tensors}
        notes = {name: [note for part in made for note in part.notes[name]] for name in made[0].notes}
        return Entry(tensors, notes)

    def _parts(self, data: LabelledSet, views: Views | None, start: int) -> Iterator[Part]:
        what = f"Encoding {data.name}" + (f", {views.count} views of each" if views else "")
        with progress_bar(what, total=None if data.size is None else data.size - start, unit="images") as advance:
            noted = set(data.skipped.unlisted)  # what lies beside the images is no part of their features
            unread, tensors = 0, None  # samples since the last part that gave no image

            def notes(keys: list[str]) -> dict[str, list[Any]]:
                fresh = [[name, why] for name, why in data.skipped.reasons.items() if name not in noted]
                noted.update(name for name, _ in fresh)
                return {"keys": keys, "skipped": fresh}

            total = None if data.size is None else data.size * (views.count if views else 1)
            for batch in self.stream(islice(data, start, None), batch_size=_IMAGES, expansion=views, total=total):
                note_unreadable(batch, data.skipped)
                unread += batch.seen
                if batch.places:
                    samples: list[Sample] = [batch.input(place) for place in batch.places]
                    tensors = _labelled(batch.features, [sample.label for sample in samples], views)
                    yield Part(tensors, notes([sample.name for sample in samples]), unread)
                    unread = 0
                advance(batch.seen)
            if tensors is not None:
                yield Part({name: value[:0] for name, value in tensors.items()}, notes([]), unread)
            elif start == 0:
                check_labels([], data.classes, data.name)
            else:
                yield Part({}, notes([]), unread)


def _labelled(features: Features, labels: list[int], views: Views | None) -> dict[str, Tensor]:
    """Features of a batch, [n, ...], or of its views, [n, V, ...], which share one call of the encoder."""
    tensors = _tensors(features)
    if views is not None:
        tensors = {name: value.reshape(len(labels), views.count, -1) for name, value in tensors.items()}
    return {**tensors, "labels": torch.tensor(labels, dtype=torch.int64)}


@dataclass(frozen=True)
class _Distorted:
    """One distorted image in the place of each."""

    distortion: Distortion
    count: int = 1

    def of(self, image: Image.Image, key: str) -> Iterator[Image.Image]:
        yield self.distortion(image)


def note_unreadable(batch: StreamedBatch, skipped: SkippedImages) -> None:
    """Remember the inputs of a batch that could not be read, by their names; with `strict`, raise the first."""
    for place, why in batch.unreadable.items():
        skipped.note(batch.input(place).name, BayesVLMError(why))


def _tensors(features: Features) -> dict[str, Tensor]:
    return {name: value.cpu() for name, value in features.tensors().items()}


def _features(tensors: Mapping[str, Tensor]) -> Features:
    """From [N, p], or from [N, V, p]."""
    named = {name: value.flatten(0, -2) for name, value in tensors.items() if name != "labels"}
    return Features(**named)
