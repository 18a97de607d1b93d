"""What a name of image-text pairs stands for: splits of the embedded world, a folder, files, a Hub id."""

from __future__ import annotations

import difflib
from functools import partial
from pathlib import Path
from typing import Literal

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.labelled.known import KNOWN
from bayesvlm.data.names import ADDRESSED, DataName, own_path
from bayesvlm.data.pairs.batches import PairSet
from bayesvlm.data.pairs.captions import CAPTION_SUFFIXES, find_captions_file
from bayesvlm.data.pairs.datasets import PairDataset
from bayesvlm.data.pairs.folders import PairFolder
from bayesvlm.data.pairs.shards import PairShards, expand_shards, find_shards, is_shard, is_shard_pattern
from bayesvlm.data.pairs.source import PairChoices, PairSource
from bayesvlm.data.sources import embedded_splits
from bayesvlm.data.tables import is_saved_dataset
from bayesvlm.embedded import SPLITS, world
from bayesvlm.images.files import find_images


def find_pairs(name: DataName, root: Path) -> PairSource:
    """The first of these that `name` is:

    - a split of the embedded world, or several joined by +;
    - a folder here or below `root`, which is, in this order: images with the captions file that is given or lies in it;
      a data set written by `save_to_disk`; tar shards, in a subfolder where that is the split; images with a text file
      beside each; parquet files;
    - one tar shard, or a pattern of them: `shards/{00000..00099}.tar`, `shards/*.tar`;
    - a captions file (csv, tsv, jsonl, json) that lists images relative to its folder;
    - the Hub id of a data set, with its split; read with the optional `datasets` library.
    """
    if embedded_splits(name):
        return PairSource.embedded(name, _open_embedded)
    if place := name.local(root):
        return _find_local(name, place)
    if name.base and not name.is_address and is_shard_pattern(name.base):
        shards = expand_shards(own_path(name.base))
        absent = [shard for shard in shards if not shard.is_file()]
        if shards and not absent:
            return PairSource.local(name, shards, partial(_open_shards, shards, name.split))
        return PairSource.missing(name, _absent_shards(name, shards, absent))
    repo = None if name.is_address else name.hub_id
    if repo is None:
        return PairSource.missing(name, _unknown(name, root))
    if name.split is None:
        return PairSource.missing(
            name,
            f"There are no pairs {name.given!r} here or in {root}, and a data set on the Hub needs its split: "
            f"{name.given}:train, split=... or --split.",
        )
    return PairSource.hub(name, repo, partial(_open_hub, repo, name.split))


def _find_local(name: DataName, place: Path) -> PairSource:
    if place.is_dir():
        return PairSource.local(name, [place], partial(_open_folder, place, name.split, name.table))
    if is_shard(place):
        return PairSource.local(name, [place], partial(_open_shards, [place], name.split))
    if place.suffix.lower() in CAPTION_SUFFIXES:
        return PairSource.local(name, [place], partial(_open_captions, place, name.split))
    sentence = (
        f"{place} is no folder, tar shard or captions file ({', '.join(CAPTION_SUFFIXES)}); give one of these, parquet "
        "files by their folder, and archives unpacked."
    )
    return PairSource.missing(name, sentence, where=str(place))


def _open_embedded(parts: tuple[str, ...], choices: PairChoices) -> PairSet:
    choices.refuse("+".join(parts), "a split of the embedded world")
    package = world(parts[0])
    pairs: PairSet = package.WorldPairs(tuple(map(package.load, parts)), choices.batch_size)
    return pairs


def _open_shards(shards: list[Path], split: str | None, choices: PairChoices) -> PairShards:
    choices.refuse(shards[0], "a tar shard", split)
    return PairShards.of(shards, choices.batch_size, choices.strict)


def _open_captions(file: Path, split: str | None, choices: PairChoices) -> PairFolder:
    if choices.captions is not None:
        choices.refuse(file, "a captions file itself")
    return _open_images(file.parent, file, split, choices)


def _open_images(folder: Path, captions: Path | None, split: str | None, choices: PairChoices) -> PairFolder:
    return PairFolder.open(
        folder,
        captions,
        choices.batch_size,
        choices.strict,
        split=split,
        image_column=choices.image_column,
        text_column=choices.text_column,
        captions_per_image=choices.captions_per_image,
    )


def _open_hub(repo: str, split: str, choices: PairChoices) -> PairDataset:
    if choices.captions is not None:
        choices.refuse(repo, "a data set on the Hub")
    return _open_table(repo, split, choices)


def _open_table(source: str, split: str | None, choices: PairChoices) -> PairDataset:
    return PairDataset.open(
        source,
        split,
        choices.image_column,
        choices.text_column,
        batch_size=choices.batch_size,
        captions_per_image=choices.captions_per_image,
        strict=choices.strict,
    )


def _open_folder(folder: Path, split: str | None, table: bool, choices: PairChoices) -> PairSet:
    captioned = choices.captions is not None or find_captions_file(folder) is not None
    if split is not None and not captioned and (shards := find_shards(folder / split)):  # as CLIP-benchmark has them
        return _open_shards(shards, None, choices)
    layout = "data set" if table else "images" if captioned else _layout(folder)
    if layout == "shards":
        choices.refuse(folder, "a folder of tar shards", split)
        return PairShards.open(folder, choices.batch_size, choices.strict)
    if layout == "data set":
        return _open_table(str(folder), split, choices)
    return _open_images(folder, choices.captions, split, choices)


def _layout(folder: Path) -> Literal["images", "shards", "data set"]:
    """What a folder without a captions file holds."""
    if is_saved_dataset(folder):
        return "data set"
    shards, images = find_shards(folder), find_images(folder)
    if shards and images:
        raise BayesVLMError(
            f"{folder} holds tar shards ({shards[0].name}) and image files ({images[0].name}); move one kind away, or "
            "say with --captions which file lists the images."
        )
    if shards:
        return "shards"
    within = [] if images else sorted(path.name for path in folder.iterdir() if path.is_dir() and find_shards(path))
    if within:
        raise BayesVLMError(
            f"{folder} holds its tar shards in subfolders ({', '.join(within[:10])}); name one, as in "
            f"{folder}:{within[0]}."
        )
    return "data set" if not images and any(folder.rglob("*.parquet")) else "images"


def _absent_shards(name: DataName, shards: list[Path], absent: list[Path]) -> str:
    if not shards or len(shards) == len(absent):
        return f"{name.given!r} matches no file; give a folder of tar shards, or a pattern such as shards/*.tar."
    return (
        f"{name.given!r} names {len(shards)} shards, of which {len(absent)} are missing, such as {absent[0]}; fetch "
        "them, or name those that are here."
    )


def _unknown(name: DataName, root: Path) -> str:
    """What is wrong with a name that stands for nothing."""
    if name.is_address:
        return ADDRESSED.format(name=name.given)
    start = f"There are no pairs {name.given!r}: "
    if name.base in KNOWN:
        return f"{start}it is a set of labelled images, without captions; name images with captions, such as shards."
    near = difflib.get_close_matches(name.base, SPLITS, n=1)
    advice = f"did you mean {near[0]!r}?" if near else "put shards or images with captions there, or name others."
    return (
        f"{start}it is no split of the embedded world, no folder here or in {root}, and no OWNER/NAME:SPLIT of the "
        f"Hub; {advice}"
    )
