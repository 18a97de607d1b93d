"""Images with labels, from the files, folders and sets that hold them, as indices into a list of classes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from bayesvlm.core.features import Features
    from bayesvlm.data import SkippedImages
    from bayesvlm.data.labelled.class_names import ClassNames
    from bayesvlm.data.labelled.label_files import LabelRow
    from bayesvlm.data.labelled.samples import LabelledSet
    from bayesvlm.experiments.feature_store import FeatureStore


@dataclass(frozen=True, eq=False)
class LabelledImages:
    """Images that can be read, and their labels.

    Args:
        names: which images they are: absolute paths, or keys of a set.
        places: the same wherever an image is named from: where its file is, or its key where there is none.
        labels: indices into the classes.
    """

    names: list[str]  # [N]
    places: list[str]  # [N]
    labels: list[int]  # [N]
    features: Features  # [N]


class LabelledSource(Protocol):
    """Where labelled images come from, before any of them is encoded."""

    @property
    def name(self) -> str:
        """What they are called."""

    @property
    def classes(self) -> list[str]:
        """The labels that occur."""

    @property
    def templates(self) -> Sequence[str]:
        """Prompts of their own, the customary one first."""

    def encode(self, encoder: FeatureStore, names: ClassNames, skipped: SkippedImages) -> LabelledImages:
        """The images, their labels as indices into the classes."""


def labelled_source(given: str, root: Path | None, skipped: SkippedImages, names: ClassNames | None) -> LabelledSource:
    """A file of labels, or a folder of class folders or a set that `resolve` knows, under the names for its classes."""
    from bayesvlm.data.labelled.label_files import is_label_file
    from bayesvlm.data.names import own_path

    path = own_path(given)
    if is_label_file(path) and not path.is_dir():
        return _File(given, labelled_rows(path, root))
    return _Set(_opened(given, root, skipped.strict, names))


def _opened(given: str, root: Path | None, strict: bool, names: ClassNames | None) -> LabelledSet:
    """A set under the names where its ids or numbers have some; under its own where it is spelt as the names are.

    Other than in `eval`, a list is not put on folders by their order alone: a set need not have all classes here.
    """
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.data import resolve
    from bayesvlm.data.labelled.listed import ListedImages
    from bayesvlm.data.labelled.renamed import images_of

    source = resolve(given, root=root)
    if names is None:
        return source.open(strict=strict)
    try:
        data = source.open(strict=strict, classes=names)
    except BayesVLMError as misfit:
        try:
            return source.open(strict=strict)
        except BayesVLMError:
            raise misfit from None
    own = images_of(data)
    said = names.ids is not None or isinstance(own, ListedImages) or all(map(str.isdecimal, own.classes))
    return data if said else own


def joined(parts: Sequence[LabelledImages], names: Sequence[str]) -> LabelledImages:
    """All of them, an image that several have once; with two labels it is an error."""
    from bayesvlm.core.features import Features

    labels: dict[str, int] = {}
    images: list[str] = []
    kept: list[Features] = []
    for part in parts:
        fresh = []
        for row, (image, place, label) in enumerate(zip(part.names, part.places, part.labels, strict=True)):
            if place not in labels:
                fresh.append(row)
                images.append(image)
            check_one_label(image, labels.setdefault(place, label), label, names)
        kept.append(part.features[fresh])
    return LabelledImages(images, list(labels), list(labels.values()), Features.concatenate(kept))


def check_one_label(image: object, label: int, other: int, names: Sequence[str]) -> None:
    """Refuse an image that is labelled twice, and not alike."""
    from bayesvlm.core.errors import BayesVLMError

    if label != other:
        raise BayesVLMError(
            f"{image} is labelled {names[label]!r} in one place and {names[other]!r} in another; decide on one."
        )


def labelled_rows(file: Path, root: Path | None) -> list[LabelRow]:
    """The images of a file that have a label; how many have none is said."""
    from bayesvlm.cli.output import remark
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.data.labelled.label_files import read_labels

    rows = read_labels(file, root=root)
    found = [row for row in rows if row.label is not None]
    if not found:
        raise BayesVLMError(f"{file} lists {len(rows)} images and none of them has a label; fill in the labels first.")
    if len(found) < len(rows):
        remark(f"{file}: {len(rows) - len(found)} of {len(rows)} images have no label and are left out")
    return found


@dataclass(frozen=True)
class _File:
    given: str
    rows: list[LabelRow]

    @property
    def name(self) -> str:
        return self.given

    @property
    def templates(self) -> Sequence[str]:
        from bayesvlm.data.labelled.folders import TEMPLATES

        return TEMPLATES

    @property
    def classes(self) -> list[str]:
        return sorted({row.label for row in self.rows if row.label is not None})

    def encode(self, encoder: FeatureStore, names: ClassNames, skipped: SkippedImages) -> LabelledImages:
        places = names.places([row.label or "" for row in self.rows], self.given)
        found = encode_rows(encoder, self.rows, self.given, skipped)
        paths = [self.rows[row].path for row in found.read]
        labels = [places[row] for row in found.read]
        return LabelledImages(
            list(map(os.path.abspath, paths)), list(map(os.path.realpath, paths)), labels, found.features
        )


@dataclass(frozen=True, eq=False)
class EncodedRows:
    """The images of some rows of a file that could be read: which rows they are, and their features."""

    read: list[int]  # [n]
    features: Features  # [n]


def encode_rows(encoder: FeatureStore, rows: Sequence[LabelRow], source: str, skipped: SkippedImages) -> EncodedRows:
    """The images of some rows; those that cannot be read are noted, and all of them an error."""
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.core.features import Features
    from bayesvlm.experiments.image_files import encode_files
    from bayesvlm.progress import progress_bar

    parts: list[Features] = []
    read: list[int] = []
    seen = 0
    with progress_bar(f"encoding {source}", total=len(rows), unit="images") as advance:
        for batch in encode_files(encoder, [row.path for row in rows], skipped):
            if batch.read:
                parts.append(batch.features)
                read += [seen + place for place in batch.read]
            seen += batch.seen
            advance(batch.seen)
    if not parts:
        raise BayesVLMError(
            f"None of the {len(rows)} labelled images of {source} can be read{skipped.beside}; paths are looked for "
            "beside the file, below --root and here."
        )
    return EncodedRows(read, Features.concatenate(parts))


@dataclass(frozen=True, eq=False)
class _Set:
    data: LabelledSet

    @property
    def name(self) -> str:
        return self.data.name

    @property
    def templates(self) -> Sequence[str]:
        return self.data.templates

    @property
    def classes(self) -> list[str]:
        return list(self.data.classes)

    def encode(self, encoder: FeatureStore, names: ClassNames, skipped: SkippedImages) -> LabelledImages:
        from bayesvlm.data.labelled.renamed import images_of

        found = encoder.images(self.data)
        skipped.reasons.update(found.skipped)
        labels = [self.data.classes[label] for label in found.labels.tolist()]
        keys = [f"{self.data.name}/{key}" for key in found.keys]
        files = _files(self.data)
        places = [files.get(key, name) for key, name in zip(found.keys, keys, strict=True)]
        own = names if images_of(self.data) is self.data else replace(names, ids=None)  # renamed by these ids already
        return LabelledImages(keys, places, own.places(labels, self.data.name), found.features)


def _files(data: LabelledSet) -> dict[str, str]:
    """Where each image of a set lies, by its name in the set; of none where the images are no files."""
    files: dict[str, str] = {}
    for sample in data:
        if not isinstance(sample.image, Path):
            break
        files[sample.name] = os.path.realpath(sample.image)
    return files
