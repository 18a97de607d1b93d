"""Labelled images of Hugging Face's `datasets` library: a data set of the Hub, or one that was saved to a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.labelled.folders import TEMPLATES, spaced
from bayesvlm.data.labelled.naming import Naming
from bayesvlm.data.labelled.samples import Sample
from bayesvlm.data.tables import load_table
from bayesvlm.images.files import SkippedImages


@dataclass(frozen=True)
class HubImages:
    """A labelled set (`data.LabelledSet`) of the rows of a table, its images as they are stored."""

    name: str
    rows: Any  # datasets.Dataset, its images left undecoded: {"bytes": ..., "path": ...}
    image_column: str
    label_column: str
    classes: tuple[str, ...]
    templates: tuple[str, ...] = TEMPLATES
    skipped: SkippedImages = field(default_factory=SkippedImages)

    @classmethod
    def open(
        cls,
        source: str | Path,
        split: str,
        image_column: str = "image",
        label_column: str = "label",
        *,
        name: str | None = None,
        named: Naming = spaced,
        templates: tuple[str, ...] = TEMPLATES,
        strict: bool = False,
    ) -> HubImages:
        """Load a split; takes the optional `datasets` library.

        Args:
            source: a Hub id, or a folder written by `Dataset.save_to_disk`.
            split: which.
            image_column: the column of the images.
            label_column: the column of the labels, a `ClassLabel`: the class names come with it.
            name: what to call the set; None takes the source's last part.
            named: makes a class's name from the one in the table.
            templates: prompts with {c} for the class.
            strict: stop at the first image that cannot be read, instead of skipping it.
        """
        rows = load_table(str(source), split)
        for column in (image_column, label_column):
            if column not in rows.features:
                raise BayesVLMError(f"{source} has no column {column!r}; it has {', '.join(rows.features)}.")
        classes = getattr(rows.features[label_column], "names", None)
        if not classes:
            raise BayesVLMError(
                f"The column {label_column!r} of {source} has no class names; it must be a ClassLabel, as "
                f"`Dataset.class_encode_column({label_column!r})` makes it."
            )
        if not len(rows):
            raise BayesVLMError(f"The split {split!r} of {source} has no rows; take another split.")
        undecoded = type(rows.features[image_column])(decode=False)
        rows = rows.select_columns([image_column, label_column]).cast_column(image_column, undecoded)
        return cls(
            name or Path(source).name,
            rows,
            image_column,
            label_column,
            tuple(map(named, classes)),
            templates,
            SkippedImages(strict),
        )

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self.rows)

    def __iter__(self) -> Iterator[Sample]:
        for number, row in enumerate(self.rows):
            label = row[self.label_column]
            if label is None or not 0 <= label < len(self.classes):
                raise BayesVLMError(
                    f"Row {number} of {self.name} has the label {label}; expected 0 to {len(self.classes) - 1}: take a "
                    "split whose labels are published."
                )
            image = _stored(row[self.image_column])
            if image is None:
                self.skipped.note(
                    f"row {number}", BayesVLMError(f"Row {number} of {self.name} has no image; leave it out.")
                )
            else:
                yield Sample(f"{number:07d}", image, label)

    def fingerprint(self) -> str:
        """A hash of the images, labels and class names."""
        digest = hashlib.sha256(json.dumps(self.classes).encode())
        for sample in self:
            digest.update(json.dumps([sample.label, _hash(sample.image)]).encode())
        return digest.hexdigest()


def _stored(image: Mapping[str, Any] | None) -> bytes | Path | None:
    if not image:
        return None
    content, path = image.get("bytes"), image.get("path")
    return content if content is not None else Path(path) if path else None


def _hash(image: Any) -> str:
    try:
        return hashlib.sha256(image.read_bytes() if isinstance(image, Path) else image).hexdigest()
    except OSError:
        return "unreadable"
