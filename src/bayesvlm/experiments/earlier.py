"""What an earlier run has kept, for a run that is to do it again: such files are neither read nor deleted."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Earlier:
    """The files that lay somewhere before a run began; one that was written in the place of another is not among them.

    Args:
        files: which file on the disk, and when it was written.
    """

    files: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def below(cls, folder: Path) -> Earlier:
        """Every file below a folder; none where there is no such folder."""
        return cls(frozenset(_mark(path) for path in folder.rglob("*") if path.is_file()))

    def __contains__(self, path: Path) -> bool:
        return bool(self.files) and path.is_file() and _mark(path) in self.files


def _mark(path: Path) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_ino, status.st_mtime_ns
