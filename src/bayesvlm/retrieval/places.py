"""Where the items of an index come from: folders of images, tables that list some, and sets known by name."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from PIL import Image

from bayesvlm.core.errors import BayesVLMError, first_line
from bayesvlm.data.labelled.label_files import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    find_column_in_order,
    is_label_file,
    read_labels,
)
from bayesvlm.data.labelled.samples import LabelledSet
from bayesvlm.data.names import data_root, own_path
from bayesvlm.data.resolution import resolve
from bayesvlm.data.rows import csv_rows, jsonl_rows
from bayesvlm.embedded import SPLITS
from bayesvlm.images.files import SUFFIXES, SkippedImages, dangling, find_images, shown_path
from bayesvlm.retrieval.columns import OF_FILES, OWN
from bayesvlm.retrieval.filters import Kind

ALBUM, LABEL, SOURCE = "album", "label", "source"
KEPT_OF_FILES = tuple(OF_FILES)
"""Columns by which an index knows what has changed since: of no interest to who searches it."""
_EPOCH = datetime(1970, 1, 1)  # times are in UTC
_DIGITS = 32  # hexadecimal, of a hash of contents
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")  # not 007, which is no number to its owner
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d*)?([eE][-+]?\d+)?")
_KINDS: dict[type, Kind] = {int: "whole numbers", float: "numbers", str: "text"}
_RESERVED = frozenset({*OWN, *KEPT_OF_FILES, "_distance", "_rowid", "_rowaddr", "_relevance_score"})


@dataclass(frozen=True)
class Item:
    """An image that belongs into an index.

    Attributes:
        name: its id there, a path as text or what a set calls it.
        image: as it is stored.
        columns: what else is known of it, by name.
    """

    name: str
    image: Path | bytes | Image.Image
    columns: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str | None:
        """Of its file, as text; None where it is in no file of its own."""
        return shown_path(self.image) if isinstance(self.image, Path) else None

    def stamp(self) -> tuple[int | None, datetime | None]:
        """Size and time of its file, which change when the file does; nothing where it has none, or has gone."""
        if not isinstance(self.image, Path):
            return None, None
        try:
            status = self.image.stat()
            return status.st_size, _EPOCH + timedelta(microseconds=status.st_mtime_ns // 1000)
        except (OSError, OverflowError):
            return None, None

    def content(self) -> str | None:
        """A hash of what it holds; None where its file cannot be read."""
        if isinstance(self.image, Path):
            try:
                with self.image.open("rb") as file:
                    return hashlib.file_digest(file, "sha256").hexdigest()[:_DIGITS]
            except OSError:
                return None
        held = self.image if isinstance(self.image, bytes) else _pixels(self.image)
        return hashlib.sha256(held).hexdigest()[:_DIGITS]


@dataclass(frozen=True)
class Place:
    """Some items, and which rows of an index are theirs.

    Attributes:
        source: what the rows are told by: a folder, a table, an image file, or the name of a set.
        items: of the place, in order.
        size: how many there are, where that is known before they are read.
        folder: as text, where every row of a file below it belongs to the place.
        skipped: of a set, what of it could not be read, once all items were.
        kinds: what columns of the items hold, also where no value of them says so.
        closed: folders below it that could not be listed, as text.
    """

    source: str
    items: Iterable[Item]
    size: int | None
    folder: str | None = None
    skipped: SkippedImages | None = None
    kinds: Mapping[str, Kind] = field(default_factory=lambda: {ALBUM: "text", LABEL: "text"})
    closed: frozenset[str] = frozenset()

    @property
    def listing(self) -> bool:
        """Whether it says by itself what belongs to it, as tables and sets do, in the place of the file system."""
        return self.folder is None


def find_places(names: Iterable[str | Path], skipped: SkippedImages, root: str | Path | None = None) -> list[Place]:
    """What the names stand for: image files, folders of them, tables that list some, or sets as `resolve` knows them.

    Args:
        names: as people type them; a split of the embedded world is meant where a name is one.
        skipped: where files are noted that look like images and cannot be read.
        root: the folder of the data sets; None takes $BAYESVLM_DATA, or ./data.

    Raises:
        BayesVLMError: where a name stands for nothing, or for no image.
    """
    return [_place(str(name), skipped, root) for name in names]


def _place(name: str, skipped: SkippedImages, root: str | Path | None) -> Place:
    if not name.strip():
        raise BayesVLMError("A place of images has no name; give a folder, an image file, a table or a set's name.")
    path = own_path(name)
    try:
        folder, file = (name not in SPLITS and there for there in (path.is_dir(), path.is_file()))
    except OSError as error:
        raise BayesVLMError(
            f"{shown_path(path)} cannot be looked at ({first_line(error)}); check its disk and who may read it."
        ) from None
    if folder:
        return _folder(path, skipped)
    if file:
        return _table(path, root) if is_label_file(path) else _file(path)
    if path.suffix.lower() in SUFFIXES or dangling(path):
        raise BayesVLMError(f"There is no file {shown_path(path)!r}; check the path.")
    return _set(name, resolve(name, kind="images", root=root).open(strict=skipped.strict))


def _folder(folder: Path, skipped: SkippedImages) -> Place:
    whole = Path(os.path.abspath(folder))
    paths = find_images(whole, skipped)
    if not paths:
        raise BayesVLMError(
            f"There are no images in {folder}{skipped.beside}, so nothing was done; give a folder with images in it."
        )
    items = _once([_of_path(path, _album(path, whole)) for path in paths], skipped)
    closed = frozenset(shown_path(Path(each)) for each in skipped.closed)
    return Place(shown_path(whole), items, len(items), folder=shown_path(whole), closed=closed)


def _album(path: Path, folder: Path) -> dict[str, str]:
    """The subfolder that an image lies in, if it lies in one."""
    inside = shown_path(path.parent.relative_to(folder))
    return {} if inside == "." else {ALBUM: inside.replace(os.sep, "/")}


def _file(path: Path) -> Place:
    whole = Path(os.path.abspath(path))
    return Place(shown_path(whole), [_of_path(whole, {})], 1)


def _table(file: Path, root: str | Path | None) -> Place:
    rows = read_labels(file, root=data_root(root), labels_needed=False)
    further, kinds = _further_columns(file)
    labelled = LABEL in kinds or any(row.label is not None for row in rows)
    items = []
    for row in rows:
        label = {LABEL: row.label} if labelled else {}
        items.append(_of_path(Path(os.path.abspath(row.path)), {**label, **further.get(row.image, {})}))
    return Place(shown_path(Path(os.path.abspath(file))), items, len(items), kinds={LABEL: "text", **kinds})


def _of_path(path: Path, columns: Mapping[str, Any]) -> Item:
    return Item(shown_path(path), path, columns)


def _once(items: list[Item], skipped: SkippedImages) -> list[Item]:
    """Without files whose names are written alike, which only names that are no UTF-8 can be."""
    found: dict[str, Item] = {}
    for item in items:
        if item.name in found:
            skipped.note(item.name, BayesVLMError(f"{item.name} is what two files are called as text; rename one."))
        else:
            found[item.name] = item
    return list(found.values())


def _set(name: str, data: LabelledSet) -> Place:
    def items() -> Iterator[Item]:
        for sample in data:
            called = sample.name if sample.name.startswith(data.name) else f"{data.name}/{sample.name}"
            label = data.classes[sample.label] if 0 <= sample.label < len(data.classes) else None
            yield Item(called, sample.image, {LABEL: label})

    return Place(name, _Again(items), data.size, skipped=data.skipped)


class _Again(Iterable[Item]):
    """Items that are read each time they are asked for, and never all in memory."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def __iter__(self) -> Iterator[Item]:
        found: Iterator[Item] = self._made()
        return found


def pictures_of_set(source: str, names: Sequence[str], root: str | Path | None = None) -> dict[str, Any]:
    """The images of a set that rows are called so, as they are stored, where the set is still here."""
    try:
        found = resolve(source, kind="images", root=root)
        place = _set(source, found.open()) if found.here else None
    except BayesVLMError:
        return {}
    wanted, pictures = set(names), {}
    for item in () if place is None else place.items:
        if item.name in wanted:
            pictures[item.name] = item.image
            if len(pictures) == len(wanted):
                break
    return pictures


# Columns of tables ----------------------------------------------------------------------------------------------------


def _further_columns(file: Path) -> tuple[dict[str, dict[str, Any]], dict[str, Kind]]:
    """Of each image as the table writes it, what its other columns say; and what each column holds.

    A column has numbers where it has nothing else, in all of the table; one without a value has no kind. That of labels
    is among the kinds where the table has one.
    """
    rows = _raw_rows(file)
    columns = list(dict.fromkeys(name for row in rows for name in row if isinstance(name, str)))
    image, label = find_column_in_order(columns, IMAGE_COLUMNS), find_column_in_order(columns, LABEL_COLUMNS)
    if image is None:
        return {}, {}
    wanted = [name for name in columns if name not in (image, label) and _keepable(name)]
    made = {name: _kind([row.get(name) for row in rows]) for name in wanted}
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        found.setdefault(_said(row.get(image)), {name: _as(made[name], row.get(name)) for name in wanted})
    kinds: dict[str, Kind] = {name: _KINDS[of] for name, of in made.items() if of is not None}
    if label is not None and not {"rank", "prob"} <= set(columns):  # what `bayesvlm classify` writes says no labels
        kinds[LABEL] = "text"
    return found, kinds


def _raw_rows(file: Path) -> Sequence[Mapping[str, Any]]:
    suffix = file.suffix.lower()
    if suffix == ".jsonl":
        return jsonl_rows(file)
    if suffix in (".csv", ".tsv"):
        return csv_rows(file, "names")
    if suffix == ".parquet":
        from pyarrow.parquet import ParquetFile

        with ParquetFile(file) as table:
            rows: list[dict[str, Any]] = table.read().to_pylist()
            return rows
    return []  # what labelling tools export: labels and nothing else


def _keepable(name: str) -> bool:
    return bool(name.strip()) and not set(name) & {"`", "."} and name not in _RESERVED


def _kind(values: Sequence[Any]) -> type | None:
    """What a column holds: whole numbers, numbers, or text; None where it holds nothing."""
    said = [text for value in values if (text := _said(value))]
    for kind, form in ((int, _WHOLE), (float, _NUMBER)):
        if said and all(form.fullmatch(text) for text in said):
            return kind
    return str if said else None


def _as(kind: type | None, value: Any) -> Any:
    text = _said(value)
    return kind(text) if text and kind is not None else None


def _said(value: Any) -> str:
    return "" if value is None else str(value).strip()


def _pixels(image: Image.Image) -> bytes:
    return f"{image.mode}{image.size}".encode() + image.tobytes()
