"""Labelled images that a table lists, and the images alone where no label is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.labelled.folders import TEMPLATES, hash_files
from bayesvlm.data.labelled.label_files import LabelRow, is_label_file, read_labels
from bayesvlm.data.labelled.samples import Sample
from bayesvlm.data.names import DataName, data_root
from bayesvlm.images.files import SkippedImages


@dataclass(frozen=True)
class ListedImages:
    """A labelled set (`data.LabelledSet`) of the image files that a table lists.

    Attributes:
        file: the table.
        rows: of the images that have a label.
        labels: of each, an index into `classes`.
        classes: the labels there are, sorted.
    """

    name: str
    file: Path
    rows: tuple[LabelRow, ...]
    labels: tuple[int, ...]
    classes: tuple[str, ...]
    templates: tuple[str, ...] = TEMPLATES
    skipped: SkippedImages = field(default_factory=SkippedImages)

    @classmethod
    def open(
        cls,
        file: Path,
        split: str | None = None,
        *,
        root: Path | None = None,
        name: str | None = None,
        templates: tuple[str, ...] = TEMPLATES,
        strict: bool = False,
    ) -> ListedImages:
        """List the images of a table; those without a label are left out and noted.

        Args:
            file: what `read_labels` reads.
            split: the rows whose column `split` says so; None takes those to test on where there are such.
            root: where else the images may lie.
            name: what to call the set; None takes the file's name.
            templates: prompts with {c} for the class.
            strict: stop at the first image that cannot be read, instead of skipping it.
        """
        rows = read_labels(file, root=root, split=split, usual_split="test")
        skipped = SkippedImages(strict)
        for row in rows:
            if row.label is None:  # it can be read, so `strict` does not mind it
                skipped.reasons[str(row.path)] = f"{row.path} has no label in {file}; give it one."
                skipped.unlisted.add(str(row.path))
        labelled = tuple(row for row in rows if row.label is not None)
        if not labelled:
            raise BayesVLMError(
                f"{file} lists {len(rows)} images and no label for any of them; fill in the labels, or export them "
                "again once they are made."
            )
        if not any(os.path.isfile(row.path) for row in labelled):  # False, too, where a folder is closed to us
            raise BayesVLMError(
                f"None of the {len(labelled)} images that {file} lists is there, such as {labelled[0].image}; a path "
                "is looked for beside the file, below --root and here: move the file, or write whole paths."
            )
        classes = tuple(sorted({row.label for row in labelled if row.label is not None}))
        places = {label: place for place, label in enumerate(classes)}
        labels = tuple(places[row.label or ""] for row in labelled)
        return cls(name or file.name, file, labelled, labels, classes, templates, skipped)

    def check_classes(self) -> None:
        """Refuse labels that are no names to ask a model for."""
        if all(name.isdecimal() for name in self.classes):
            raise BayesVLMError(
                f"The labels of {self.file} are numbers such as {self.classes[0]}, which are no names to ask a model "
                "for; give the names with --classes-file FILE (classes= in Python), one per line from label 0 on."
            )

    @property
    def size(self) -> int:
        """The number of images that have a label."""
        return len(self.rows)

    def __iter__(self) -> Iterator[Sample]:
        for row, label in zip(self.rows, self.labels, strict=True):
            yield Sample(row.image, row.path, label)

    def fingerprint(self) -> str:
        """A hash of the files' contents, their labels and the class names."""
        files = [(row.image, row.path, label) for row, label in zip(self.rows, self.labels, strict=True)]
        return hash_files(self.name, self.classes, files)


def listed_rows(name: str | Path, root: str | Path | None = None) -> list[LabelRow] | None:
    """The images of a table that is named as data are, FILE or FILE:SPLIT, with a label where there is one.

    None where the name stands for no table.
    """
    parsed = DataName.parse(name)
    top = data_root(root)
    place = None if parsed.table else parsed.local(top)
    if place is None or not place.is_file() or not is_label_file(place):
        return None
    return read_labels(place, root=top, split=parsed.split, labels_needed=False)


def with_tables(paths: Sequence[Path]) -> list[Path]:
    """Paths of images, with the images that a table among them lists in its place."""
    found: list[Path] = []
    for path in paths:
        table = is_label_file(path) and path.is_file()
        found += [row.path for row in read_labels(path, labels_needed=False)] if table else [path]
    return found
