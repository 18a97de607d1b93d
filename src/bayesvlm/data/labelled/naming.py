"""Class names from folder names: a stated rule for each layout, a file of names where the folders are WordNet ids."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.labelled.folders import spaced

Naming = Callable[[str], str]

NAME_FILES = ("classnames.txt", "LOC_synset_mapping.txt")
_WNID = re.compile(r"n\d{8}")


def words(folder: str) -> str:
    """Underscores are spaces, and a capital after a small letter begins a word.

    >>> words("ApplyEyeMakeup"), words("Apply_Eye_Makeup"), words("TV")
    ('Apply Eye Makeup', 'Apply Eye Makeup', 'TV')
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", spaced(folder))


def numbered(folder: str) -> str:
    """The number before the dot goes, underscores are spaces.

    >>> numbered("001.Black_footed_Albatross")
    'Black footed Albatross'
    """
    return spaced(re.sub(r"^\d+\.", "", folder))


def place(folder: str) -> str:
    """Folders inside a folder are its kinds and go before it, underscores are spaces.

    >>> place("abbey"), place("apartment_building/outdoor")
    ('abbey', 'outdoor apartment building')
    """
    return spaced(" ".join(reversed(folder.split("/"))))


def naming_of(folder: Path, usual: Naming = spaced) -> Naming:
    """The rule for the class folders in `folder`: the usual one, but WordNet ids are looked up in a file of names where
    there is one."""
    ids = sorted(path.name for path in folder.iterdir() if path.is_dir() and _WNID.fullmatch(path.name))
    if not ids:
        return usual
    files = [place / name for place in (folder, *folder.absolute().parents[:2]) for name in NAME_FILES]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return usual
    names = read_synsets(file)
    missing = next((wnid for wnid in ids if wnid not in names), None)
    if missing is not None:
        raise BayesVLMError(f"{file} has no name for the class folder {missing!r} of {folder}; add the line.")
    return lambda folder: names.get(folder) or usual(folder)


def refuse_ids(classes: Sequence[str], folder: Path | None) -> None:
    """Refuse class folders that are called by WordNet ids, where no file names them."""
    found = next((name for name in classes if _WNID.fullmatch(name)), None)
    if found is not None:
        raise BayesVLMError(
            f"The class folders of {folder} are WordNet ids such as {found!r}, which are no names to ask a model for; "
            f"put a classnames.txt beside them with a line such as '{found} tench' for each (ImageNet's own "
            "LOC_synset_mapping.txt will do), or name the file with --classes-file."
        )


def names_synsets(file: Path) -> bool:
    """Whether a file's first line is a WordNet id and its name: a file of names, not a list of classes."""
    with file.open(encoding="utf-8-sig", errors="replace") as lines:
        return _WNID.match(lines.readline()) is not None


def read_synsets(file: Path) -> dict[str, str]:
    """WordNet id -> name, from lines "ID NAME, OTHER NAME ...": the first name is taken."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BayesVLMError(f"{file} cannot be read ({error}); expected lines such as 'n01440764 tench'.") from None
    names = {}
    for number, line in enumerate(lines, start=1):
        wnid, _, rest = line.strip().partition(" ")
        if not line.strip():
            continue
        name = rest.partition(",")[0].strip()
        if not _WNID.fullmatch(wnid) or not name:
            raise BayesVLMError(
                f"{file}, line {number} is {line!r}; expected an id and a name, as in 'n01440764 tench'."
            )
        names[wnid] = name
    return names
