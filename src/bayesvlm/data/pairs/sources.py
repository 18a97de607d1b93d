"""Telling what a source of image-text pairs is, and opening it as that."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.pairs.batches import PairSet, refuse_choices
from bayesvlm.data.pairs.captions import find_captions_file
from bayesvlm.data.pairs.datasets import PairDataset
from bayesvlm.data.pairs.folders import PairFolder
from bayesvlm.data.pairs.shards import PairShards, find_shards
from bayesvlm.data.tables import is_saved_dataset
from bayesvlm.images.files import find_images

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def open_pairs(
    source: str | Path,
    captions: str | Path | None = None,
    *,
    split: str | None = None,
    image_column: str | None = None,
    text_column: str | None = None,
    captions_per_image: int | None = None,
    batch_size: int = 64,
    strict: bool = False,
) -> PairSet:
    """Open image-text pairs of any kind.

    A folder is, in this order: images with the captions file that is given or lies in it; a data set written by
    `save_to_disk`; tar shards; images with a text file beside each; parquet files. What is no folder is the id of a
    data set on the Hub, and needs a split.

    Args:
        source: a folder, or OWNER/NAME on the Hub.
        captions: a captions file for the images in the folder, see `PairFolder.open`.
        split: of a data set, or of Karpathy's json.
        image_column, text_column: of a data set, or of a csv, tsv or jsonl file; None looks for a usual name.
        captions_per_image: how many captions of an image to take, from its first; None takes them all.
        batch_size: pairs in a batch.
        strict: stop at the first image or shard that cannot be read, instead of skipping it.
    """
    kind = _kind(source, captions, split)
    choices = {"split": split, "image_column": image_column, "text_column": text_column}
    if kind == "shards":
        refuse_choices(source, "a folder of tar shards", **choices)
        return PairShards.open(source, batch_size, strict)
    if kind == "data set":
        return PairDataset.open(
            source, batch_size=batch_size, strict=strict, captions_per_image=captions_per_image, **choices
        )
    return PairFolder.open(source, captions, batch_size, strict, captions_per_image=captions_per_image, **choices)


def _kind(
    source: str | Path, captions: str | Path | None, split: str | None
) -> Literal["images", "shards", "data set"]:
    folder = Path(source)
    if captions is not None:
        return "images"
    if not folder.is_dir():
        if split is None or folder.exists() or not _HUB_ID.fullmatch(str(source)):
            raise BayesVLMError(
                f"{source} is not a folder; give one with pairs, or OWNER/NAME of a data set on the Hub with "
                "its split (split=... or --split)."
            )
        return "data set"
    if find_captions_file(folder):
        return "images"
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
    return "data set" if not images and any(folder.rglob("*.parquet")) else "images"
