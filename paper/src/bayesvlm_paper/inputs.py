"""What the numbers of an item depend on, declared: found out without loading a model.

Covered: the files of every model and posterior of the plan, by their content; the data and pairs, by their own
fingerprints, and their prompts; what is chosen from and aimed at; how many views and seeds; the kind of device; the
versions of the packages that compute (bayesvlm, torch, transformers, numpy, scipy, pillow).

Not covered: code of the same version. Whoever changes what an item measures raises its `version`; whoever changes what
the library computes raises that of the library, or names `--again`. Of a model that is not a folder here yet (to be
fetched, or kept by open_clip itself), its name only, until the run has fetched it. Of items that take times, the
machine by its name and number of threads, not by what else it does.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bayesvlm import __version__
from bayesvlm_paper.places import model_folders

PACKAGES = ("torch", "transformers", "numpy", "scipy", "pillow")


@cache
def versions() -> dict[str, str]:
    """Of the packages that decide a number."""
    return {"bayesvlm": __version__, **{name: version(name) for name in PACKAGES}}


def model_identity(name: str) -> dict[str, str]:
    """Kind of folder -> hash of what it holds; {} for a model that has no folder on this machine."""
    return {kind: folder_hash(folder) for kind, folder in model_folders(name).items()}


def folder_hash(place: Path) -> str:
    """Of the names and contents of all files below a folder, or of one file.

    A link into the Hub's cache leads to a file that is named by the hash of its content, so that is not read.
    """
    files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
    digest = hashlib.sha256()
    for path in files:
        status = path.stat()
        content = path.resolve().name if path.is_symlink() else _content(path, status.st_size, status.st_mtime_ns)
        digest.update(f"{path.relative_to(place)} {content}\n".encode())
    return digest.hexdigest()


@cache
def _content(path: Path, size: int, modified: int) -> str:
    """Hashed once for as long as the file is not written again."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of(inputs: Any) -> str:
    """One hash of declared inputs, to name what was made from them."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
