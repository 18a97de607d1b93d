"""Caption files in the layouts that they are published in, and where their images lie.

COCO          annotations/captions_val2017.json; images in val2017/
Karpathy      dataset_coco.json, dataset_flickr30k.json: the split of each image; images in val2014/, flickr30k-images/
Flickr        results_20130124.token, Flickr8k.token.txt: lines IMAGE#NUMBER, tab, caption
              results.csv: lines IMAGE| NUMBER| CAPTION;  captions.txt: a csv with the columns image,caption
A table       csv, tsv or jsonl with a column for the image and one for the caption
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.pairs.batches import refuse_choices
from bayesvlm.data.pairs.captions import CAPTION_FILES, CAPTION_SUFFIXES, read_captions_file
from bayesvlm.data.rows import csv_rows, read_text
from bayesvlm.images.files import SkippedImages

SUFFIXES = (*CAPTION_SUFFIXES, ".token", ".txt")
"""Of files that list captions."""
USUAL_SPLIT = "test"
"""Of Karpathy's, where none is asked for."""

_FLICKR = ("results_20130124.token", "results.csv", "Flickr8k.token.txt", "captions.txt")
_TOKEN = re.compile(r"(?P<image>[^\t]+)#\d+\t(?P<text>.*)")
_BARRED_HEAD = re.compile(r"image_name\s*\|\s*comment_number\s*\|\s*comment\s*")
_BARRED = re.compile(r"(?P<image>[^|]+)\|\s*\d+\s*\|?\s*(?P<text>.*)")  # one line of the published file lacks a bar
_YEARS = ("val2014", "train2014")  # folders that Karpathy's json of COCO names
_INSIDE = (
    "", "images", "Images", "flickr30k-images", "flickr30k_images", "flickr30k_images/flickr30k_images",
    "Flicker8k_Dataset", "Flickr8k_Dataset/Flicker8k_Dataset",
)  # fmt: skip
_LOOKED_AT = 32  # images, to find out which folder they are in

Listed = list[tuple[Path, str]]


def find_captions(folder: Path, split: str | None) -> tuple[Path | None, str | None]:
    """The caption file of a folder, and the split that is left to be taken of it; None where there is no such file."""
    places = (folder, folder / "annotations")
    coco = {
        path.stem.removeprefix("captions_"): path for place in places for path in sorted(place.glob("captions_*.json"))
    }
    if split in coco:
        return coco[split], None
    own = [folder / name for name in CAPTION_FILES if (folder / name).is_file()]
    karpathy = [path for place in places for path in sorted(place.glob("dataset*.json"))]
    found = own or karpathy or [folder / name for name in _FLICKR if (folder / name).is_file()]
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise BayesVLMError(f"{folder} has several caption files ({names}); name one of them instead of the folder.")
    if found or not coco:
        return (found[0] if found else None), split
    return coco[_split_of_coco(folder, coco, split)], None


def read_captions(
    file: Path, split: str | None, skipped: SkippedImages, image_column: str | None, text_column: str | None, root: Path
) -> Listed:
    """Every caption of a file with the path of its image, in the folder where the images are.

    Args:
        file: in one of the layouts above.
        split: of Karpathy's json; None takes its test split.
        skipped: where entries without an image or a caption are noted.
        image_column, text_column: of a table; None looks for one with a usual name.
        root: where else images may lie.
    """
    if file.suffix.lower() not in SUFFIXES or not file.is_file():
        raise BayesVLMError(f"{file} is no file of captions; give one that ends in {', '.join(SUFFIXES)}.")
    folders = _folders(file, root)
    start = next((place for place in folders if any((place / year).is_dir() for year in _YEARS)), file.parent)
    columns = {"image_column": image_column, "text_column": text_column}
    lines = _flickr_lines(file)
    if lines is not None:
        refuse_choices(file, "Flickr's list of captions", split=split, **columns)
        listed = _of_flickr(lines, file, start, skipped)
    else:
        listed = read_captions_file(file, start, skipped, split=split, usual_split=USUAL_SPLIT, **columns)
    return _located(listed, start, folders, file)


def _split_of_coco(folder: Path, coco: Mapping[str, Path], split: str | None) -> str:
    has = ", ".join(sorted(coco))
    if split is not None:
        raise BayesVLMError(f"{folder} has no captions of the split {split!r}; it has {has}.")
    usual = [name for name in coco if name.startswith("val")] if len(coco) > 1 else list(coco)
    if len(usual) != 1:
        raise BayesVLMError(
            f"{folder} has captions of several splits; ask for one of {has}, as in {folder.name}:{sorted(coco)[0]}."
        )
    return usual[0]


# Flickr's lists -------------------------------------------------------------------------------------------------------


def _flickr_lines(file: Path) -> list[str] | None:
    """The lines of a list in one of Flickr's forms; None for another file."""
    kind = file.suffix.lower()
    if kind not in (".token", ".txt", ".csv"):
        return None
    lines = read_text(file).split("\n")
    head = lines[0].rstrip("\r")
    if kind == ".csv":
        return lines if _BARRED_HEAD.fullmatch(head) else None
    if _TOKEN.fullmatch(head) or head.strip().lower() == "image,caption":
        return lines
    raise BayesVLMError(
        f"{file} begins with {head[:40]!r}; expected a line IMAGE#0, a tab and a caption, or the columns image,caption."
    )


def _of_flickr(lines: Sequence[str], file: Path, folder: Path, skipped: SkippedImages) -> Listed:
    entries = _table_entries(file) if lines[0].strip().lower() == "image,caption" else _line_entries(lines, file)
    listed: Listed = []
    for where, image, text in entries:
        if text.strip():
            listed.append((folder / image.strip(), text.strip()))
        else:
            skipped.note(where, BayesVLMError(f"{where}, of {image}, has a blank caption."))
    if not listed:
        raise BayesVLMError(f"{file} lists no captions; fetch it again.")
    return listed


def _table_entries(file: Path) -> Iterator[tuple[str, str, str]]:
    for number, row in enumerate(csv_rows(file, "captions"), start=1):
        values = {name.strip().lower(): value or "" for name, value in row.items()}
        yield f"{file}, entry {number}", values["image"], values["caption"]


def _line_entries(lines: Sequence[str], file: Path) -> Iterator[tuple[str, str, str]]:
    barred = bool(_BARRED_HEAD.fullmatch(lines[0].rstrip("\r")))
    form, shown = (_BARRED, "IMAGE| NUMBER| CAPTION") if barred else (_TOKEN, "IMAGE#NUMBER, a tab and a caption")
    for number, line in enumerate(lines, start=1):
        where, line = f"{file}, line {number}", line.rstrip("\r")
        if not line.strip() or (barred and number == 1):
            continue
        found = form.fullmatch(line)
        if found is None:
            raise BayesVLMError(f"{where} is {line[:60]!r}; expected {shown}.")
        yield where, found["image"], found["text"]


# Where images are -----------------------------------------------------------------------------------------------------


def _folders(file: Path, root: Path) -> list[Path]:
    """Where the images of a caption file may be: beside it, or in folders with the usual names."""
    split = file.stem.removeprefix("captions_")
    above = file.parent.parent if file.parent.name == "annotations" else file.parent
    bases = dict.fromkeys((file.parent, above))
    inside = [base / name for base in bases for name in (*_INSIDE, split, f"images/{split}")]
    return [*inside, root]


def _located(listed: Listed, start: Path, folders: Sequence[Path], file: Path) -> Listed:
    """The same with the images in the first folder that has some of those listed first."""
    names = [(path.relative_to(start) if path.is_relative_to(start) else path, text) for path, text in listed]
    first = list(dict.fromkeys(name for name, _ in names))[:_LOOKED_AT]
    for folder in folders:
        if any(os.path.isfile(folder / name) for name in first):  # False, too, where a folder is closed to us
            return [(folder / name, text) for name, text in names]
    count = len({name for name, _ in names})
    raise BayesVLMError(
        f"None of the first {len(first)} of {count} images that {file} lists is there, such as {first[0]}; put the "
        "images beside the file, or into images/ there."
    )
