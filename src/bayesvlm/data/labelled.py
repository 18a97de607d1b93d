"""Labelled images in a folder: one subfolder a class, named as the class."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.images import find_images


@dataclass(frozen=True)
class LabelledImages:
    """Image files, the index of each one's class, and the class names."""

    paths: tuple[Path, ...]
    labels: tuple[int, ...]
    classes: tuple[str, ...]

    @classmethod
    def open(cls, folder: str | Path) -> LabelledImages:
        """List a folder of class folders; underscores in their names become spaces."""
        folder = Path(folder)
        if not folder.is_dir():
            raise BayesVLMError(f"{folder} is not a folder; give one with a subfolder of images for each class.")
        subfolders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
        images = {subfolder: find_images(subfolder) for subfolder in subfolders}
        empty = [subfolder.name for subfolder, paths in images.items() if not paths]
        if not subfolders or len(empty) == len(subfolders):
            raise BayesVLMError(f"{folder} has no subfolder with images; labelled images lie in one subfolder a class.")
        if empty:
            raise BayesVLMError(f"{folder}: the class folder {empty[0]!r} holds no images; fill it or remove it.")
        paths = [(path, index) for index, subfolder in enumerate(subfolders) for path in images[subfolder]]
        classes = tuple(subfolder.name.replace("_", " ") for subfolder in subfolders)
        return cls(tuple(path for path, _ in paths), tuple(index for _, index in paths), classes)
