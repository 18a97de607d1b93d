"""What a name of labelled images stands for: a split of the embedded world, a known set, a folder, a Hub id."""

from __future__ import annotations

import difflib
from functools import partial
from pathlib import Path

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.labelled.datasets import HubImages
from bayesvlm.data.labelled.folders import TEMPLATES
from bayesvlm.data.labelled.hub import NotOnHubError, cached_shards, fetch_shards
from bayesvlm.data.labelled.known import KNOWN
from bayesvlm.data.labelled.label_files import LABEL_SUFFIXES, is_label_file
from bayesvlm.data.labelled.layouts import called, open_folder, open_shards
from bayesvlm.data.labelled.listed import ListedImages
from bayesvlm.data.labelled.registry import find_known
from bayesvlm.data.labelled.samples import LabelledSet
from bayesvlm.data.labelled.source import LabelledSource
from bayesvlm.data.names import ADDRESSED, DataName, own_path
from bayesvlm.data.sources import embedded_splits
from bayesvlm.data.tables import is_saved_dataset
from bayesvlm.embedded import SPLITS, world

_NEAR = 0.75  # how alike two names are, by difflib, where one is taken for a misspelling of the other


def find_labelled(name: DataName, root: Path) -> LabelledSource:
    """The first of these that `name` is:

    - a split of the embedded world;
    - one of `KNOWN`: looked for below `root`, in a folder of its name (or of its Hub repository's) that holds shards in
      CLIP-benchmark's layout, the original archive, or class folders of images; then in the Hub's cache, and on it;
    - a folder here or below `root`: shards if it has a classnames.txt, class folders of images otherwise, in a
      subfolder named as the split if there is one (`./NAME` is a folder even where NAME is known);
    - a table here or below `root`, csv, tsv, jsonl or parquet, or what Label Studio exports: the images that it lists,
      where it has a column `split` those of the split;
    - the Hub id of a data set in CLIP-benchmark's layout; `wds/NAME` is its own name for clip-benchmark/wds_NAME;
    - "datasets:" and the Hub id of any other, with columns image and label, or a folder of one that was saved to disk:
      read with the optional `datasets` library.

    Without a split it is the one to test on.
    """
    if len(parts := embedded_splits(name)) == 1:
        return LabelledSource.embedded(name, _open_embedded)
    if parts:
        return LabelledSource.missing(
            name, f"{name.given!r} joins splits, which pairs to fit on may; images to measure on are named one by one."
        )
    if name.base in KNOWN and not name.table:
        return find_known(name, root)
    place = name.local(root)
    if place is not None and place.is_dir():
        if name.table or is_saved_dataset(place):
            return LabelledSource.local(name, [place], partial(_open_table, str(place), name.split))
        return LabelledSource.local(name, [place], partial(open_folder, place, name.split))
    if place is not None and is_label_file(place):
        return LabelledSource.local(name, [place], partial(_open_listed, place, name.split, root))
    if place is not None:
        return LabelledSource.missing(name, _file(place), where=str(place))
    if is_label_file(Path(name.base)) and not (name.table or name.page or name.is_address):
        return LabelledSource.missing(
            name, f"There is no file {name.base!r}, here or in {root}; check the path of the table."
        )
    repo = None if name.is_address else name.hub_id
    if repo is not None and name.table:
        return LabelledSource.hub(name, repo, partial(_open_table, repo, name.split))
    if repo is not None:
        split = name.split or "test"
        opener = partial(_open_hub, repo, split)
        cached = cached_shards(repo, split)
        return (
            LabelledSource.local(name, [cached / split], opener) if cached else LabelledSource.hub(name, repo, opener)
        )
    return LabelledSource.missing(name, _unknown(name))


def _open_embedded(parts: tuple[str, ...], *, templates: tuple[str, ...] | None, strict: bool) -> LabelledSet:
    """A split of the embedded world: its prompts are its own, and all of its images can be read."""
    split: LabelledSet = world(parts[0]).load(parts[0])
    return split


def _open_listed(
    file: Path, split: str | None, root: Path, *, templates: tuple[str, ...] | None, strict: bool
) -> ListedImages:
    name = called("/".join(file.resolve().parts[1:][-2:]), split)
    return ListedImages.open(file, split, root=root, name=name, templates=templates or TEMPLATES, strict=strict)


def _open_table(source: str, split: str | None, *, templates: tuple[str, ...] | None, strict: bool) -> HubImages:
    return HubImages.open(source, split or "test", templates=templates or TEMPLATES, strict=strict)


def _open_hub(repo: str, split: str, *, templates: tuple[str, ...] | None, strict: bool) -> LabelledSet:
    try:
        folder = fetch_shards(repo, split)
    except NotOnHubError as error:
        if Path(repo).parent.is_dir():  # more likely a folder misspelt
            near = near_folder(repo)
            advice = "check the path." if near is None else f"did you mean {near!r}?"
            raise BayesVLMError(
                f"There is no folder {repo!r}, and as a Hub data set it {error.reason}; {advice}"
            ) from error
        raise
    return open_shards(folder, split, name=called(repo, split), templates=templates, strict=strict)


def _file(place: Path) -> str:
    if ".tar" in place.suffixes:
        return (
            f"{place} is one shard; labelled shards are read with the classnames.txt beside their folder, so give the "
            "folder that has it, and its split as in FOLDER:test."
        )
    return (
        f"{place} is a file; give a folder with a subfolder of images for each class, or a table of images and labels "
        f"({', '.join(LABEL_SUFFIXES)})."
    )


def _unknown(name: DataName) -> str:
    """What is wrong with a name that stands for nothing."""
    if name.is_address:
        return ADDRESSED.format(name=name.given)
    bare, folder = name.base.rstrip("/"), near_folder(name.base)
    if any(sign in name.base for sign in "*?{"):
        return f"{name.given!r} matches nothing here; labelled images are named by their folder, not by a pattern."
    path = bare != name.base or name.base.startswith((".", "/", "~"))
    if path and bare not in SPLITS and bare.lower() not in KNOWN:
        advice = "check the path." if folder is None else f"did you mean {folder!r}?"
        return f"There is no folder {name.base!r}; {advice}"
    if near := difflib.get_close_matches(name.base, SPLITS, n=1):
        return f"There is no set {name.given!r}; did you mean {near[0]!r}, of the embedded world?"
    if folder is not None and not difflib.get_close_matches(bare.lower(), KNOWN, n=1, cutoff=_NEAR):
        return f"There is no folder {name.base!r}; did you mean {folder!r}?"
    if near := difflib.get_close_matches(bare.lower(), KNOWN, n=3, cutoff=0.5):
        return (
            f"{name.base!r} is neither a known data set, nor a folder, nor a Hub id; did you mean {' or '.join(near)}?"
        )
    return (
        f"{name.base!r} is neither a known data set ({', '.join(KNOWN)}), nor one of the embedded world "
        f"({', '.join(SPLITS)}), nor a folder, nor a Hub id like 'owner/name'; give one of these."
    )


def near_folder(name: str) -> str | None:
    """The folder beside a name that stands for nothing which is called most like it, as it would be typed."""
    head, sep, tail = name.rstrip("/").rpartition("/")
    try:
        beside = [each.name for each in own_path(head + sep or ".").iterdir() if each.is_dir()]
    except OSError:
        return None
    near = difflib.get_close_matches(tail, beside, n=1, cutoff=_NEAR) if tail else []
    return f"{head}{sep}{near[0]}/" if near else None
