"""The two layouts of a labelled set on disk, told apart: CLIP-benchmark's shards, and class folders of images."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.labelled.folders import TEMPLATES, ImageFolder, spaced
from bayesvlm.data.labelled.naming import Naming, names_synsets, naming_of
from bayesvlm.data.labelled.samples import LabelledSet
from bayesvlm.data.labelled.shards import LabelledShards

_SPLITS = frozenset({"train", "training", "trainval", "val", "valid", "validation", "test", "testing"})


def is_shards(folder: Path) -> bool:
    """Whether a folder is in the webdataset layout: it has a classnames.txt that is a list of classes."""
    file = folder / "classnames.txt"
    return file.is_file() and not names_synsets(file)


def open_folder(
    folder: Path, split: str | None, *, templates: tuple[str, ...] | None = None, strict: bool = False
) -> LabelledSet:
    """A folder in either layout; without a split it is the test split, the only one, or the folder itself.

    The folder of a split's shards will do as well, where the class names lie beside it. A set is called by its folder's
    name and its parent's, for many folders are called `test`.
    """
    own = folder.absolute()
    if split is None and (own / "nshards.txt").is_file() and is_shards(own.parent):
        return open_folder(own.parent, own.name, templates=templates, strict=strict)
    name = "/".join(folder.resolve().parts[1:][-2:])
    if is_shards(folder):
        split = split or _usual(folder, sorted(path.parent.name for path in folder.glob("*/nshards.txt")))
        return open_shards(folder, split, name=called(name, split), templates=templates, strict=strict)
    shard = next(folder.glob("*.tar*"), None)
    if shard is not None and not _subfolders(folder):
        raise BayesVLMError(
            f"{folder} holds tar shards ({shard.name}) without class names; labelled shards lie in a subfolder named "
            "as their split, with classnames.txt and nshards.txt as CLIP-benchmark writes them."
        )
    split = split or usual_split(folder)
    return open_class_folders(
        folder, split, bare=None, name=called(name, split), templates=templates or TEMPLATES, strict=strict
    )


def open_shards(
    folder: Path, split: str, *, name: str, templates: tuple[str, ...] | None = None, strict: bool = False
) -> LabelledShards:
    """A split in the webdataset layout; `templates` in the place of its own where given."""
    shards = LabelledShards.open(folder, split, name=name, strict=strict)
    return shards if templates is None else replace(shards, templates=templates)


def open_class_folders(
    folder: Path,
    split: str | None,
    *,
    bare: str | None,
    name: str,
    named: Naming = spaced,
    templates: tuple[str, ...] = TEMPLATES,
    strict: bool = False,
) -> ImageFolder:
    """Class folders in the subfolder named as the split ("Real World" is RealWorld too), or right in `folder`.

    Args:
        folder: where they lie.
        split: which; None is what lies in `folder` itself.
        bare: the split that class folders right in `folder` are.
        name: what to call the set.
        named: makes a class's name from its folder's.
        templates: prompts with {c} for the class.
        strict: stop at the first image that cannot be read.
    """
    within = split_folder(folder, split, bare)
    return ImageFolder.open(within, name=name, named=naming_of(within, named), templates=templates, strict=strict)


def usual_split(folder: Path) -> str | None:
    """The split of a folder that is taken where none is asked for: to test on, where there is such; None: all."""
    return "test" if "test" in _subfolders(folder) else None


def split_folder(folder: Path, split: str | None, bare: str | None = None) -> Path:
    """The subfolder that is called as a split ("Real World" is RealWorld too).

    Args:
        folder: where it is looked for.
        split: which.
        bare: the split that the folder itself is, where it has no subfolder of that name and is not split otherwise;
            None is the folder without any.
    """
    subfolders = _subfolders(folder)
    within = None if split is None else subfolders.get(_squeezed(split))
    if within is not None:
        return within
    if split == bare and not (subfolders and subfolders.keys() <= _SPLITS):
        return folder
    there = ", ".join(path.name for path in list(subfolders.values())[:10]) or "none"
    asked = "is split into subfolders, and none was asked for" if split is None else f"has no split {split!r}"
    raise BayesVLMError(f"{folder} {asked}; its subfolders are {there}: ask for one of them, or give its path.")


def called(name: str, split: str | None, usual: str = "test") -> str:
    """What tables call a split: by the set's name alone where it is the usual one to test on."""
    return name if split is None or split == usual else f"{name}:{split}"


def _usual(folder: Path, splits: list[str]) -> str:
    if "test" in splits:
        return "test"
    if len(splits) == 1:
        return splits[0]
    raise BayesVLMError(f"{folder} has no split 'test'; ask for one of those it has: {', '.join(splits) or 'none'}.")


def _subfolders(folder: Path) -> dict[str, Path]:
    """Squeezed name -> subfolder."""
    return {
        _squeezed(path.name): path
        for path in sorted(folder.iterdir())
        if path.is_dir() and not path.name.startswith(".")
    }


def _squeezed(name: str) -> str:
    return "".join(character for character in name.lower() if character not in " _-")
