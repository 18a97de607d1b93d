"""What every set of image-text pairs is, wherever it lies: decoded images with their texts, batch after batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from bayesvlm.core.errors import BayesVLMError, check_count
from bayesvlm.images.decoding import ImageLike, to_rgb
from bayesvlm.images.files import ReadImage, SkippedImages, decoded_batches, read_stored

Source = TypeVar("Source", bound=Hashable)
PairBatches = Iterator[tuple[list[Any], list[str]]]


@dataclass(frozen=True)
class Pair:
    """One image as it is stored, its text, and what to call the image when it cannot be read.

    Args:
        image: or the reason why there is none to be used.
    """

    name: str
    image: ImageLike | BayesVLMError
    text: str


@runtime_checkable
class PairSet(Protocol):
    """Pairs to fit on: `PairFolder`, `PairShards` and `PairDataset` are such sets.

    Attributes:
        skipped: what could not be read, filled while iterating.
    """

    @property
    def skipped(self) -> SkippedImages: ...

    @property
    def size(self) -> int | None:
        """How many pairs there are, where that is known before reading them."""

    def __iter__(self) -> PairBatches: ...

    def stored(self) -> Iterator[Pair]:
        """The pairs one after another, nothing decoded; what has no image or no text is noted as skipped."""

    def decoded(self, read: ReadImage) -> PairBatches:
        """The batches, their images as `read` decodes them; several threads call it."""

    def fingerprint(self) -> str:
        """A hash that a resumed fit must find unchanged."""


class StoredPairs:
    """A set of pairs that says what it stores; decoding it is the same for all."""

    batch_size: int
    skipped: SkippedImages

    def stored(self) -> Iterator[Pair]:
        """The pairs one after another, nothing decoded; what has no image or no text is noted as skipped."""
        raise NotImplementedError

    def __iter__(self) -> PairBatches:
        return self.decoded(to_rgb)

    def decoded(self, read: ReadImage) -> PairBatches:
        """The batches, their images as `read` decodes them; one that cannot be is left out with its text, and noted."""
        for batch in decoded_batches(self.stored(), self.skipped, partial(read_stored, read=read), self.batch_size):
            if batch.images:
                yield batch.images, [pair.text for pair in batch.items]


class ListedPairs(StoredPairs):
    """A set of pairs that are listed before any is read, so that each can be had by its row."""

    @property
    def size(self) -> int:
        """The number of pairs listed."""
        raise NotImplementedError

    @property
    def title(self) -> str:
        """What to call them in a sentence."""
        raise NotImplementedError

    def pair(self, row: int) -> Pair:
        """One of them, nothing decoded."""
        raise NotImplementedError

    def fingerprint(self) -> str:
        """A hash that a resumed fit must find unchanged."""
        raise NotImplementedError

    def lists(self) -> Sequence[tuple[str, str, int]]:
        """(title, fingerprint, size) of what was joined, one list after another: one, unless there are several."""
        return [(self.title, self.fingerprint(), self.size)]

    def stored(self) -> Iterator[Pair]:
        """The pairs one after another, nothing decoded."""
        return map(self.pair, range(self.size))


def in_rounds(pairs: Iterable[tuple[Source, str]], captions_per_image: int | None) -> list[tuple[Source, str]]:
    """Every image's first caption, then every image's second, and so on.

    Within a contrast batch all other captions count as negatives. In this order an image meets another caption of its
    own only where there are fewer images than pairs in a contrast batch.

    Args:
        pairs: (image, caption); an image comes once for each of its captions.
        captions_per_image: how many captions of an image to take, from its first; None takes them all.
    """
    most = None if captions_per_image is None else check_count("captions_per_image", captions_per_image)
    taken: Counter[Source] = Counter()
    rounds: list[list[tuple[Source, str]]] = []
    for image, text in pairs:
        number = taken[image]
        if number == most:
            continue
        if number == len(rounds):
            rounds.append([])
        rounds[number].append((image, text))
        taken[image] += 1
    return [pair for each in rounds for pair in each]


def refuse_choices(source: str | Path, kind: str, **choices: str | None) -> None:
    """Refuse what was chosen (a split, a column) from a source that has none, so that no choice is passed over."""
    for name, value in choices.items():
        if value is not None:
            raise BayesVLMError(f"{source} is {kind}, where {name}={value!r} chooses nothing; leave it out.")
