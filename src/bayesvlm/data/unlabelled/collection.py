"""Image files of a folder or a table, with the names of their classes where folders or a column say them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.labelled.folders import TEMPLATES, hash_files, spaced
from bayesvlm.data.labelled.label_files import LabelRow
from bayesvlm.data.labelled.naming import Naming, naming_of
from bayesvlm.data.labelled.samples import Sample
from bayesvlm.images.files import SkippedImages, find_images

NO_CLASS = -1
"""The label of an image that lies in no class folder."""


@dataclass(frozen=True)
class ImageCollection:
    """Image files, iterated as a labelled set (`data.LabelledSet`) is; its labels need not mean anything.

    Attributes:
        paths: of the images.
        keys: what each is called wherever the files lie.
        labels: of each image an index into `classes`, or `NO_CLASS`.
        classes: what the class folders, or the labels of a table, are called; none where there are none.
    """

    name: str
    paths: tuple[Path, ...]
    keys: tuple[str, ...]
    labels: tuple[int, ...]
    classes: tuple[str, ...] = ()
    templates: tuple[str, ...] = TEMPLATES
    skipped: SkippedImages = field(default_factory=SkippedImages)

    @classmethod
    def of_folder(cls, folder: Path, *, name: str, named: Naming = spaced, strict: bool = False) -> ImageCollection:
        """All images below a folder; the subfolders in it are their classes.

        Args:
            folder: where they lie.
            name: what to call the set.
            named: makes a class's name from its folder's; WordNet ids are looked up in a file of names.
            strict: stop at the first image that cannot be read.
        """
        skipped = SkippedImages(strict)
        paths = find_images(folder, skipped)
        if not paths:
            raise BayesVLMError(f"{folder} holds no images; name a folder of image files{skipped.beside}.")
        named = naming_of(folder, named)
        inside = [path.relative_to(folder) for path in paths]
        folders = [named(key.parts[0]) if len(key.parts) > 1 else None for key in inside]
        return cls._of(name, paths, [key.as_posix() for key in inside], folders, skipped)

    @classmethod
    def of_rows(cls, rows: Sequence[LabelRow], *, name: str, strict: bool = False) -> ImageCollection:
        """The images of a table, with their labels where it has some."""
        labels = [row.label for row in rows]
        return cls._of(name, [row.path for row in rows], [row.image for row in rows], labels, SkippedImages(strict))

    @classmethod
    def _of(
        cls,
        name: str,
        paths: Sequence[Path],
        keys: Sequence[str],
        named: Sequence[str | None],
        skipped: SkippedImages,
    ) -> ImageCollection:
        classes = tuple(sorted({each for each in named if each is not None}))
        places: Mapping[str | None, int] = {each: place for place, each in enumerate(classes)}
        labels = tuple(places.get(each, NO_CLASS) for each in named)
        return cls(name, tuple(paths), tuple(keys), labels, classes, skipped=skipped)

    @property
    def size(self) -> int:
        """The number of image files."""
        return len(self.paths)

    def __iter__(self) -> Iterator[Sample]:
        for key, path, label in zip(self.keys, self.paths, self.labels, strict=True):
            yield Sample(key, path, label)

    def fingerprint(self) -> str:
        """A hash of the files' contents and of what they are called."""
        return hash_files(self.name, self.classes, list(zip(self.keys, self.paths, self.labels, strict=True)))
