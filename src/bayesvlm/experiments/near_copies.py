"""Near-duplicates among pictures: encoded, or from an index; the largest of each group is the one to keep."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.experiments.feature_store import FeatureStore
from bayesvlm.experiments.image_files import encode_files
from bayesvlm.images.files import SkippedImages, path_shown
from bayesvlm.models.streaming import stream_features
from bayesvlm.progress import progress_bar
from bayesvlm.retrieval.collected import Collected, index_rows, together
from bayesvlm.retrieval.duplicates import Duplicates, compared
from bayesvlm.retrieval.index import Index
from bayesvlm.retrieval.places import SOURCE, Item, Place
from bayesvlm.retrieval.rows import Rows, shape_of
from bayesvlm.retrieval.searching import Rank
from bayesvlm.vlm import BayesVLM

_PART = 1024  # images whose features become rows at once


@dataclass(frozen=True)
class Picture:
    """What is known of a picture without looking at it.

    Attributes:
        name: as its place calls it.
        path: of its file, as text; None where it is in no file of its own.
        source: the place that it is of.
        width, height: as it is stored, 0 where that cannot be told.
        bytes: of its file.
    """

    name: str
    path: str | None
    source: str | None
    width: int = 0
    height: int = 0
    bytes: int = 0

    @property
    def preference(self) -> tuple[int, int]:
        """What is larger is kept: in pixels, then in bytes."""
        return self.width * self.height, self.bytes


@dataclass(frozen=True)
class NearCopies:
    """Near-duplicates, and the pictures that they are of.

    Attributes:
        found: groups of them.
        pictures: all that were compared, by name.
        model: they were compared by.
        missing: pictures that were asked for and are not in the index as they are now.
        gone: how many rows of the index have no file any more.
    """

    found: Duplicates
    pictures: Mapping[str, Picture]
    model: str
    missing: Sequence[str] = ()
    gone: int = 0

    @property
    def bytes(self) -> int:
        """What the near-copies take on the disk, beside what is kept in their place."""
        return sum(self.pictures[copy.id].bytes for group in self.found for copy in group.copies)


def of_places(
    vlm: BayesVLM,
    places: Iterable[Place],
    store: FeatureStore,
    skipped: SkippedImages,
    *,
    model: str,
    similarity: float,
    level: float,
    by: Rank,
    batch_size: int = 64,
) -> NearCopies:
    """Among the images of folders, tables and sets. Each is looked at once, whatever places name it.

    Args:
        store: encodes, and keeps the features of files for the next time.
        skipped: where what cannot be read is noted.
        model: what to call it.
        similarity, level, by: as for `near_duplicates`.
        batch_size: images that go through the model at once.
    """
    shape_of(vlm, "image")  # refuses what cannot be compared before anything is encoded
    items: dict[str, tuple[Item, str]] = {}
    for place in places:
        for item in place.items:
            items.setdefault(item.name, (item, place.source))
    pictures: list[Picture] = []
    rows: list[Rows] = []
    with progress_bar("Encoding", total=len(items), unit="images") as advance:
        for some, features, seen in _encoded([item for item, _ in items.values()], store, skipped, batch_size):
            pictures += [measured(item, items[item.name][1]) for item in some]
            if some:
                rows.append(Rows.of(vlm, features, "image"))
            advance(seen)
    if not pictures:
        raise BayesVLMError(f"None of {len(items)} images can be read{skipped.beside}; nothing was compared.")
    return _found(vlm, pictures, rows, model, similarity, level, by)


def of_index(index: Index, places: Sequence[Place] | None, *, similarity: float, level: float, by: Rank) -> NearCopies:
    """Among the rows of an index, or those of them that some places name.

    A file that has gone is not compared; nor, where places are given, one whose size is another than when it was added.
    """
    if index.tower != "image":
        raise BayesVLMError(f"{index.place} is an index of texts; near-copies of images are looked for.")
    wanted = None if places is None else {item.name for place in places for item in place.items}
    kept = [name for name in (SOURCE, "bytes") if name in index.columns]
    pictures: list[Picture] = []
    rows: list[Rows] = []
    gone = 0
    known: set[str] = set()
    paths: set[str] = set()
    for told, part in index_rows(index, None, kept):
        usable = []
        for place, row in enumerate(told):
            if wanted is not None and row["id"] not in wanted and row["path"] not in wanted:
                continue  # a file may have a row under any id
            picture = _of_row(row)
            if picture is None:
                gone += 1
            elif picture.path in paths:
                continue  # of two rows of one file neither is a copy
            elif wanted is None or row.get("bytes") in (None, picture.bytes):
                usable.append(place)
                pictures.append(picture)
                known.add(picture.name)
                if picture.path is not None:
                    paths.add(picture.path)
        rows.append(part[usable])
    missing = [] if wanted is None else sorted(wanted - known - paths)
    found = _found(index.vlm, pictures, rows, index.info()["model"], similarity, level, by)
    return replace(found, missing=missing, gone=gone)


def _found(
    vlm: BayesVLM,
    pictures: Sequence[Picture],
    rows: Sequence[Rows],
    model: str,
    similarity: float,
    level: float,
    by: Rank,
) -> NearCopies:
    """Names are put in order first, so that neither threads nor the order in an index decide what is kept."""
    by_name = sorted(range(len(pictures)), key=lambda place: pictures[place].name)
    order = sorted(by_name, key=lambda place: pictures[place].preference, reverse=True)
    ids, paths = [each.name for each in pictures], [each.path for each in pictures]
    collected = Collected(ids, paths, together(rows, vlm, "image"), order)
    found = compared(vlm, collected, "image", similarity=similarity, level=level, by=by)
    return NearCopies(found, {each.name: each for each in pictures}, model)


def _encoded(
    items: Sequence[Item], store: FeatureStore, skipped: SkippedImages, batch_size: int
) -> Iterator[tuple[list[Item], Features, int]]:
    """Items that can be read with their features, and how many were looked at; files first, by way of the cache."""
    files = {item.image: item for item in items if isinstance(item.image, Path)}
    for batch in encode_files(store, list(files), skipped, batch_size):
        yield [files[path] for path in batch.paths], batch.features, batch.seen
    others = [item for item in items if not isinstance(item.image, Path)]
    if not others:
        return
    for found in stream_features(store.adapter, iter(others), batch_size=batch_size, total=len(others)):
        for place, reason in found.unreadable.items():
            skipped.note(found.input(place).name, BayesVLMError(reason))
        yield [found.input(place) for place in found.places], found.features, found.seen


def measured(item: Item, source: str | None) -> Picture:
    """An item with the size of its picture, by its header."""
    image, size = item.image, item.stamp()[0]
    if isinstance(image, Image.Image):
        return Picture(item.name, item.path, source, *image.size)
    width, height = _size(image if isinstance(image, Path) else BytesIO(image))
    held = size if isinstance(image, Path) else len(image)
    return Picture(item.name, item.path, source, width, height, held or 0)


def _of_row(row: Mapping[str, Any]) -> Picture | None:
    """A row of an index; None where it had a file that is there no more."""
    picture = Picture(row["id"], row["path"], row.get(SOURCE))
    if picture.path is None:
        return picture
    path = path_shown(picture.path)
    try:
        held = path.stat().st_size
    except OSError:
        return None
    width, height = _size(path)
    return replace(picture, width=width, height=height, bytes=held)


def _size(file: Path | BytesIO) -> tuple[int, int]:
    try:
        with Image.open(file) as opened:
            return opened.size
    except Exception:  # decoders raise nearly every type on damaged files
        return 0, 0
