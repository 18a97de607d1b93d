"""Files that list images with their captions: csv, tsv and jsonl tables, COCO's json and Karpathy's.

COCO        {"images": [{"id", "file_name"}], "annotations": [{"image_id", "caption"}]}
Karpathy    {"images": [{"filename", "filepath"?, "split", "sentences": [{"raw"}]}]}
A table     columns for the image and for the caption; an image with several captions has several rows
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.pairs.batches import refuse_choices
from bayesvlm.data.rows import choose_column, csv_rows, jsonl_rows, read_text
from bayesvlm.images.files import SkippedImages

CAPTION_FILES = ("captions.csv", "captions.tsv", "captions.jsonl", "captions.json")
CAPTION_SUFFIXES = (".csv", ".tsv", ".jsonl", ".json")
IMAGE_COLUMNS = ("image", "file_name", "filename", "file", "path", "filepath", "image_path")
CAPTION_COLUMNS = ("caption", "text", "title", "description")

COLUMN_OPTIONS = "or be named (--image-column, --text-column)"
_LAYOUTS = (
    "expected COCO's captions (images with id and file_name, annotations with image_id and caption) "
    "or Karpathy's (images with filename and sentences)"
)


def find_captions_file(folder: Path) -> Path | None:
    """The captions file of a folder, by its name; None where there is none."""
    found = [folder / name for name in CAPTION_FILES if (folder / name).is_file()]
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise BayesVLMError(f"{folder} has several captions files ({names}); say which with --captions.")
    return found[0] if found else None


def read_captions_file(
    file: Path,
    folder: Path,
    skipped: SkippedImages,
    *,
    split: str | None = None,
    usual_split: str | None = None,
    image_column: str | None = None,
    text_column: str | None = None,
) -> list[tuple[Path, str]]:
    """Every caption of the file with its image, in the file's order.

    Args:
        file: csv, tsv, jsonl or json.
        folder: where the images are.
        skipped: where entries without a caption, or without an image, are noted.
        split: of Karpathy's json, the images to take; None takes all,
        usual_split: or those of this one, where there are some.
        image_column, text_column: of a table; None looks for one with a usual name.
    """
    if not file.is_file():
        raise BayesVLMError(f"The captions file {file} does not exist; give a csv, tsv, jsonl or json file.")
    suffix = file.suffix.lower()
    if suffix not in CAPTION_SUFFIXES:
        kind = suffix or "file without suffix"
        raise BayesVLMError(f"The captions file {file} is a {kind}; use csv, tsv or jsonl, or the json of COCO.")
    if suffix == ".json":
        refuse_choices(file, "json", image_column=image_column, text_column=text_column)
        pairs = list(_json_pairs(file, folder, split, usual_split, skipped))
    else:
        refuse_choices(file, "a table", split=split)
        pairs = list(_table_pairs(file, folder, image_column, text_column, skipped))
    if not pairs:
        without = f" ({len(skipped)} without an image or a caption)" if skipped.reasons else ""
        raise BayesVLMError(f"The captions file {file} lists no pairs{without}; give every image a caption.")
    return pairs


# Tables --------------------------------------------------------------------------------------------------------------


def _table_pairs(
    file: Path, folder: Path, image_column: str | None, text_column: str | None, skipped: SkippedImages
) -> Iterator[tuple[Path, str]]:
    rows = jsonl_rows(file) if file.suffix.lower() == ".jsonl" else csv_rows(file, "captions")
    if not rows:
        return
    image = choose_column(list(rows[0]), image_column, IMAGE_COLUMNS, file, COLUMN_OPTIONS)
    caption = choose_column(list(rows[0]), text_column, CAPTION_COLUMNS, file, COLUMN_OPTIONS)
    for number, row in enumerate(rows, start=1):
        where = f"{file}, entry {number}"
        for name in (image, caption):
            if not isinstance(row.get(name), str | None):
                raise BayesVLMError(f"{where}: {name!r} must be text, got {row[name]!r}; put it in quotes.")
        empty = [name for name in (image, caption) if not (row.get(name) or "").strip()]
        if empty:
            skipped.note(where, BayesVLMError(f"{where}: the column {empty[0]!r} is empty."))
        else:
            yield folder / row[image], row[caption]


# COCO and Karpathy ---------------------------------------------------------------------------------------------------


def _json_pairs(
    file: Path, folder: Path, split: str | None, usual_split: str | None, skipped: SkippedImages
) -> Iterator[tuple[Path, str]]:
    text = read_text(file)
    try:
        content = json.loads(text)
    except ValueError as error:
        raise BayesVLMError(f"The captions file {file} is not json ({error}); fetch or write it again.") from None
    if not isinstance(content, dict):
        raise BayesVLMError(f"{file} holds a {type(content).__name__}; {_LAYOUTS}.")
    images = _objects(content, "images", file)
    if "annotations" in content:
        refuse_choices(file, "a file of COCO captions", split=split)
        listed = _coco(images, _objects(content, "annotations", file), file)
    else:
        listed = _karpathy(images, split, usual_split, file, folder)
    for image, caption, where in listed:
        if caption.strip():
            yield folder / image, caption.strip()
        else:
            skipped.note(where, BayesVLMError(f"{where}, of {image}, has a blank caption."))


def _coco(
    images: Sequence[Mapping[str, Any]], annotations: Sequence[Mapping[str, Any]], file: Path
) -> Iterator[tuple[Path, str, str]]:
    """(image, caption, where the caption stands) of every annotation."""
    names = {
        json.dumps(image.get("id")): _text(image, "file_name", f"{file}, image {number}")
        for number, image in enumerate(images, start=1)
    }
    for number, annotation in enumerate(annotations, start=1):
        where = f"{file}, annotation {number}"
        identity = annotation.get("image_id")
        name = None if identity is None else names.get(json.dumps(identity))
        if name is None:
            raise BayesVLMError(f"{where}: image_id is {identity!r}, which is the id of no image; {_LAYOUTS}.")
        yield Path(name), _said(annotation, "caption", where), where


def _karpathy(
    images: Sequence[Mapping[str, Any]], split: str | None, usual_split: str | None, file: Path, folder: Path
) -> Iterator[tuple[Path, str, str]]:
    """(image, caption, where the caption stands) of every sentence; `filepath` counts where there is such a folder."""
    splits = sorted({str(image["split"]) for image in images if "split" in image})
    if split is not None and split not in splits:
        raise BayesVLMError(f"{file} has no split {split!r}; it has {', '.join(splits) or 'none'}.")
    if split is None and usual_split in splits:
        split = usual_split
    for number, image in enumerate(images, start=1):
        where = f"{file}, image {number}"
        name = Path(_text(image, "filename", where))
        inside = Path(_text(image, "filepath", where)) if "filepath" in image else Path()
        if (folder / inside).is_dir():
            name = inside / name
        sentences = _objects(image, "sentences", where)
        if split is None or image.get("split") == split:
            for place, sentence in enumerate(sentences, start=1):
                yield name, _said(sentence, "raw", f"{where}, sentence {place}"), f"{where}, sentence {place}"


def _objects(holder: Mapping[str, Any], name: str, where: str | Path) -> Sequence[Mapping[str, Any]]:
    found = holder.get(name)
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        keys = ", ".join(map(repr, list(holder)[:10])) or "nothing"
        raise BayesVLMError(f"{where} has {keys} but no list of objects called {name!r}; {_LAYOUTS}.")
    return found


def _text(entry: Mapping[str, Any], name: str, where: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str):
        raise BayesVLMError(f"{where}: {name!r} must be text, got {value!r}; {_LAYOUTS}.")
    return value


def _said(entry: Mapping[str, Any], name: str, where: str) -> str:
    """A caption; null is a blank one."""
    return "" if name in entry and entry[name] is None else _text(entry, name, where)
