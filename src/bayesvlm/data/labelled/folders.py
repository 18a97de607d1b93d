"""Labelled images in a folder: one subfolder per class, named as the class."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.labelled.samples import Sample
from bayesvlm.images.files import SUFFIXES, SkippedImages, dangling, find_images, leads_nowhere
from bayesvlm.progress import progress_bar

TEMPLATES = ("a photo of a {c}.",)


def spaced(folder: str) -> str:
    """A class's name from its folder's: underscores are spaces."""
    return folder.replace("_", " ")


@dataclass(frozen=True)
class ImageFolder:
    """A labelled set (`data.LabelledSet`) of image files."""

    name: str
    paths: tuple[Path, ...]
    labels: tuple[int, ...]
    classes: tuple[str, ...]
    templates: tuple[str, ...] = TEMPLATES
    skipped: SkippedImages = field(default_factory=SkippedImages)
    folder: Path | None = None  # that keys are relative to
    folders: tuple[str, ...] = ()  # of the classes, as they are called on the disk

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        name: str | None = None,
        named: Callable[[str], str] = spaced,
        templates: tuple[str, ...] = TEMPLATES,
        strict: bool = False,
    ) -> ImageFolder:
        """List a folder of class folders.

        Args:
            folder: the folder of the class folders.
            name: what to call the set; None takes the folder's name.
            named: makes a class's name from its folder's.
            templates: prompts with {c} for the class.
            strict: stop at the first image that cannot be read, instead of skipping it.
        """
        folder = Path(folder)
        if not folder.is_dir():
            raise BayesVLMError(f"{folder} is not a folder; give one with a subfolder of images for each class.")
        skipped = SkippedImages(strict)
        inside = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        for path in inside:
            if dangling(path):
                skipped.leave_out(path, leads_nowhere(path))
            elif path.suffix.lower() in SUFFIXES and path.is_file():  # it can be read, so `strict` does not mind it
                skipped.reasons[str(path)] = f"{path} lies in no class folder; move it into the one of its class."
                skipped.unlisted.add(str(path))
        subfolders = [path for path in inside if path.is_dir()]
        images = {subfolder: find_images(subfolder, skipped) for subfolder in subfolders}
        empty = [subfolder.name for subfolder, paths in images.items() if not paths]
        if not subfolders or len(empty) == len(subfolders):
            raise BayesVLMError(
                f"{folder} has no subfolder with images; put those of each class into one{skipped.beside}."
            )
        if empty:
            raise BayesVLMError(
                f"{folder}: the class folder {empty[0]!r} holds no images; fill it or remove it{skipped.beside}."
            )
        paths = [(path, index) for index, subfolder in enumerate(subfolders) for path in images[subfolder]]
        return cls(
            name or folder.resolve().name,
            tuple(path for path, _ in paths),
            tuple(index for _, index in paths),
            tuple(named(subfolder.name) for subfolder in subfolders),
            templates,
            skipped,
            folder,
            tuple(subfolder.name for subfolder in subfolders),
        )

    @property
    def size(self) -> int:
        """The number of image files."""
        return len(self.paths)

    def __iter__(self) -> Iterator[Sample]:
        for path, label in zip(self.paths, self.labels, strict=True):
            yield Sample(self.key(path), path, label)

    def key(self, path: Path) -> str:
        """What an image is called wherever the folder lies: its path below it."""
        inside = self.folder is not None and path.is_relative_to(self.folder)
        return (path.relative_to(self.folder) if inside and self.folder else path).as_posix()

    def fingerprint(self) -> str:
        """A hash of the files' contents, their labels and the class names."""
        files = [(self.key(path), path, label) for path, label in zip(self.paths, self.labels, strict=True)]
        return hash_files(self.name, self.classes, files)


def hash_files(name: str, classes: Sequence[object], files: Sequence[tuple[str, Path, int]]) -> str:
    """A hash of class names, and of files' contents under their keys, with their labels."""
    digest = hashlib.sha256(json.dumps(classes).encode())
    with progress_bar(f"Hashing {name}", total=len(files), unit="images") as advance:
        for key, path, label in files:
            try:
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            except OSError:
                content = "unreadable"
            digest.update(json.dumps([key, label, content]).encode())
            advance(1)
    return digest.hexdigest()
