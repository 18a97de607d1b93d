"""The one door to data: `resolve` says what a name stands for, and what it gives back is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args, overload

from bayesvlm.core.errors import check_choice
from bayesvlm.data.captions.finding import find_caption_set
from bayesvlm.data.captions.source import CaptionSource
from bayesvlm.data.labelled.finding import find_labelled
from bayesvlm.data.labelled.source import LabelledSource
from bayesvlm.data.names import DataName, data_root
from bayesvlm.data.pairs.finding import find_pairs
from bayesvlm.data.pairs.source import PairSource
from bayesvlm.data.sources import Kind
from bayesvlm.data.unlabelled.finding import find_images
from bayesvlm.data.unlabelled.source import ImageSource


@overload
def resolve(
    name: str | Path,
    kind: Literal["labelled"] = ...,
    root: str | Path | None = ...,
    split: str | None = ...,
) -> LabelledSource: ...


@overload
def resolve(
    name: str | Path,
    kind: Literal["pairs"],
    root: str | Path | None = ...,
    split: str | None = ...,
) -> PairSource: ...


@overload
def resolve(
    name: str | Path,
    kind: Literal["images"],
    root: str | Path | None = ...,
    split: str | None = ...,
) -> ImageSource: ...


@overload
def resolve(
    name: str | Path,
    kind: Literal["captions"],
    root: str | Path | None = ...,
    split: str | None = ...,
) -> CaptionSource: ...


def resolve(
    name: str | Path, kind: Kind = "labelled", root: str | Path | None = None, split: str | None = None
) -> LabelledSource | PairSource | ImageSource | CaptionSource:
    """What a name stands for, where that is, how large it is, and whether it is here; `.open()` makes a set of it.

    Nothing is fetched and no image is read. A name that stands for nothing, or for what is not here, is answered as
    well: `here` is False, `note` says how to get it, and `open` raises it.

    >>> source = resolve("openmoji-black")
    >>> source.where, source.here, source.count
    ('in bayesvlm-world', True, 1530)
    >>> resolve("train+validation", kind="pairs").open().size
    6701
    >>> len(resolve("openmoji-black+openmoji-colour", kind="captions").open().texts)
    1531

    Args:
        name: a split of the embedded world (`openmoji-black`); a known set (`food101`, `eval --list` shows them); a
            folder; OWNER/NAME of the Hub; `datasets:OWNER/NAME`; a folder below `root`; each with `:SPLIT` where it has
            splits. `find_labelled`, `find_pairs`, `find_images` and `find_caption_set` say the order, and what
            else they take.
        kind: labelled images to measure on, image-text pairs to fit on, images whose labels are not asked for, such
            as a set of unknown things (`inaturalist`, `textures`), or captions: images and the texts that ask for them.
        root: the folder of the data sets; None takes $BAYESVLM_DATA, or ./data where that is not set.
        split: the same as NAME:SPLIT.

    Raises:
        BayesVLMError: where two splits are asked for.
    """
    check_choice("kind", kind, get_args(Kind))
    found = DataName.parse(name, split)
    if kind == "pairs":
        return find_pairs(found, data_root(root))
    if kind == "captions":
        return find_caption_set(found, data_root(root))
    return find_images(found, data_root(root)) if kind == "images" else find_labelled(found, data_root(root))
