"""Any labelled set under other class names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bayesvlm.data.labelled.class_names import ClassNames
from bayesvlm.data.labelled.folders import ImageFolder
from bayesvlm.data.labelled.listed import ListedImages
from bayesvlm.data.labelled.naming import refuse_ids
from bayesvlm.data.labelled.samples import LabelledSet, Sample
from bayesvlm.images.files import SkippedImages


@dataclass(frozen=True)
class Renamed:
    """A labelled set (`data.LabelledSet`) whose images are those of another, and whose class names are its own.

    Attributes:
        renamed: the other set.
        synonyms: all names of each class, the shown one first.
        indices: of each class of the other set, which of these it is; None: the same, in the same order.
    """

    renamed: LabelledSet
    synonyms: tuple[tuple[str, ...], ...]
    indices: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        return self.renamed.name

    @property
    def classes(self) -> tuple[str, ...]:
        """The name of each class that is shown."""
        return tuple(names[0] for names in self.synonyms)

    @property
    def templates(self) -> tuple[str, ...]:
        return self.renamed.templates

    @property
    def skipped(self) -> SkippedImages:
        return self.renamed.skipped

    @property
    def size(self) -> int | None:
        return self.renamed.size

    def __iter__(self) -> Iterator[Sample]:
        for sample in self.renamed:
            yield sample if self.indices is None else replace(sample, label=self.indices[sample.label])

    def fingerprint(self, renamed: str | None = None) -> str:
        """A hash of the other set's, which may be known already, and of the names."""
        known = self.renamed.fingerprint() if renamed is None else renamed
        return hashlib.sha256(json.dumps([known, self.synonyms, self.indices]).encode()).hexdigest()


def named(data: LabelledSet, names: ClassNames | None) -> LabelledSet:
    """A set under the names that were given for its classes; without any, refuse ids that are no names."""
    listed = data if isinstance(data, ListedImages) else None
    folders = data if isinstance(data, ImageFolder) else None
    if names is not None and listed is not None:
        return Renamed(data, names.names, names.for_labels(listed.classes, str(listed.file)))
    if names is not None:
        ids = folders.folders if folders else ()
        return Renamed(data, names.for_classes(ids or data.classes, data.classes, data.name))
    if listed is not None:
        listed.check_classes()
    if folders is not None:
        refuse_ids(folders.classes, folders.folder)
    return data


def images_of(data: LabelledSet) -> LabelledSet:
    """The set whose images these are, where only the classes are others."""
    return data.renamed if isinstance(data, Renamed) else data


def relabelled(data: LabelledSet, labels: Tensor) -> Tensor:  # [N]
    """Labels of `images_of` a set as its own."""
    indices = data.indices if isinstance(data, Renamed) else None
    return labels if indices is None else torch.tensor(indices)[labels]


def synonyms_of(data: LabelledSet) -> tuple[tuple[str, ...], ...] | None:
    """All names of each class of a set, the one that is shown first; None where each has the one."""
    return data.synonyms if isinstance(data, Renamed) else None
