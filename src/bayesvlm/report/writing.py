"""Files of a report: whole or untouched, and a sentence when they cannot be written."""

from __future__ import annotations

from pathlib import Path

from bayesvlm.artifacts.files import write_together


def write_whole(path: str | Path, content: bytes) -> Path:
    """Write a file, making its folder; until all of it is on the disk, what was there stays there."""
    path = Path(path)
    write_together(path.parent, {path.name: content})
    return path
