"""Whatever somebody asks an index for: texts, images, features or plain vectors."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Number
from typing import Any, TypeGuard

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError, check_choice
from bayesvlm.core.estimation import TOWERS, Tower
from bayesvlm.core.features import Features
from bayesvlm.core.printing import described
from bayesvlm.images.decoding import Readable
from bayesvlm.prompts import PLACES, ClassPrompts, Templates, check_templates, fill
from bayesvlm.retrieval.rows import Rows, other, shape_of
from bayesvlm.vlm import BayesVLM

_ONE = (str, bytes, bytearray, memoryview, os.PathLike, Image.Image, Mapping, Readable)
_EXPECTED = (
    "a text, an image (a path as pathlib.Path, a PIL image, bytes, an array), Features, a vector as wide as the "
    "embeddings, or a list of one of these"
)


@dataclass(frozen=True, eq=False)
class Queries:
    """What is asked, as an index compares it.

    Args:
        names: what to call each.
        rows: as items of their own tower are kept.
        tower: they are of; None: plain vectors, which have no variance.
        single: whether it was one, and not a list of one.
        variance: share of each one's expected squared length that is variance, [Q].
        prompts: the templates that texts are asked in, sorted; empty for everything else.
    """

    names: list[str]
    rows: Rows
    tower: Tower | None
    single: bool
    variance: Tensor
    prompts: tuple[str, ...] = ()

    __repr__ = described

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, places: slice) -> Queries:
        some = self.names[places], self.rows[places]
        return Queries(*some, self.tower, self.single, self.variance[places], self.prompts)

    @classmethod
    def of(
        cls,
        vlm: BayesVLM,
        query: Any,
        tower: Tower | None,
        items: Tower,
        templates: Templates | None = None,
        otherwise: Templates | None = None,
    ) -> Queries:
        """A query, or a list of them.

        Args:
            query: see `Index.search`.
            tower: that Features, or strings, are of; None: texts, but for what can only be an image.
            items: the tower of what is searched.
            templates: that each text is asked in, as one query; refused for what is no text.
            otherwise: where those are None; None: texts are asked as they are.
        """
        if tower is not None:
            check_choice("tower", tower, TOWERS)
        vectors = _vectors(query, vlm.image.embedding_width)
        if vectors is not None:
            _check_in_words(templates, False)
            rows = Rows.of_vectors(vlm, vectors.reshape(-1, vectors.shape[-1]), shape_of(vlm, items), items)
            names = [f"vector {place}" for place in range(len(rows))]
            return cls(names, rows, None, vectors.ndim == 1, torch.zeros(len(names), dtype=torch.float64))
        asked_in = otherwise if templates is None else templates
        features, names, tower, single = _encoded(vlm, query, tower, items, asked_in)
        in_words = tower == "text" and not isinstance(query, Features)
        _check_in_words(templates, in_words)
        rows = Rows.of(vlm, features, tower, names)
        return cls.of_rows(vlm, rows, names, tower, single, written(asked_in) if in_words else ())

    @classmethod
    def of_rows(
        cls, vlm: BayesVLM, rows: Rows, names: list[str], tower: Tower, single: bool, prompts: tuple[str, ...] = ()
    ) -> Queries:
        """Items of a tower by what an index keeps of them."""
        return cls(names, rows, tower, single, rows.alpha.double() * float(shape_of(vlm, tower).trace), prompts)


def written(templates: Templates | None) -> tuple[str, ...]:
    """Templates by what they make of a place for the text, functions too: what is told apart by, and can be kept."""
    return tuple(sorted(fill(template, PLACES[0]) for template in check_templates(templates)))


def _check_in_words(templates: Templates | None, in_words: bool) -> None:
    if templates is not None and not in_words:
        raise BayesVLMError("templates are for queries in words, and these are none; leave them out.")


def _encoded(
    vlm: BayesVLM, query: Any, tower: Tower | None, items: Tower, templates: Templates | None
) -> tuple[Features, list[str], Tower, bool]:
    if isinstance(query, Features):
        if not len(query):
            raise BayesVLMError("There is no query: these Features have no rows; ask for at least one.")
        found = other(items) if tower is None else tower
        features = vlm.text_features(query) if found == "text" else vlm.image_features(query)
        return features, [f"{found} {place}" for place in range(len(query))], found, False
    single = isinstance(query, _ONE) or not isinstance(query, Iterable) or (_is_array(query) and query.ndim == 3)
    listed = [query] if single else list(query)
    if not listed:
        raise BayesVLMError(f"There is no query: the list is empty; ask for {_EXPECTED}.")
    if tower is None:
        tower = "text" if isinstance(listed[0], str) else "image"
    if tower == "image":
        names = [_image_name(image, place) for place, image in enumerate(listed)]
        return vlm.image_features(listed, progress=False), names, tower, single
    for place, text in enumerate(listed):
        if not isinstance(text, str):
            raise BayesVLMError(f"Query {place} is {type(text).__name__} {str(text)[:40]!r}; ask for {_EXPECTED}.")
        if not text.strip():
            raise BayesVLMError(f"Query {place} is {text!r}, which says nothing; ask for something in words.")
    texts = [str(text) for text in listed]
    asked = ClassPrompts.filled(texts, None, templates)
    return vlm.encoder("texts").encode_classes(asked, progress=False), texts, tower, single


def _is_array(query: Any) -> TypeGuard[torch.Tensor | np.ndarray[Any, Any]]:
    return isinstance(query, torch.Tensor) or (isinstance(query, np.ndarray) and query.dtype.kind in "biufc")


def _image_name(image: Any, place: int) -> str:
    if isinstance(image, str | os.PathLike):
        return str(image)
    filename = getattr(image, "filename", "") if isinstance(image, Image.Image) else ""
    return filename or f"image {place}"


def _vectors(query: Any, width: int) -> Tensor | None:  # [Q, d] or [d]
    """Plain vectors, if that is what they are; an array of one or two dimensions is never an image here, unless its
    numbers are bytes."""
    query = _stacked(query)
    if not _is_array(query) or query.ndim not in (1, 2) or query.dtype in (torch.uint8, np.uint8):
        return None
    found = _real(query)
    if found.shape[-1] != width:
        raise BayesVLMError(
            f"The vector is {found.shape[-1]} wide, and the embeddings of this index {width}; embed it with the same "
            "model."
        )
    if not len(found) or not bool((torch.isfinite(found).all(dim=-1) & found.any(dim=-1)).all()):
        raise BayesVLMError("A vector is zero, or holds NaN or Inf, or there is none: no direction to search in.")
    return found


def _stacked(query: Any) -> Any:
    """A list of numbers, or of vectors, as an array; anything else as it is."""
    query = _unboxed(query)
    if not isinstance(query, list | tuple) or not query:
        return query
    numbers = _numbers(query)
    if numbers is not None:
        return numbers
    vectors: list[Any] = [_unboxed(each) for each in query]
    vectors = [_numbers(each) if isinstance(each, list | tuple) else each for each in vectors]
    if not all(_is_array(each) and each.ndim == 1 for each in vectors):
        return query
    widths = sorted({len(each) for each in vectors})
    if len(widths) > 1:
        raise BayesVLMError(f"The vectors are {widths[0]} to {widths[-1]} wide; give all as wide as the embeddings.")
    return torch.stack([_real(each) for each in vectors])


def _unboxed(given: Any) -> Any:
    """An array of objects as a list of them."""
    return given.tolist() if isinstance(given, np.ndarray) and given.dtype.kind == "O" else given


def _numbers(listed: Sequence[Any]) -> Tensor | None:  # [d]
    """Numbers one by one as a vector, of whatever type each of them is; None: something among them is no number."""
    plain = [each.item() if _is_array(each) and each.ndim == 0 else each for each in listed]
    if not plain or not all(isinstance(each, Number) for each in plain):
        return None
    return _real(np.asarray(plain))


def _real(numbers: torch.Tensor | np.ndarray[Any, Any]) -> Tensor:
    """In float64."""
    if isinstance(numbers, torch.Tensor):
        if not numbers.is_complex():
            return numbers.detach().cpu().double()
    elif numbers.dtype.kind != "c":
        with suppress(TypeError, OverflowError):
            return torch.from_numpy(numbers.astype(np.float64))
    raise BayesVLMError("A vector holds numbers that float64 does not, such as complex ones; give real numbers.")
