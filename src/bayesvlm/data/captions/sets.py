"""A caption set: images, texts, and which images each text asks for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.labelled.samples import LabelledSet
from bayesvlm.evaluation.relevance import Relevance
from bayesvlm.images.decoding import ImageLike


@dataclass(frozen=True)
class CaptionSet:
    """Images and the texts that ask for them.

    A text that several images have is one query with several answers.

    Attributes:
        name: what tables call it.
        parts: the images, set after set, as they are stored; labels mean nothing.
        ids: what each image is called, part after part.
        texts: the queries.
        relevant: which images each text asks for, by their place among `ids`.
    """

    name: str
    parts: tuple[LabelledSet, ...]
    ids: tuple[str, ...]
    texts: tuple[str, ...]
    relevant: Relevance

    def __repr__(self) -> str:
        return f"CaptionSet({self.name!r}: {len(self.texts)} texts, {len(self.ids)} images)"

    @classmethod
    def of(cls, name: str, parts: Sequence[LabelledSet], pairs: Iterable[tuple[str, str]]) -> CaptionSet:
        """From (image, text) pairs; images are called as the samples of the parts, texts come in their first order."""
        ids = tuple(sample.name for part in parts for sample in part)
        rows = {identity: row for row, identity in enumerate(ids)}
        if len(rows) < len(ids):
            twice = next(identity for row, identity in enumerate(ids) if rows[identity] != row)
            raise BayesVLMError(f"{name} has two images called {twice!r}; name each set once, or rename one.")
        asked: dict[str, list[int]] = {}
        for identity, text in pairs:
            asked.setdefault(text, []).append(rows[identity])
        if len(asked) < 2 or len(ids) < 2:
            raise BayesVLMError(
                f"{name} has {len(asked)} texts and {len(ids)} images; a search is measured on at least two of both."
            )
        return cls(name, tuple(parts), ids, tuple(asked), Relevance.of(asked.values(), len(ids)))

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def images(self) -> tuple[ImageLike, ...]:
        """The images as they are stored: paths, or bytes."""
        return tuple(sample.image for part in self.parts for sample in part)

    def fingerprint(self, parts: Sequence[str] | None = None) -> str:
        """A hash of images, texts and which belong together; `parts` are those of the parts, where they are known."""
        made = [part.fingerprint() for part in self.parts] if parts is None else list(parts)
        return hashlib.sha256(json.dumps([made, self.ids, self.texts, self.relevant.lists()]).encode()).hexdigest()
