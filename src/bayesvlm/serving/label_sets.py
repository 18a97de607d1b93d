"""Candidate labels, encoded once and remembered: text embeddings, and the draws that divide an entropy."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bayesvlm.core.embeddings import GaussianEmbeddings
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.core.marginal import ClassDraws, TextDraws
from bayesvlm.prompts import PLACES, ClassNames, ClassPrompts, Templates
from bayesvlm.vlm import BayesVLM

DRAWS_BYTES = 2**28
"""Of the draws of all label sets together: seven of 128 labels of a ViT-B/32, or hundreds of long ones."""
_encoding = threading.Lock()
"""Texts are encoded by one thread at a time: the tokenizers of transformers keep settings between calls."""


@dataclass(frozen=True, eq=False)
class LabelSet:
    """What is known of a list of candidate labels before any image.

    Args:
        names: as they are shown, [C].
        features: one row each, [C].
        mean: their embeddings without a posterior, [C, d].
        embedded: their Gaussian embeddings; None without a posterior.
        text_draws: of the text projection, shared with the other label sets; None without a posterior.
    """

    names: tuple[str, ...]
    features: Features
    mean: Tensor  # [C, d]
    embedded: GaussianEmbeddings | None = None
    text_draws: TextDraws | None = None

    @cached_property
    def draws(self) -> ClassDraws:
        """Made when first asked for."""
        assert self.text_draws is not None
        return self.text_draws.of(self.features)


class LabelSets:
    """The label sets that were asked for last.

    Args:
        vlm: the model.
        text_draws: of its text projection; None to do without the posterior.
        most: how many are kept. Of their draws, those of the last ones that fit `DRAWS_BYTES`.
    """

    def __init__(self, vlm: BayesVLM, text_draws: TextDraws | None, most: int) -> None:
        self._vlm, self._text_draws, self._most = vlm, text_draws, most
        self._kept: OrderedDict[Hashable, LabelSet] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def of(self, labels: ClassNames | str | None, template: Templates | None, drawn: bool) -> LabelSet:
        """The label set, encoded if it is not among those that are kept.

        Args:
            labels: names, or one str with commas between them; synonyms as `BayesVLM.classify` takes them.
            template: with {} in the place of the label; several are averaged.
            drawn: whether its draws are needed.
        """
        names, templates = listed(labels), _templates(template)
        key = _key(names, templates)
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
        if found is None or (drawn and "draws" not in found.__dict__):
            found = self._made(key, names, templates, drawn)
        return found

    @torch.no_grad()
    def _made(self, key: Hashable, names: ClassNames, templates: Templates | None, drawn: bool) -> LabelSet:
        with _encoding:
            found = self._kept.get(key)  # another thread may have made it meanwhile
            if found is None:
                found = self._encoded(names, templates)
            if drawn:
                _ = found.draws
        with self._lock:
            self._kept[key] = found
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
            self._forget_draws()
        return found

    def _forget_draws(self) -> None:
        """Keep the draws of the sets that were asked for last, as many as fit; others are drawn anew when asked for."""
        total = 0
        for place, each in enumerate(reversed(self._kept.values())):
            draws = each.__dict__.get("draws")
            total += 0 if draws is None else draws.own_bytes
            if place and total > DRAWS_BYTES:
                each.__dict__.pop("draws", None)

    def _encoded(self, labels: ClassNames, templates: Templates | None) -> LabelSet:
        names = ClassPrompts.of(labels, templates).names
        features = self._vlm.class_features(labels, templates, progress=False)
        mean = self._vlm.text.embed(features)
        if self._text_draws is None:
            return LabelSet(names, features, mean)
        embedded = self._vlm.posterior["text"].embed(features)
        return LabelSet(names, features, mean, embedded, self._text_draws)


def listed(labels: Any) -> ClassNames:
    """Candidate labels as classes of a BayesVLM; a copy, and no generator, which would be there once only."""
    if labels is None:
        raise BayesVLMError(
            "There are no candidate_labels; pass a list of labels, to the call or to pipeline(...) for every call."
        )
    if isinstance(labels, Features):
        raise BayesVLMError("candidate_labels are Features, which have no names to answer with; pass the labels.")
    if isinstance(labels, str):
        labels = [label.strip() for label in labels.split(",") if label.strip()]
    elif hasattr(labels, "tolist"):
        labels = labels.tolist()
    elif isinstance(labels, Mapping):
        labels = dict(labels)
    else:
        try:
            labels = tuple(labels)
        except TypeError:
            raise BayesVLMError(
                f"candidate_labels={labels!r}, a {type(labels).__name__}; it must be a list of labels, or one str with "
                "commas between them."
            ) from None
    if len(labels) == 0:
        raise BayesVLMError("candidate_labels is empty; pass at least one label, and better two.")
    found: ClassNames = labels
    return found


def _templates(template: Any) -> Templates | None:
    if isinstance(template, str) and not any(place in template for place in PLACES):
        raise BayesVLMError(
            f"hypothesis_template={template!r} has no place for the label; put {{}} where it goes, as in 'This is a "
            "photo of {}.'."
        )
    if not (template is None or isinstance(template, str | Sequence) or callable(template)):
        raise BayesVLMError(
            f"hypothesis_template={template!r}, a {type(template).__name__}; it must be a str with {{}} for the label, "
            "a list of these, or None for labels as they are."
        )
    found: Templates | None = template
    return found


def _key(labels: Any, templates: Any) -> Hashable:
    """What a label set is remembered by."""
    return isinstance(labels, Mapping), _frozen(labels), _frozen(templates)


def _frozen(value: Any) -> Hashable:
    """The same for what stands for the same labels; what cannot be hashed by what it looks like, as it is refused."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return tuple((_frozen(name), _frozen(names)) for name, names in value.items())
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Sequence):
        return tuple(map(_frozen, value))
    return value if isinstance(value, Hashable) else repr(value)
