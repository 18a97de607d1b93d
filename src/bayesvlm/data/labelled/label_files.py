"""Files that list images with their labels: csv, tsv, jsonl and parquet tables, and what Label Studio exports."""

from __future__ import annotations

import errno
import json
import os
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bayesvlm.core.errors import BayesVLMError, BayesVLMWarning, first_line
from bayesvlm.data.labelled.label_studio import CANCELLED, chosen_label, places_of, task_rows
from bayesvlm.data.names import is_address
from bayesvlm.data.rows import choose_column, csv_rows, find_column, jsonl_rows, read_text

LABEL_SUFFIXES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
IMAGE_COLUMNS = ("image", "path", "file", "filename", "file_name", "filepath", "image_path", "img")
LABEL_COLUMNS = ("label", "class", "category", "target", "choice")
SPLIT_COLUMN = "split"

_NO_IMAGES = "{file} lists no images; expected a header such as image,label and a row per image."
_WHOLE = re.compile(r"\d+(\.0+)?")
_ANSWERS = frozenset({"rank", "prob"})  # columns of what `bayesvlm classify` and `detect run` write
_WANTED = frozenset({*IMAGE_COLUMNS, *LABEL_COLUMNS, SPLIT_COLUMN, CANCELLED, *_ANSWERS})


@dataclass(frozen=True)
class LabelRow:
    """One image of a file of labels.

    Attributes:
        image: as the file writes it.
        path: where it is, or would be.
        label: as the file writes it; None where nobody has said it.
    """

    image: str
    path: Path
    label: str | None


def is_label_file(path: Path) -> bool:
    """Whether a file's ending is one of those that `read_labels` reads."""
    return path.suffix.lower() in LABEL_SUFFIXES


def read_labels(
    file: str | Path,
    *,
    root: str | Path | None = None,
    split: str | None = None,
    usual_split: str | None = None,
    labels_needed: bool = True,
) -> list[LabelRow]:
    """Every image of a file, once, with its label, in the file's order.

    A csv, tsv, jsonl or parquet table has a column for the image and one for the label, by one of their usual names;
    of Label Studio its JSON, JSON-MIN and CSV exports are read. A path is looked for beside the file, then below
    `root`, then here. An annotation that was skipped gives no label. An image with several rows has the label that
    more than half of its labels are.

    Args:
        file: csv, tsv, jsonl, parquet or json.
        root: where else the images may lie.
        split: take the rows whose column `split` says so; None takes all.
        usual_split: which split to take where none is asked for, and the table has several.
        labels_needed: whether a table must have a column of labels. Where it need not, an image whose labels
            disagree has none.

    Raises:
        BayesVLMError: where the file cannot be read or has no such columns, and where an image has several labels and
            none of them a majority.
    """
    file = Path(file)
    every = _raw_rows(file)
    rows = _of_split(every, split, usual_split, file)
    if not rows:
        raise BayesVLMError(_NO_IMAGES.format(file=file))
    columns = list(dict.fromkeys(name for row in rows for name in row))
    image_column = _usual_column(columns, IMAGE_COLUMNS, file)
    label_column = _label_column(columns, labels_needed, file)
    whole = label_column is not None and _are_whole_numbers(every, label_column)
    bases = tuple(dict.fromkeys(map(str, (file.parent, *((root,) if root is not None else ()), Path()))))
    images: dict[str, LabelRow] = {}
    votes: dict[str, list[str]] = {}
    called = str(file)
    for number, row in enumerate(rows, start=1):
        where = f"{called}, entry {number}"
        image = _image(row.get(image_column), where)
        written = None if label_column is None or _is_true(row.get(CANCELLED)) else row.get(label_column)
        label = _label(written, f"{where} ({image})", labels_needed)
        label = label.partition(".")[0] if whole and label else label
        if image is None and label is None:
            continue  # a blank line of a spreadsheet
        if image is None:
            raise BayesVLMError(f"{where} has the label {label!r} and no image; fill in or remove the row.")
        path = find_image(image, bases, where)
        key = os.path.abspath(path)
        if key not in images:
            images[key] = LabelRow(image, Path(path), None)
        if label is not None:
            votes.setdefault(key, []).append(label)
    if not images:
        raise BayesVLMError(_NO_IMAGES.format(file=file))
    return _decided(images, votes, labels_needed, file)


def find_image(image: str, bases: Sequence[str], where: str) -> str:
    """Where an image is that a file names: below the first of the folders that has it, else below the first."""
    written = image.removeprefix("file://") if image.startswith("file:///") else image
    places = places_of(written)
    if "\\" in written:
        places += (written.replace("\\", "/"),)
    candidates = [os.path.join(base, place) for place in places for base in bases]
    found = next((path for path in candidates if _is_there(path, image, where)), None)
    if found is None and places[0] == written and is_address(written):
        raise BayesVLMError(
            f"{where}: {image[:60]!r} is an address, and images of tables are not fetched; download it, and write the "
            "path of the file."
        )
    return found or candidates[0]


def _is_there(path: str, image: str, where: str) -> bool:
    """Whether there is anything at a path, or a link; what can be no path is refused."""
    try:
        os.lstat(path)
    except (OSError, ValueError) as error:  # ValueError: a zero byte
        if isinstance(error, OSError) and error.errno != errno.ENAMETOOLONG:
            return False
        why = error.strerror if isinstance(error, OSError) else error
        raise BayesVLMError(f"{where}: {image[:60]!r} is no path ({why}); write where the image is.") from None
    return True


def find_column_in_order(columns: Sequence[Any], known: Sequence[str]) -> str | None:
    """The column with the first of the usual names that there is; None where there is none."""
    return next((found for name in known if (found := find_column(columns, (name,))) is not None), None)


def _usual_column(columns: Sequence[Any], known: Sequence[str], file: Path) -> str:
    found = find_column_in_order(columns, known)
    header = "in the first line of the file" if file.suffix.lower() in (".csv", ".tsv") else ""
    return found if found is not None else choose_column(columns, None, known, file, header)


def _label_column(columns: Sequence[Any], needed: bool, file: Path) -> str | None:
    """Where the labels are; what `bayesvlm classify` wrote has none: its column `class` is what a model says."""
    found = find_column_in_order(columns, LABEL_COLUMNS)
    answers = found == "class" and set(columns) >= _ANSWERS
    if not needed:
        return None if answers else found
    if answers:
        raise BayesVLMError(
            f"{file} was written by `bayesvlm classify`: its column 'class' is what the model says, and no label; put "
            "what is true into a column called label."
        )
    return found or _usual_column(columns, LABEL_COLUMNS, file)


def _of_split(
    rows: Sequence[Mapping[str, Any]], split: str | None, usual: str | None, file: Path
) -> Sequence[Mapping[str, Any]]:
    column = find_column(list(dict.fromkeys(name for row in rows for name in row)), (SPLIT_COLUMN,))
    if column is None and split is not None:
        raise BayesVLMError(
            f"{file} has no column {SPLIT_COLUMN!r}, so {split!r} chooses nothing; leave it out, or add the column."
        )
    if column is None or (split is None and usual is None):
        return rows
    splits = sorted({_said(row.get(column)) for row in rows})
    wanted = split or (usual if len(splits) > 1 else None)
    if wanted is None:
        return rows
    if wanted not in splits:
        raise BayesVLMError(f"{file} has no split {wanted!r}; ask for one of those it has: {', '.join(splits)}.")
    return [row for row in rows if _said(row.get(column)) == wanted]


def _said(value: object) -> str:
    return "" if value is None else str(value).strip()


def _decided(
    images: Mapping[str, LabelRow], votes: Mapping[str, Sequence[str]], needed: bool, file: Path
) -> list[LabelRow]:
    """Each image with its one label: what all, or most, of its rows say."""
    rows: list[LabelRow] = []
    disputed = []
    for key, row in images.items():
        found = votes.get(key, ())
        label = found[0] if found else None
        if len(set(found)) > 1:
            counts = Counter(found).most_common()
            label, count = counts[0] if needed else (None, 0)
            said = " and ".join(f"{name!r} ({times}x)" for name, times in counts)
            if needed and 2 * count <= len(found):
                raise BayesVLMError(
                    f"{file} gives {row.image} the labels {said}, and none of them a majority; decide on one."
                )
            disputed.append(f"{row.image} {said}")
        rows.append(row if label is None else LabelRow(row.image, row.path, label))
    if disputed and needed:
        warnings.warn(
            f"{file} gives {len(disputed)} of {len(rows)} images several labels, such as {disputed[0]}; what most "
            "of an image's labels say was taken.",
            BayesVLMWarning,
            stacklevel=3,
        )
    return rows


# Cells ----------------------------------------------------------------------------------------------------------------


def _image(value: object, where: str) -> str | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    if isinstance(value, dict | bytes):
        raise BayesVLMError(
            f"{where} holds the image itself and not its path; name the folder of such a table with datasets: before "
            "it, so that the package datasets reads it."
        )
    if not isinstance(value, str):
        raise BayesVLMError(f"{where}: the image must be a path, got {value!r}; write it as text.")
    return value.strip()


def _label(value: object, where: str, needed: bool) -> str | None:
    """A label as text: whole numbers without a point, as they were before a gap made floats of their column."""
    value = chosen_label(value.strip() if isinstance(value, str) else value)
    if value is None or value == "" or value == [] or value != value:
        return None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, str | int):
        return str(value)
    if not needed:
        return None
    if isinstance(value, list):
        raise BayesVLMError(f"{where} has {len(value)} labels ({', '.join(map(str, value))}); an image has one.")
    raise BayesVLMError(f"{where}: the label must be a name, got {value!r}; write it as text.")


def _are_whole_numbers(rows: Sequence[Mapping[str, Any]], column: str) -> bool:
    """Whether a column of text has whole numbers alone, some with a point, as a csv has them after a gap."""
    texts = [value.strip() for row in rows if isinstance(value := row.get(column), str) and value.strip()]
    return any("." in text for text in texts) and all(map(_WHOLE.fullmatch, texts))


def _is_true(value: object) -> bool:
    return value is True or str(value).strip().lower() in ("true", "1")


# Files ----------------------------------------------------------------------------------------------------------------


def _raw_rows(file: Path) -> Sequence[Mapping[str, Any]]:
    if file.is_dir():
        raise BayesVLMError(f"{file} is a folder; expected a file of images and labels ({', '.join(LABEL_SUFFIXES)}).")
    if not file.exists():
        raise BayesVLMError(f"The file of labels {file} does not exist; check its path.")
    suffix = file.suffix.lower()
    if suffix not in LABEL_SUFFIXES:
        raise BayesVLMError(
            f"{file} is a {suffix or 'file without suffix'}; images and labels are read from "
            f"{', '.join(LABEL_SUFFIXES)}."
        )
    if suffix == ".parquet":
        return _parquet_rows(file)
    if suffix == ".jsonl":
        return jsonl_rows(file)
    if suffix == ".json":
        return task_rows(_json(file), file, IMAGE_COLUMNS, LABEL_COLUMNS)
    return csv_rows(file, "names")


def _json(file: Path) -> object:
    text = read_text(file)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BayesVLMError(f"{file} is not json ({error}); export it again, or call json lines .jsonl.") from None


def _parquet_rows(file: Path) -> Sequence[Mapping[str, Any]]:
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise BayesVLMError(
            f"{file} is read with pyarrow, which is not installed: `pip install 'bayesvlm[parquet]'`, or save it "
            "as csv."
        ) from None
    try:
        with ParquetFile(file) as table:
            columns = table.schema_arrow.names
            wanted = [name for name in columns if name.strip().lower() in _WANTED]
            rows: list[dict[str, Any]] = table.read(columns=wanted or columns).to_pylist()
            return rows
    except Exception as error:  # pyarrow raises errors of a dozen types
        raise BayesVLMError(f"{file} cannot be read as parquet ({first_line(error)}); write it again.") from None
