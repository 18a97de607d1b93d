"""The sets of unknown things that detectors are compared on, with ImageNet's classes as the known ones.

They are those of the published protocol: parts of iNaturalist, SUN and Places whose classes are none of ImageNet's,
10,000 images each, and the Describable Textures.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bayesvlm.core.errors import BayesVLMError

IMAGES = "images"  # the folder that each of them has its images in


@dataclass(frozen=True)
class OutSet:
    """A set of unknown things that is known by name.

    Attributes:
        name: what it is asked for by.
        title: what it is.
        folders: that it unpacks to, relative to the folder of the data sets.
        get: how to get it, with {folder} for the folder to unpack it in.
        count: how many images it has as published.
    """

    name: str
    title: str
    folders: tuple[str, ...]
    get: str
    count: int

    def places(self, root: Path) -> Iterator[Path]:
        """Where its images may lie below the folder of the data sets, the case of letters aside."""
        if not root.is_dir():
            return
        for folder in self.folders:
            found = root
            for part in folder.split("/"):
                found = next((path for path in _folders(found) if path.name.lower() == part.lower()), found / part)
            yield found / IMAGES
            yield found

    def below(self, root: Path) -> Path | None:
        """The folder of its images; None where there is none, or where it is empty."""
        return next((place for place in self.places(root) if place.is_dir() and any(place.iterdir())), None)

    def how_to_get(self, root: Path) -> str:
        """How to get it into the folder of the data sets."""
        return self.get.replace("{folder}", str(root))


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []


_ENTRIES = (
    OutSet(
        name="inaturalist",
        title="iNaturalist, 110 plants that ImageNet does not have",
        folders=("iNaturalist",),
        get="unpack iNaturalist.tar.gz of the protocol's authors in {folder}, so that {folder}/iNaturalist/images is",
        count=10_000,
    ),
    OutSet(
        name="sun",
        title="SUN, 50 scenes that ImageNet does not have",
        folders=("SUN",),
        get="unpack SUN.tar.gz of the protocol's authors in {folder}, so that {folder}/SUN/images is",
        count=10_000,
    ),
    OutSet(
        name="places",
        title="Places, 50 scenes that ImageNet does not have",
        folders=("Places",),
        get="unpack Places.tar.gz of the protocol's authors in {folder}, so that {folder}/Places/images is",
        count=10_000,
    ),
    OutSet(
        name="textures",
        title="Describable Textures, all of them",
        folders=("dtd/dtd", "dtd", "Textures/dtd", "Textures"),
        get="unpack dtd-r1.0.1.tar.gz of its authors in {folder}, so that {folder}/dtd/images is",
        count=5_640,
    ),
)

OUT_SETS = {entry.name: entry for entry in _ENTRIES}
"""Every set of unknown things that has a name, by it."""


def no_such_set(entry: OutSet, root: Path) -> BayesVLMError:
    """What to say of one that is not here."""
    return BayesVLMError(f"{entry.title} is not below {root}; {entry.how_to_get(root)}.")
