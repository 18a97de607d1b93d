"""The known data sets: where one lies below the folder of the data sets, in the Hub's cache, or on the Hub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.labelled.hub import NotOnHubError, cached_shards, fetch_shards
from bayesvlm.data.labelled.known import KNOWN, Known
from bayesvlm.data.labelled.layouts import called, is_shards, open_class_folders, open_shards
from bayesvlm.data.labelled.originals import open_listed
from bayesvlm.data.labelled.samples import LabelledSet
from bayesvlm.data.labelled.source import LabelledSource
from bayesvlm.data.labelled.subset import Subset
from bayesvlm.data.names import DataName
from bayesvlm.data.sources import NOT_HERE


def find_known(name: DataName, root: Path) -> LabelledSource:
    """Where the known set `name.base` is; its count and size are the published ones.

    Args:
        name: of a set in `KNOWN`; without a split it is the one to test on.
        root: the folder of the data sets.
    """
    entry = KNOWN[name.base]
    split = name.split or entry.test
    opener = partial(_open_known, entry, split, root)
    facts: dict[str, Any] = {"count": entry.counts.get(split), "published_size": entry.size_of(split)}
    if entry.subset_of is not None:
        whole = find_known(DataName(entry.subset_of, entry.subset_of, name.split), root)
        return _find_part(entry, whole, name, root, opener, facts)
    folder = _below(entry, root)
    if folder is None and entry.hub is not None:
        published = entry.hub_splits.get(split, split)
        cached = cached_shards(entry.hub, published)
        folder = None if cached is None else cached / published
    if folder is not None:
        return LabelledSource.local(name, [folder], opener, **facts)
    note = entry.how_to_get(root)
    if entry.hub is not None:
        return LabelledSource.hub(name, entry.hub, opener, note=note, **facts)
    return LabelledSource(name.given, name.split, NOT_HERE, False, opener, note, **facts)


def _find_part(
    entry: Known,
    whole: LabelledSource,
    name: DataName,
    root: Path,
    opener: Callable[..., LabelledSet],
    facts: dict[str, Any],
) -> LabelledSource:
    """A part of another known set: it takes the whole, and the file that names its images."""
    listed = (root / f"{entry.name}.txt").is_file()
    note = "; ".join([*([] if listed else [entry.how_to_get(root)]), *([] if whole.here else [whole.note])])
    return LabelledSource(
        name.given, name.split, whole.where, whole.here and listed, opener, note, whole.paths, **facts
    )


def _open_known(
    entry: Known, split: str, root: Path, *, templates: tuple[str, ...] | None, strict: bool
) -> LabelledSet:
    name = called(entry.name, split, usual=entry.test if entry.test in ("test", "val") else "")
    if entry.subset_of is not None:
        return _open_subset(entry, split, root, templates or entry.templates, strict)
    folder = _below(entry, root)
    if folder is None:
        folder = _fetched(entry, split, root)
    if is_shards(folder):
        if not (folder / split).is_dir():
            split = entry.hub_splits.get(split, split)
        shards = open_shards(folder, split, name=name, strict=strict)
        own = tuple(dict.fromkeys((entry.template, *shards.templates)))
        return replace(shards, templates=templates or own)
    templates = templates or entry.templates
    lists = entry.lists(folder) if entry.lists else {}
    if lists:
        return open_listed(folder, lists, split, name=name, named=entry.named, templates=templates, strict=strict)
    if entry.lists and not (folder / split).is_dir():
        raise BayesVLMError(
            f"{folder} has neither the archive's {entry.split_file} nor a subfolder {split!r} of class folders; unpack "
            "the archive whole."
        )
    return open_class_folders(
        folder, split, bare=entry.bare, name=name, named=entry.named, templates=templates, strict=strict
    )


def _open_subset(entry: Known, split: str, root: Path, templates: tuple[str, ...], strict: bool) -> Subset:
    file = root / f"{entry.name}.txt"
    if not file.is_file():
        raise BayesVLMError(
            f"Which images {entry.name} has is not published, and {file} is missing; {entry.how_to_get(root)}."
        )
    whole = _open_known(KNOWN[entry.subset_of or ""], split, root, templates=templates, strict=strict)
    return Subset.open(whole, file, name=called(entry.name, split, entry.test))


def _places(entry: Known, root: Path) -> list[Path]:
    """Where a known set may lie below `root`, an archive unpacked in its folder first."""
    top = [root / entry.name] + ([root / entry.hub.rpartition("/")[2]] if entry.hub else [])
    return [top[0] / archive for archive in entry.archives] + top


def _below(entry: Known, root: Path) -> Path | None:
    """The folder of a known set below `root`; an empty one is none."""
    return next((place for place in _places(entry, root) if place.is_dir() and any(place.iterdir())), None)


def _fetched(entry: Known, split: str, root: Path) -> Path:
    """A known set that is not below `root`, from the Hub."""
    if split not in entry.splits:
        raise BayesVLMError(f"{entry.name} has no split {split!r}; it has {', '.join(entry.splits)}.")
    top = root / entry.name
    if entry.hub is None:
        raise BayesVLMError(f"{entry.title} is not in {top}; {entry.how_to_get(root)}.")
    try:
        return fetch_shards(entry.hub, entry.hub_splits.get(split, split))
    except NotOnHubError as error:
        other = root / entry.hub.rpartition("/")[2]
        raise BayesVLMError(
            f"{entry.title} is not in {top} or {other}, and {entry.hub} {error.reason}; {entry.how_to_get(root)}."
        ) from error
