"""Labelled sets by name: a known data set, a folder, or a Hub id."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.labelled.datasets import HubImages
from bayesvlm.data.labelled.folders import TEMPLATES
from bayesvlm.data.labelled.hub import NotOnHubError, cached_shards, fetch_shards
from bayesvlm.data.labelled.known import KNOWN, Known
from bayesvlm.data.labelled.layouts import called, is_shards, open_class_folders, open_folder, open_shards
from bayesvlm.data.labelled.originals import open_listed
from bayesvlm.data.labelled.samples import LabelledSet
from bayesvlm.data.labelled.subset import Subset
from bayesvlm.data.tables import is_saved_dataset

TABLES = "datasets:"
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def open_labelled(
    name: str | Path,
    split: str | None = None,
    root: str | Path | None = None,
    template: str | None = None,
    strict: bool = False,
) -> LabelledSet:
    """A labelled set, found by name.

    In this order, `name` is

    - one of `KNOWN`: looked for below `root`, in a folder of its name (or of its Hub repository's) that holds shards in
      CLIP-benchmark's layout, the original archive, or class folders of images; then on the Hub, or in its local cache;
    - a folder, with shards if it has a classnames.txt, with class folders of images otherwise, in a subfolder named as
      the split if there is one (`./NAME` is a folder even where NAME is known);
    - the Hub id of a data set in CLIP-benchmark's layout;
    - "datasets:" and the Hub id of any other, with columns image and label, or a folder of one that was saved to disk:
      read with the optional `datasets` library.

    Args:
        name: as above; "NAME:SPLIT" names the split as well.
        split: None takes the one to test on.
        root: the folder of the known data sets; None takes $BAYESVLM_DATA, or ./data where that is not set.
        template: a prompt with {c} for the class; None takes a known set's customary one, or those that come with it.
        strict: stop at the first image that cannot be read, instead of skipping it.
    """
    if template is not None and "{c}" not in template:
        raise BayesVLMError(f"template={template!r} has no place for the class name; put {{c}} where it goes.")
    name, split = _asked(str(name), split)
    templates = None if template is None else (template,)
    if name in KNOWN:
        return _open_known(KNOWN[name], split, data_root(root), templates, strict)
    table, folder = name.removeprefix(TABLES), Path(name).expanduser()
    if table != name or is_saved_dataset(folder):
        return HubImages.open(table, split or "test", templates=templates or TEMPLATES, strict=strict)
    if folder.is_dir():
        return open_folder(folder, split, templates=templates, strict=strict)
    if _HUB_ID.fullmatch(name):
        return _open_hub(name, split or "test", templates, strict)
    raise _unknown(name)


def available(root: str | Path | None = None) -> list[tuple[Known, Path | None]]:
    """The known data sets, each with the folder where it lies: below `root` or in the Hub's cache; None: nowhere."""
    return [(entry, _found(entry, data_root(root))) for entry in KNOWN.values()]


def _asked(name: str, split: str | None) -> tuple[str, str | None]:
    """NAME and SPLIT of "NAME:SPLIT"; a folder with a colon in its name is a folder."""
    before, colon, after = name.rpartition(":")
    if not colon or not before or "/" in after or "\\" in after or Path(name).expanduser().is_dir():
        return name, split
    if not after or (split is not None and split != after):
        raise BayesVLMError(f"{name!r} was asked for with the split {split!r}; name one split, as in {before}:test.")
    return before, after


def data_root(root: str | Path | None) -> Path:
    """Where known sets and pairs lie: `root`, else $BAYESVLM_DATA, else ./data."""
    return Path(root or os.environ.get("BAYESVLM_DATA") or "data").expanduser()


def _open_known(
    entry: Known, split: str | None, root: Path, templates: tuple[str, ...] | None, strict: bool
) -> LabelledSet:
    split, templates = split or entry.test, templates or (entry.template,)
    name = called(entry.name, split, usual=entry.test if entry.test in ("test", "val") else "")
    if entry.subset_of is not None:
        return _open_subset(entry, split, root, templates, strict)
    folder = _below(entry, root)
    if folder is None:
        folder = _fetched(entry, split, root)
    if is_shards(folder):
        if not (folder / split).is_dir():
            split = entry.hub_splits.get(split, split)
        return open_shards(folder, split, name=name, templates=templates, strict=strict)
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
    whole = _open_known(KNOWN[entry.subset_of or ""], split, root, templates, strict)
    return Subset.open(whole, file, name=called(entry.name, split, entry.test))


def _open_hub(repo: str, split: str, templates: tuple[str, ...] | None, strict: bool) -> LabelledSet:
    try:
        folder = fetch_shards(repo, split)
    except NotOnHubError as error:
        if Path(repo).parent.is_dir():  # more likely a folder misspelt
            raise BayesVLMError(
                f"There is no folder {repo!r}, and as a Hub data set it {error.reason}; check the path."
            ) from error
        raise
    return open_shards(folder, split, name=called(repo, split), templates=templates, strict=strict)


def _places(entry: Known, root: Path) -> list[Path]:
    """Where a known set may lie below `root`, an archive unpacked in its folder first."""
    top = [root / entry.name] + ([root / entry.hub.rpartition("/")[2]] if entry.hub else [])
    return [top[0] / archive for archive in entry.archives] + top


def _below(entry: Known, root: Path) -> Path | None:
    """The folder of a known set below `root`; an empty one is none."""
    return next((place for place in _places(entry, root) if place.is_dir() and any(place.iterdir())), None)


def _found(entry: Known, root: Path) -> Path | None:
    if entry.subset_of is not None:
        return _found(KNOWN[entry.subset_of], root) if (root / f"{entry.name}.txt").is_file() else None
    cached = cached_shards(entry.hub, entry.hub_splits.get(entry.test, entry.test)) if entry.hub else None
    return _below(entry, root) or cached


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


def _unknown(name: str) -> BayesVLMError:
    near = difflib.get_close_matches(name.lower(), KNOWN, n=3, cutoff=0.5)
    if near:
        return BayesVLMError(
            f"{name!r} is neither a known data set, nor a folder, nor a Hub id; did you mean {' or '.join(near)}?"
        )
    return BayesVLMError(
        f"{name!r} is neither a known data set ({', '.join(KNOWN)}), nor a folder, nor a Hub id like 'owner/name'; "
        "give one of these."
    )
