"""What a name of images stands for, where their labels are not asked for."""

from __future__ import annotations

import difflib
from functools import partial
from pathlib import Path
from typing import Any

from bayesvlm.data.labelled.finding import find_labelled
from bayesvlm.data.labelled.known import KNOWN
from bayesvlm.data.labelled.label_files import is_label_file, read_labels
from bayesvlm.data.labelled.layouts import called, is_shards, open_folder, split_folder, usual_split
from bayesvlm.data.labelled.samples import LabelledSet
from bayesvlm.data.labelled.source import LabelledSource
from bayesvlm.data.names import DataName
from bayesvlm.data.sources import NOT_HERE, embedded_splits
from bayesvlm.data.tables import is_saved_dataset
from bayesvlm.data.unlabelled.collection import ImageCollection
from bayesvlm.data.unlabelled.known import OUT_SETS, OutSet, no_such_set
from bayesvlm.data.unlabelled.source import ImageSource
from bayesvlm.images.files import SUFFIXES


def find_images(name: DataName, root: Path) -> ImageSource:
    """The first of these that `name` is:

    - one of `OUT_SETS`, looked for below `root` in its published layout;
    - a folder of images, in class folders or in none, here or below `root`;
    - a table of images, with labels or without;
    - whatever `find_labelled` finds: a split of the embedded world, a known set, a folder of shards, the Hub.
    """
    entry = OUT_SETS.get(name.base.lower()) if not (name.table or name.page or name.split) else None
    if entry is not None:
        return _known(entry, name, root)
    named = name.table or name.base in KNOWN or bool(embedded_splits(name))
    place = None if named else name.local(root)
    if place is not None and place.is_dir() and not is_saved_dataset(place) and not _holds_shards(place):
        return ImageSource.local(name, [place], partial(_open_folder, place, name.split))
    if place is not None and place.is_file() and is_label_file(place):
        return ImageSource.local(name, [place], partial(_open_table, place, name.split, root))
    source = find_labelled(name, root)
    near = difflib.get_close_matches(name.base.lower(), OUT_SETS, n=1, cutoff=0.8)
    if near and place is None and not named and source.where == NOT_HERE:
        return ImageSource.missing(name, f"There is no set {name.given!r}; did you mean {near[0]!r}?")
    return _of_labelled(source)


def _known(entry: OutSet, name: DataName, root: Path) -> ImageSource:
    def opened(*, strict: bool) -> LabelledSet:
        folder = entry.below(root)
        if folder is None:
            raise no_such_set(entry, root)
        return ImageCollection.of_folder(folder, name=entry.name, strict=strict)

    folder = entry.below(root)
    if folder is not None:
        return ImageSource.local(name, [folder], opened, count=entry.count)
    return ImageSource(name.given, None, NOT_HERE, False, opened, entry.how_to_get(root), count=entry.count)


def _of_labelled(source: LabelledSource) -> ImageSource:
    """The same images; nobody minds class folders whose names say nothing."""

    def opened(*, strict: bool) -> Any:
        return source.opener(templates=None, strict=strict)

    facts = (source.note, source.paths, source.count, source.published_size)
    return ImageSource(source.name, source.split, source.where, source.here, opened, *facts)


def _holds_shards(folder: Path) -> bool:
    """Whether it is a folder of shards, as far as its own images go."""
    own = folder.absolute()
    if is_shards(own) or ((own / "nshards.txt").is_file() and is_shards(own.parent)):
        return True
    return any(own.glob("*.tar*")) and not any(path.suffix.lower() in SUFFIXES for path in own.iterdir())


def _open_folder(folder: Path, split: str | None, *, strict: bool) -> LabelledSet:
    if _holds_shards(folder):  # made since the name was resolved
        return open_folder(folder, split, strict=strict)
    split = split or usual_split(folder)
    name = called("/".join(folder.resolve().parts[1:][-2:]), split)
    return ImageCollection.of_folder(split_folder(folder, split), name=name, strict=strict)


def _open_table(file: Path, split: str | None, root: Path, *, strict: bool) -> ImageCollection:
    rows = read_labels(file, root=root, split=split, labels_needed=False)
    name = called("/".join(file.resolve().parts[1:][-2:]), split)
    return ImageCollection.of_rows(rows, name=name, strict=strict)
