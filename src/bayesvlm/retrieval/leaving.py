"""Which rows leave an index that is brought up to date: those whose image is surely gone, and no others."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from bayesvlm.images.files import path_shown
from bayesvlm.retrieval.places import Place


class Presence(Enum):
    """What the file system says of a file."""

    THERE = "there"  # it, or a link of its name
    GONE = "gone"  # the folder it lay in can be listed, and has nothing of that name
    UNKNOWN = "unknown"  # a disk that is not there, a folder without access


class Origin(NamedTuple):
    """Where a row comes from: its file, and the place that it was found in."""

    path: str | None
    source: str | None


@dataclass
class Leaving:
    """What all places of a call say of the rows; decided once all of them were looked at.

    A row that one place knows nothing of may be another's, so that no place decides alone.

    Attributes:
        places: of the call.
        listed: ids of what any of them lists.
        claimed: by id, a table or set that lists a row of another place.
        absent: by id, rows that belong to a place which does not list them.
        lost: by id, rows that a place lists and whose file is gone.
        unfound: places that list files which are not there.
    """

    places: Sequence[Place]
    listed: set[str] = field(default_factory=set)
    claimed: dict[str, str] = field(default_factory=dict)
    absent: dict[str, Origin] = field(default_factory=dict)
    lost: dict[str, Origin] = field(default_factory=dict)
    unfound: set[str] = field(default_factory=set)

    def miss(self, place: Place, path: str, rows: Iterable[tuple[str, Origin]]) -> None:
        """That a place lists a file which cannot be read; its rows are lost where there is no file any more."""
        found = presence(path_shown(path))
        if found is not Presence.THERE:
            self.unfound.add(place.source)
        if found is Presence.GONE:
            self.lost |= dict(rows)

    def taken_over(self) -> dict[str, str]:
        """By id, the new source of rows that their own table or set lists no longer, and another one does."""
        listings = {place.source for place in self.places if place.listing}
        return {
            name: self.claimed[name]
            for name, origin in self.absent.items()
            if origin.source in listings and name in self.claimed
        }

    def gone(self) -> list[str]:
        """Ids of the rows that leave."""
        left = [name for name, origin in self.absent.items() if name not in self.listed and self._leaves(origin)]
        return left + [name for name, origin in self.lost.items() if self._is_ours(origin) and not self._shut(origin)]

    def _is_ours(self, origin: Origin) -> bool:
        return any(place.source == origin.source or _below(origin.path, place.folder) for place in self.places)

    def _shut(self, origin: Origin) -> bool:
        """Whether a folder could not be listed that the file lies in."""
        return any(_below(origin.path, folder) for place in self.places for folder in place.closed)

    def _leaves(self, origin: Origin) -> bool:
        """Whether a row leaves that no place lists."""
        if not self._is_ours(origin) or self._shut(origin):
            return False
        listing = next((each for each in self.places if each.listing and each.source == origin.source), None)
        if listing is not None and listing.skipped:
            return False  # who knows what was in the part that could not be read
        if listing is not None and (origin.path is None or listing.source not in self.unfound):
            return True
        if origin.path is None:
            return False
        within = next((each.folder for each in self.places if _below(origin.path, each.folder)), None)
        found = presence(path_shown(origin.path), None if within is None else path_shown(within))
        return found is Presence.GONE or (listing is not None and found is Presence.THERE)


def presence(path: Path, within: Path | None = None) -> Presence:
    """Whether a file is there.

    Args:
        path: of the file.
        within: a folder that could be listed: below it, a folder that is gone took its files along.
    """
    try:
        os.lstat(path)
    except NotADirectoryError:
        return Presence.GONE
    except FileNotFoundError:
        pass
    except OSError:
        return Presence.UNKNOWN
    else:
        return Presence.THERE
    parent = path.parent
    if _can_be_listed(parent):
        return Presence.GONE
    if within is not None and within in parent.parents and presence(parent, within) is Presence.GONE:
        return Presence.GONE
    return Presence.UNKNOWN


def _can_be_listed(folder: Path) -> bool:
    try:
        with os.scandir(folder) as entries:
            next(entries, None)
    except OSError:
        return False
    return True


def _below(path: str | None, folder: str | None) -> bool:
    return path is not None and folder is not None and path.startswith(folder.rstrip("/") + "/")
