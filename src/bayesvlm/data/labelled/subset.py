"""Part of a labelled set: the images that a text file names, and their classes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.labelled.samples import LabelledSet, Sample
from bayesvlm.images.files import SkippedImages


@dataclass(frozen=True)
class Subset:
    """A labelled set (`data.LabelledSet`) of some images of another; its classes are those that have an image."""

    name: str
    whole: LabelledSet
    labels: Mapping[str, int]  # of the images chosen, by their key in the whole
    classes: tuple[str, ...]

    @classmethod
    def open(cls, whole: LabelledSet, file: Path, *, name: str) -> Subset:
        """Find the images that a file names, one per line, with or without folder and suffix.

        Shards are read once for this, their images not decoded.
        """
        wanted = _names(file)
        chosen: dict[str, Sample] = {}
        for sample in whole:
            plain = _plain(sample.key)
            if plain in chosen:
                raise BayesVLMError(f"{file} names {plain!r}, which {whole.name} has twice; name another image.")
            if plain in wanted:
                chosen[plain] = sample
        missing = next((plain for plain in wanted if plain not in chosen), None)
        if missing is not None:
            raise BayesVLMError(
                f"{file} names {wanted[missing]!r}, which {whole.name} does not have; use file names or keys of shards."
            )
        present = sorted({sample.label for sample in chosen.values()})
        places = {label: index for index, label in enumerate(present)}
        return cls(
            name,
            whole,
            {sample.key: places[sample.label] for sample in chosen.values()},
            tuple(whole.classes[label] for label in present),
        )

    @property
    def templates(self) -> tuple[str, ...]:
        """The whole set's prompts."""
        return self.whole.templates

    @property
    def skipped(self) -> SkippedImages:
        """What the whole set could not read."""
        return self.whole.skipped

    @property
    def size(self) -> int:
        """The number of images chosen."""
        return len(self.labels)

    def __iter__(self) -> Iterator[Sample]:
        for sample in self.whole:
            if sample.key in self.labels:
                yield Sample(sample.key, sample.image, self.labels[sample.key], sample.caption)

    def fingerprint(self) -> str:
        """A hash of the whole set's and of the images chosen."""
        chosen = sorted((_plain(key), label) for key, label in self.labels.items())
        return hashlib.sha256(json.dumps([self.whole.fingerprint(), self.classes, chosen]).encode()).hexdigest()


def _names(file: Path) -> dict[str, str]:
    """Plain name -> the line it stands in."""
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise BayesVLMError(f"{file} cannot be read ({error}); expected the name of one image per line.") from None
    if not lines:
        raise BayesVLMError(f"{file} is empty; expected the name of one image per line.")
    names: dict[str, str] = {}
    for line in lines:
        if _plain(line) in names:
            raise BayesVLMError(f"{file} names {line!r} twice; leave one out.")
        names[_plain(line)] = line
    return names


def _plain(name: str) -> str:
    """A name without its folder and suffix."""
    return PurePosixPath(name.replace("\\", "/")).stem
