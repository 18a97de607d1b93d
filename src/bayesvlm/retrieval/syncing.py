"""An index brought up to date with where its images come from: new, changed and deleted ones, and nothing else read."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.images.files import SkippedImages, path_shown
from bayesvlm.models.streaming import EncodedBatch, stream_features
from bayesvlm.plain import BATCH_SIZE
from bayesvlm.progress import progress_bar
from bayesvlm.retrieval.columns import OF_FILES, OWN, arrow_type, column_of
from bayesvlm.retrieval.filters import as_sql, by_ids, one_of
from bayesvlm.retrieval.index import Index
from bayesvlm.retrieval.leaving import Leaving, Origin, Presence, presence
from bayesvlm.retrieval.places import ALBUM, KEPT_OF_FILES, SOURCE, Item, Place, find_places

if TYPE_CHECKING:
    import pyarrow as pa

_ROWS = 1024  # of one commit at most,
_SECONDS = 20  # and what a process that is killed has done in vain
_HASHING = 2  # threads that read files ahead of who decodes them
_UPDATED = 1000  # rows whose columns change in one commit
_LISTED = 500  # files of a table that are looked for by a condition; for more, every row is looked at

_Stamp = tuple[int | None, datetime | None]  # size and time of a file


class Encode(Protocol):
    """The features of images from any iterable, in order, as `bayesvlm.models.streaming.stream_features` has them."""

    def __call__(
        self, inputs: Any, *, batch_size: int, total: int | None = None
    ) -> Generator[EncodedBatch, None, None]: ...


@dataclass
class Synced:
    """What became of the images.

    Attributes:
        added: how many are new.
        changed: how many hold something else than when they were added, and were encoded again.
        updated: how many hold the same, and something that is kept of them has changed, such as where they lie.
        unchanged: how many were left alone.
        deleted: how many rows had no image any more: its file is gone, or its table or set lists it no longer.
        skipped: what could not be read, and why.
    """

    added: int = 0
    changed: int = 0
    updated: int = 0
    unchanged: int = 0
    deleted: int = 0
    skipped: SkippedImages = field(default_factory=SkippedImages)

    @property
    def written(self) -> int:
        """How many rows are others than before."""
        return self.added + self.changed + self.updated + self.deleted


def sync(
    index: Index,
    places: str | Path | Iterable[str | Path | Place],
    *,
    batch_size: int = BATCH_SIZE,
    workers: int | None = None,
    encode: Encode | None = None,
    skipped: SkippedImages | None = None,
    progress: bool | None = None,
    found: Synced | None = None,
) -> Synced:
    """Bring an index up to date with folders of images, tables or sets; rows that came from elsewhere stay.

    A file is read again where its size or its time have changed, and encoded again where its contents have; one that
    was moved or renamed within its folder takes its row along, with all that is kept of it. One that has a row under
    another id, such as one that `Index.add` was given, stays that row; so does what is kept of it that the places say
    nothing of. What was committed stays when it is interrupted, and the same call does the rest.

    Rows are deleted last, when all places were looked at: those of files below the folders that are gone, and those
    that their table or set lists no longer and no other of the places does. A file that is there and cannot be read
    just now, or that lies in a folder which cannot be listed, keeps its row.

    Args:
        index: of images.
        places: folders, image files, tables that list some, names of sets, or what `find_places` made of them.
        batch_size: images that go through the model at once.
        workers: processes that read, see `bayesvlm.models.streaming.stream_features`.
        encode: encodes elsewhere, such as `bayesvlm.engine.RayEncoder`.
        skipped: where what cannot be read is noted; `SkippedImages(strict=True)` stops at the first.
        progress: None shows a bar on a terminal.
        found: counts as it goes on, for who wants to know how far it came.
    """
    if index.tower != "image":
        raise BayesVLMError(f"{index.place} is an index of texts; files of images go into an index of images.")
    skipped = SkippedImages() if skipped is None else skipped  # an empty one is false
    done = found if found is not None else Synced(skipped=skipped)
    given = [places] if isinstance(places, str | Path) else list(places)
    if not given:
        raise BayesVLMError("There is nothing to index: the list of places is empty; name a folder of images.")
    stream = encode or partial(stream_features, index.vlm.encoder("images"), workers=workers)
    resolved = [each if isinstance(each, Place) else find_places([each], skipped)[0] for each in given]
    leaving = Leaving(resolved)
    for place in resolved:
        _Syncing(index, place, stream, batch_size, skipped, done, progress, leaving).run()
    _leave(index, leaving, done)
    if done.written:
        index.compact()
    return done


def _leave(index: Index, leaving: Leaving, done: Synced) -> None:
    """Rows that no place has an image of are deleted; those that another place has are its own from now on."""
    taken = list(leaving.taken_over().items())
    for start in range(0, len(taken), _UPDATED):
        names, sources = zip(*taken[start : start + _UPDATED], strict=True)
        done.updated += index.update(names, {SOURCE: sources})
    if gone := leaving.gone():
        done.deleted += index.delete(gone)


class _Known(NamedTuple):
    """What an index says of an image; of a million of them half a gigabyte."""

    origin: Origin
    stamp: _Stamp
    content: str | None
    told: tuple[Any, ...]  # by the columns that people see, in the order of the index


class _Fresh(NamedTuple):
    """An image that is to be encoded; `streaming` takes it as a stored one."""

    item: Item
    stamp: _Stamp
    ids: list[str]  # of the rows that it is for
    content: Future[str | None]

    @property
    def name(self) -> str:
        return self.item.name

    @property
    def image(self) -> Any:
        return self.item.image


@dataclass
class _Syncing:
    """One place."""

    index: Index
    place: Place
    stream: Encode
    batch_size: int
    skipped: SkippedImages
    done: Synced
    progress: bool | None
    leaving: Leaving
    known: dict[str, _Known] = field(default_factory=dict)
    called: dict[str, list[str]] = field(default_factory=dict)  # by path, rows that have another id
    columns: list[str] = field(default_factory=list)  # of the index, that people see
    own: list[str] = field(default_factory=list)  # of `OF_FILES`, those that can be kept
    seen: set[str] = field(default_factory=set)
    others: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # whose columns alone have changed
    filled: bool = False  # whether there were rows before

    def run(self) -> None:
        """Everything but what is to be removed, which is noted."""
        self.filled = len(self.index) > 0
        self.known = dict(self._rows())
        for name, row in self.known.items():
            if row.origin.path is not None and row.origin.path != name:
                self.called.setdefault(row.origin.path, []).append(name)
        size = self.place.size
        where = Path(self.place.source).name or self.place.source
        with (
            ThreadPoolExecutor(_HASHING) as pool,
            progress_bar(f"Indexing {where}", total=size, unit="images", show=self.progress) as advance,
        ):
            pending: Iterable[tuple[Item, _Stamp, list[str]]] = self._pending(advance)
            if self._of_files:  # how many are to be encoded is soon known
                pending = self._without_moved(list(pending), advance)
                size = len(pending)
            fresh = (_Fresh(item, stamp, ids, pool.submit(item.content)) for item, stamp, ids in pending)
            self._encode(fresh, size, advance)
        self._update()
        unread = self.place.skipped
        self.skipped.reasons.update({} if unread is None else unread.reasons)
        self.leaving.listed |= self.seen
        self.leaving.absent |= {name: row.origin for name, row in self.known.items() if name not in self.seen}

    @property
    def _of_files(self) -> bool:
        """Whether it has a list of files, whose rows can be told by their paths."""
        return isinstance(self.place.items, list)

    # What is there ---------------------------------------------------------------------------------------------------

    def _rows(self) -> Iterator[tuple[str, _Known]]:
        """The rows of this place, and those of other places that are of the same files."""
        there = self.index.types
        # In older indexes, or by whoever added rows, one may hold something else; then files are read each time.
        self.own = [name for name, kind in OF_FILES.items() if there.get(name, kind) == kind]
        kept = [name for name in self.own if name in there]
        there = {name: kind for name, kind in there.items() if name not in OWN}
        self.columns = [name for name in there if name not in KEPT_OF_FILES]
        conditions = self._conditions(SOURCE in kept)
        if not self.filled or conditions == []:
            return
        files = {item.name for item in self.place.items} if self._of_files and self.place.folder is None else set()
        for row in self.index.rows(
            None if conditions is None else " OR ".join(conditions), ["id", "path", *kept, *self.columns]
        ):
            name, path, source = row["id"], row["path"], row.get(SOURCE)
            if self.place.folder is None and not (source == self.place.source or name in files or path in files):
                continue
            stamp = row.get("bytes"), row.get("modified")
            origin = Origin(name if path == name else path, sys.intern(source) if source else None)  # once in memory
            yield name, _Known(origin, stamp, row.get("content"), tuple(row[each] for each in self.columns))

    def _conditions(self, sourced: bool) -> list[str] | None:
        """Of which one must hold; None: every row is looked at."""
        types, place = self.index.types, self.place
        conditions = [as_sql({SOURCE: place.source}, types)] if sourced else []
        if place.folder is not None:
            inside = place.folder.rstrip("/")
            first, after = as_sql({"path": (">=", f"{inside}/")}, types), as_sql({"path": ("<", f"{inside}0")}, types)
            conditions.append(f"({first} AND {after})")  # 0 comes after / in the order of letters
        elif self._of_files:
            names = [item.name for item in place.items]
            if len(names) > _LISTED:
                return None
            conditions += [one_of(column, names) for column in ("id", "path")] if names else []
        return [each for each in conditions if each is not None]

    def _ids(self, item: Item) -> list[str]:
        """The rows of an image: the one of its name, and in files those that have its path and another id."""
        own = [item.name] if item.name in self.known else []
        path = item.path if self._of_files else None
        return own + (self.called.get(path, []) if path is not None else [])

    def _source(self, of: Origin) -> str | None:
        """What the source of a row is to be that this place lists.

        A folder takes over what tables and other places of files have: it loses nothing as long as there is the file.
        Those leave a row to whom it came from; one that was added in Python is nobody's else.
        """
        if not self._of_files:
            return self.place.source
        if self.place.folder is None or of.source == self.place.source:
            return of.source
        inside = of.source is not None and (of.path or "").startswith(of.source.rstrip("/") + "/")  # a folder's
        file = of.source is None or (Path(of.source).is_absolute() and not inside)
        return self.place.source if file else of.source

    # What is new, and what has changed -------------------------------------------------------------------------------

    def _pending(self, advance: Callable[[int], None]) -> Iterator[tuple[Item, _Stamp, list[str]]]:
        """What is to be encoded, and for which rows; what is not is counted."""
        for item in self.place.items:
            self.seen.add(item.name)
            stamp, ids = item.stamp(), self._ids(item)
            self.seen.update(ids)
            if self.place.listing:
                for name in ids:
                    if self.known[name].origin.source != self.place.source:
                        self.leaving.claimed.setdefault(name, self.place.source)
            other = [name for name in ids if not self._same(item, stamp, name)] if ids else [item.name]
            if other:
                yield item, stamp, other
            else:
                advance(1)

    def _same(self, item: Item, stamp: _Stamp, name: str) -> bool:
        """Whether an image holds what its row says; what else has changed of it is kept for later."""
        known = self.known[name]
        aged = stamp != known.stamp or stamp[1] is None
        if aged and (known.content is None or item.content() != known.content):
            return False
        told = dict(zip(self.columns, known.told, strict=True))
        other = {column: value for column, value in item.columns.items() if told.get(column) != value}
        if stamp != known.stamp:
            other |= {"bytes": stamp[0], "modified": stamp[1]}
        source = self._source(known.origin)
        if source != known.origin.source:
            other[SOURCE] = source
        other = {column: value for column, value in other.items() if column not in OF_FILES or column in self.own}
        if other:
            self.others.append((name, other))
        else:
            self.done.unchanged += 1
        return True

    def _without_moved(
        self, pending: list[tuple[Item, _Stamp, list[str]]], advance: Callable[[int], None]
    ) -> list[tuple[Item, _Stamp, list[str]]]:
        """What is left to encode: a new file that holds what one held that has gone from here takes over its row."""
        gone: dict[tuple[int | None, str], list[str]] = {}
        for name, row in self.known.items():
            path = row.origin.path
            if name in self.seen or row.content is None or path is None or row.origin.source != self.place.source:
                continue
            gone.setdefault((row.stamp[0], row.content), []).append(name)
        if self.place.folder is None or not gone:
            return pending
        sizes, within = {size for size, _ in gone}, path_shown(self.place.folder)
        left: list[tuple[Item, _Stamp, list[str]]] = []
        moved: dict[str, Item] = {}
        for item, stamp, ids in pending:
            same = gone.get((stamp[0], item.content() or ""), []) if stamp[0] in sizes else []
            old = None if item.name in self.known else self._nearest(item, [each for each in same if each not in moved])
            path = None if old is None else self.known[old].origin.path
            if old is None or path is None or presence(path_shown(path), within) is not Presence.GONE:
                left.append((item, stamp, ids))
            else:
                moved[old] = item
        names = list(moved)
        for start in range(0, len(names), _UPDATED):
            some = {name: moved[name] for name in names[start : start + _UPDATED]}
            self._move(some)
            advance(len(some))
        return left

    def _nearest(self, item: Item, names: list[str]) -> str | None:
        """Of rows that hold the same, one whose file was called the same, if there is one."""
        called = Path(item.name).name
        return min(names, key=lambda name: Path(self.known[name].origin.path or name).name != called, default=None)

    # What is written -------------------------------------------------------------------------------------------------

    def _encode(self, fresh: Iterable[_Fresh], total: int | None, advance: Callable[[int], None]) -> None:
        waiting: list[tuple[_Fresh, Features]] = []
        since = time.monotonic()
        try:
            with closing(self.stream(fresh, batch_size=self.batch_size, total=total)) as batches:
                for batch in batches:
                    for place, reason in batch.unreadable.items():
                        self._miss(batch.input(place), reason)
                    features = batch.features.to("cpu")
                    waiting += [(batch.input(place), features[[row]]) for row, place in enumerate(batch.places)]
                    if len(waiting) >= _ROWS or time.monotonic() - since > _SECONDS:
                        self._commit(waiting)
                        waiting, since = [], time.monotonic()
                    advance(batch.seen)
        finally:
            self._commit(waiting)

    def _miss(self, fresh: _Fresh, reason: str) -> None:
        """An image that cannot be read: its row stays as it is as long as there is a file."""
        self.skipped.note(fresh.name, BayesVLMError(reason))
        if fresh.item.path is not None:
            rows = [(name, self.known[name].origin) for name in fresh.ids if name in self.known]
            self.leaving.miss(self.place, fresh.item.path, rows)

    def _commit(self, waiting: list[tuple[_Fresh, Features]]) -> None:
        """Rows on their way into the index; once this returns they are there."""
        rows = {name: (each, features) for each, features in waiting for name in each.ids}
        if not rows:
            return
        there = self._there(list(rows))
        fresh = [each for each, _ in rows.values()]
        told = [{**there.get(name, {}), **each.item.columns} for name, (each, _) in rows.items()]
        for name, each, columns in zip(rows, fresh, told, strict=True):
            source: str | None = self.place.source
            if name in there and SOURCE in self.own:
                source = self._source(Origin(each.item.path, columns.get(SOURCE)))
            size, modified = each.stamp
            file = {SOURCE: source, "bytes": size, "modified": modified, "content": each.content.result()}
            columns |= {column: value for column, value in file.items() if column in self.own}
        self.index.add(
            Features.concatenate([features for _, features in rows.values()]),
            list(rows),
            paths=[each.item.path for each in fresh],
            columns=self._typed(told, whole=True),
            existing="replace",
            progress=False,
        )
        self.done.added += len(rows) - len(there)
        self.done.changed += len(there)

    def _move(self, moved: Mapping[str, Item]) -> None:
        """Rows whose files are elsewhere now; killed in between, both are there, and the old ones go next time."""
        import pyarrow as pa

        store = self.index._store
        columns = store.items.schema.names
        table = pa.Table.from_batches([batch for some in by_ids(moved) for batch in store.read(some, columns)])
        before = table["id"].to_pylist()
        files = [moved[name] for name in before]
        # a row that was given another id than its path keeps it
        own = [self.known[name].origin.path == name for name in before]
        after = [item.name if by_path else name for name, item, by_path in zip(before, files, own, strict=True)]
        for name, values in (("id", after), ("path", [item.path for item in files])):
            place = table.schema.get_field_index(name)
            table = table.set_column(place, table.schema.field(place), pa.array(values, pa.string()))
        store.append(table, "replace", store.known(after))
        told: list[dict[str, Any]] = []
        for item in files:
            size, modified = item.stamp()
            kept = {name: of for name, of in (("bytes", size), ("modified", modified)) if name in self.own}
            told.append({**({ALBUM: None} if ALBUM in self.columns else {}), **item.columns, **kept})
        self.index.update(after, self._typed(told, whole=False))
        if changed := [name for name, by_path in zip(before, own, strict=True) if by_path]:
            self.index.delete(changed)
        self.seen.update(before)
        self.done.updated += len(before)

    def _there(self, ids: list[str]) -> dict[str, dict[str, Any]]:
        """What is kept of rows that are about to be replaced, and stays where their place says nothing of it."""
        if not self.filled:
            return {}
        columns = [name for name in self.index.columns if name == SOURCE or name not in self.own]
        found = self.index.rows(None, ["id", *columns], ids=ids)
        return {row["id"]: {name: row[name] for name in columns} for row in found}

    def _typed(self, told: list[dict[str, Any]], *, whole: bool) -> dict[str, Any]:
        """What is told of some rows as columns, each of one kind whatever happens to be told of these.

        Args:
            told: by row.
            whole: whether the rows are new, so that a column without any value need not be there.
        """
        names = dict.fromkeys(name for columns in told for name in columns)
        values = {name: [columns.get(name) for columns in told] for name in names}
        schema = self.index._store.items.schema
        kinds = {**self.place.kinds, **OF_FILES}
        types: dict[str, pa.DataType] = {name: arrow_type(kind) for name, kind in kinds.items()}
        types |= {field.name: field.type for field in schema}
        return {
            name: column_of(some, types.get(name))
            for name, some in values.items()
            if not whole or any(value is not None for value in some)
        }

    def _update(self) -> None:
        by_names: dict[tuple[str, ...], list[tuple[str, dict[str, Any]]]] = {}
        for name, other in self.others:
            by_names.setdefault(tuple(other), []).append((name, other))
        for rows in by_names.values():
            for start in range(0, len(rows), _UPDATED):
                some = dict(rows[start : start + _UPDATED])
                self.done.updated += self.index.update(list(some), self._typed(list(some.values()), whole=False))
