"""What every labelled set is, wherever its images lie: names to choose from, prompts, and samples one after another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from PIL import Image

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.printing import described
from bayesvlm.images.files import SkippedImages


@dataclass(frozen=True)
class Sample:
    """One image as it is stored (the bytes of its file, or where the file is), its label, and maybe a caption."""

    key: str
    image: bytes | Path | Image.Image
    label: int  # index into the classes of its set
    caption: str | None = None
    origin: str = field(default="", compare=False)  # what it is called in its set, where keys may occur twice

    __repr__ = described

    @property
    def name(self) -> str:
        """What no other sample of its set is called."""
        return self.origin or self.key


class LabelledSet(Protocol):
    """A labelled set: `ImageFolder`, `LabelledShards` and the others are ones.

    Attributes:
        name: what tables call it.
        classes: the names a label is an index into.
        templates: prompts with {c} for the class.
        skipped: what could not be read, filled while iterating.
    """

    @property
    def name(self) -> str: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def templates(self) -> tuple[str, ...]: ...

    @property
    def skipped(self) -> SkippedImages: ...

    @property
    def size(self) -> int | None:
        """How many samples there are, where that is known before reading them."""

    def __iter__(self) -> Iterator[Sample]: ...

    def fingerprint(self) -> str:
        """A hash of everything that decides the samples: other images, labels or classes give another one."""


def check_labels(labels: Sequence[int], classes: Sequence[str], name: str) -> None:
    """Refuse what cannot be scored: no images at all, or a single class; say which classes have none."""
    if len(labels) == 1:
        raise BayesVLMError(f"{name} has one image that can be read; a mean with its standard error takes two.")
    if not labels:
        raise BayesVLMError(f"{name} has no image that can be read; look at its split and at what was skipped.")
    if len(classes) < 2:
        raise BayesVLMError(f"{name} has the one class {classes[0]!r}; telling classes apart takes two.")


def absent_classes(labels: Sequence[int], classes: Sequence[str]) -> list[str]:
    """The classes no image has."""
    found = Counter(labels)
    return [name for index, name in enumerate(classes) if not found[index]]
