"""What a name of a caption set stands for: the names of the embedded world's drawings, a folder, a file."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from bayesvlm.data.captions.files import SUFFIXES, find_captions, read_captions
from bayesvlm.data.captions.sets import CaptionSet
from bayesvlm.data.captions.source import CaptionSource
from bayesvlm.data.labelled.folders import TEMPLATES
from bayesvlm.data.names import ADDRESSED, DataName
from bayesvlm.data.pairs.batches import refuse_choices
from bayesvlm.data.pairs.folders import PairFolder
from bayesvlm.data.sources import embedded_splits
from bayesvlm.data.unlabelled.collection import NO_CLASS, ImageCollection
from bayesvlm.embedded import SPLITS, world
from bayesvlm.images.files import SkippedImages


def find_caption_set(name: DataName, root: Path) -> CaptionSource:
    """The first of these that `name` is:

    - a split of the embedded world, or several joined by +: the names of the concepts ask for their drawings;
    - a folder, here or below `root`, with a caption file in one of the published layouts (`data.captions.files`),
      NAME:SPLIT for one of several; or with a text file beside each image;
    - a caption file itself.
    """
    if embedded_splits(name):
        return CaptionSource.embedded(name, _open_embedded)
    place = None if name.table else name.local(root)
    if place is None:
        return CaptionSource.missing(name, _unknown(name, root))
    if place.is_file() and place.suffix.lower() not in SUFFIXES:
        sentence = f"{place} is no caption file ({', '.join(SUFFIXES)}) and no folder with one; give one of these."
        return CaptionSource.missing(name, sentence, where=str(place))
    return CaptionSource.local(name, [place], partial(_open, place, name.split, root))


def _open_embedded(
    parts: tuple[str, ...], *, image_column: str | None, text_column: str | None, strict: bool
) -> CaptionSet:
    joined = "+".join(parts)
    refuse_choices(joined, "a split of the embedded world", image_column=image_column, text_column=text_column)
    splits = [world(part).load(part) for part in parts]
    pairs = ((sample.name, split.classes[sample.label]) for split in splits for sample in split)
    return CaptionSet.of(joined, splits, pairs)


def _open(
    place: Path, split: str | None, root: Path, *, image_column: str | None, text_column: str | None, strict: bool
) -> CaptionSet:
    skipped = SkippedImages(strict)
    file, left = (place, split) if place.is_file() else find_captions(place, split)
    if file is None:
        columns = {"image_column": image_column, "text_column": text_column}
        refuse_choices(place, "a folder without a caption file", split=split, **columns)
        listed = list(PairFolder.open(place, strict=strict).pairs)
    else:
        listed = read_captions(file, left, skipped, image_column, text_column, root)
    skipped.unlisted.update(skipped.reasons)  # they are no images
    title = place.resolve().name + (f":{split}" if split else "")
    paths = list(dict.fromkeys(path for path, _ in listed))
    keys = dict(zip(paths, _keys(paths), strict=True))
    labels = (NO_CLASS,) * len(paths)
    images = ImageCollection(title, tuple(paths), tuple(keys.values()), labels, (), TEMPLATES, skipped)
    return CaptionSet.of(title, [images], ((keys[path], text) for path, text in listed))


def _keys(paths: Sequence[Path]) -> list[str]:
    """What images are called wherever their folder lies."""
    folders = {path.parent for path in paths}
    top = next(iter(folders)) if len(folders) == 1 else None
    if top is None:
        shared = set.intersection(*({folder, *folder.parents} for folder in folders))
        top = max(shared, key=lambda folder: len(folder.parts), default=None)
    return [path.as_posix() if top is None else path.relative_to(top).as_posix() for path in paths]


def _unknown(name: DataName, root: Path) -> str:
    """What is wrong with a name that stands for nothing."""
    if name.is_address:
        return ADDRESSED.format(name=name.given)
    near = difflib.get_close_matches(name.base, SPLITS, n=1)
    advice = f"did you mean {near[0]!r}?" if near else "put a folder with images and their captions there."
    return (
        f"There is no caption set {name.given!r}: it is no split of the embedded world, and no folder or caption file "
        f"here or in {root}; {advice}"
    )
