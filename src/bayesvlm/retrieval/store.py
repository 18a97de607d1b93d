"""The tables of an index in LanceDB: rows that are appended and never half written, and small files beside them.

    items    one row per item
    files    what the index says of itself (`index.json`), its posterior and calibration, by name

Every write is one commit: a reader sees all of it or nothing, whatever is killed meanwhile. A place on this machine has
one writer at a time, which takes a moment; in object storage writers do not wait for each other.
What tells one index from another that was made in its place: `bayesvlm.retrieval.making`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from bayesvlm.core.errors import BayesVLMError, first_line
from bayesvlm.data.names import own_path
from bayesvlm.locks import locked
from bayesvlm.retrieval.columns import fitted
from bayesvlm.retrieval.filters import IDS, one_of
from bayesvlm.retrieval.known import Known, among
from bayesvlm.retrieval.making import all_named, making_of, named, stamped

if TYPE_CHECKING:
    import pyarrow as pa

ITEMS, FILES, ABOUT = "items", "files", "index.json"
SCHEMA = 1
_CACHE = {"index_cache_size_bytes": 2**30, "metadata_cache_size_bytes": 2**27}  # bytes that reading may keep
_KEPT = timedelta(minutes=10)  # that files of an earlier state are left for who reads it
_MANY = 10_000  # rows that may be asked for, whatever there is
_TRIES = 8  # of a write that others came in between of

Result = TypeVar("Result")


def require() -> Any:
    """LanceDB, if it is installed."""
    try:
        import lancedb
    except ImportError:
        raise BayesVLMError(
            "An index is kept in LanceDB, which is not installed: `pip install 'bayesvlm[retrieval]'`."
        ) from None
    return lancedb


class Store:
    """The tables of one index.

    Args:
        place: a folder, or a URL such as s3://bucket/index.
        options: of the object storage, as LanceDB takes them.
    """

    def __init__(self, place: str | Path, options: Mapping[str, str] | None = None) -> None:
        require()
        text = str(place)
        if not text.strip():
            raise BayesVLMError("The index has no name; give a folder, or a URL such as s3://bucket/index.")
        self.name = text
        self.folder = _folder(text)
        if self.folder is not None and self.folder.exists() and not self.folder.is_dir():
            raise BayesVLMError(f"{text} is a file; name a folder for the index.")
        self._options = None if options is None else dict(options)
        self._making: str | None = None  # of the index that was made or opened here
        self._reader: Any = None
        self._looked_up: tuple[int, object, Any] | None = None  # in which state of the table, what for, what was found

    def __getstate__(self) -> dict[str, Any]:
        """For pickles and copies, which connect for themselves."""
        return {name: of for name, of in vars(self).items() if name != "_db"} | {"_reader": None, "_looked_up": None}

    @cached_property
    def _db(self) -> Any:
        """Connecting makes the folder, so it waits until there is one, or something to write."""
        lancedb = require()
        with self._said("opened"):
            return lancedb.connect(
                self.name if self.folder is None else str(self.folder),
                storage_options=self._options,
                read_consistency_interval=timedelta(0),
                session=lancedb.Session(**_CACHE),
            )

    # What is there ---------------------------------------------------------------------------------------------------

    def tables(self) -> list[str]:
        """Names of the tables of the index; none where there is none, or making it was not finished."""
        return [] if self._there(ITEMS) is None else [ITEMS, FILES]

    @property
    def items(self) -> Any:
        """The table of items as it is now.

        Raises:
            BayesVLMError: where another index was made in its place since this one was opened.
        """
        return self.own(self.unchecked)

    @property
    def unchecked(self) -> Any:
        """The same, for who looks by `own` at what is read of it, which spares reading the schema first."""
        with self._said("read"):
            return self._db.open_table(ITEMS)

    @property
    def reader(self) -> Any:
        """The same, opened once: LanceDB looks for what was written since before each read of it, and less anew."""
        if self._reader is None:
            self._reader = self.unchecked
        return self._reader

    def own(self, read: Any) -> Any:
        """A table, or what was read of it, if it is of the index that was opened and not of one made there since."""
        if self._making is not None and making_of(read) != self._making:
            raise self._anew()
        return read

    def _anew(self) -> BayesVLMError:
        return BayesVLMError(f"{self.name} was made anew since it was opened; open it again.")

    def _replaced(self) -> bool:
        """Whether that is why something else failed; False where it cannot be known."""
        with suppress(OSError, ValueError, RuntimeError):
            return self._making is not None and making_of(self._db.open_table(ITEMS)) != self._making
        return False

    def opened(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """What the index says of itself, and its files by name; what is read and written from now on is of this one."""
        for _ in range(_TRIES):
            items = self._there(ITEMS)
            if items is None:
                missing = f"{self.name} holds no index; make one with Index.create or `bayesvlm index`"
                begun = self._there(FILES) is not None
                raise BayesVLMError(f"{missing}: making this one was not finished." if begun else f"{missing}.")
            making = making_of(items)
            files = {} if making is None else self._files(making)
            if ABOUT in files or making == making_of(self._there(ITEMS)):  # else another one was made meanwhile
                break
        try:
            about = json.loads(files[ABOUT])
            schema = about["bayesvlm_index"]
        except (ValueError, KeyError, TypeError):
            raise BayesVLMError(
                f"{self.name} is damaged ({ABOUT} is no index's); make it again, with overwrite=True."
            ) from None
        if schema != SCHEMA:
            raise BayesVLMError(f"{self.name} has schema {schema!r}, this version reads {SCHEMA}; upgrade bayesvlm.")
        self._making = making
        return dict(about), files

    def file(self, name: str) -> bytes | None:
        """One of the files of the index as it is now, if there is one of that name."""
        making = making_of(self.items)
        return None if making is None else self._files(making).get(name)

    def _files(self, making: str) -> dict[str, bytes]:
        with self._said("read"):
            table = self._there(FILES)
            rows = [] if table is None else table.to_arrow().to_pylist()
        start = named(making, "")
        return {row["name"].removeprefix(start): row["content"] for row in rows if row["name"].startswith(start)}

    def _there(self, name: str) -> Any | None:
        """A table, if it was ever committed: what a writer leaves that was stopped before is none."""
        if self.folder is not None and not self.folder.is_dir():
            return None
        with self._said("read"):
            try:
                return self._db.open_table(name)
            except ValueError as error:
                if f"Table '{name}' was not found" in str(error):
                    return None
                raise

    def reading(self, condition: str | None = None) -> AbstractContextManager[None]:
        """A block in which what LanceDB complains of becomes a sentence; a condition that is read by is to blame."""
        return self._said("read", condition)

    def read(self, condition: str | None, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """Rows that a condition holds for, a batch at a time."""
        with self.reading(condition):
            search = self.unchecked.search().select(columns)
            if condition is not None:
                search = search.where(condition)
            yield from self.own(search.to_batches())

    def once(self, of: object, look: Callable[[], Result]) -> Result:
        """What was looked up of something in this state of the table, or is looked up now."""
        with self.reading():
            version = int(self.reader.version)
        if self._looked_up is None or self._looked_up[0] != version or self._looked_up[1] is not of:
            self._looked_up = version, of, look()
        found: Result = self._looked_up[2]
        return found

    def at_most(self, count: int) -> int:
        """So many rows, or as many as there are; LanceDB sets memory aside for as many as it is asked for."""
        if count <= _MANY:  # and nothing need be looked at
            return count
        with self.reading():
            return max(1, min(count, int(self.items.count_rows())))

    def indexed(self, column: str) -> bool:
        """Whether there is an index of these vectors."""
        with self.reading():
            return any(column in index.columns for index in self.items.list_indices())

    def sizes(self, column: str) -> dict[str, Any]:
        """What lies there: files, bytes, and how many rows are not yet in the index of vectors."""
        with self.reading():
            table = self.items
            stats = table.stats()
            index = next((each for each in table.list_indices() if column in each.columns), None)
            ann = None if index is None else table.index_stats(index.name)
        return {
            "bytes": stats["total_bytes"],
            "fragments": stats["fragment_stats"]["num_fragments"],
            "vector_index": None if ann is None else {"kind": ann.index_type, "unindexed_rows": ann.num_unindexed_rows},
        }

    # Writing ---------------------------------------------------------------------------------------------------------

    def create(self, schema: pa.Schema, files: Mapping[str, bytes], overwrite: bool) -> None:
        """An empty index. The files come first, beside those of one that is there, which goes with the last commit."""
        making = uuid4().hex
        self._retried(lambda: self._create(making, schema, files, overwrite))
        self._making = making

    def _create(self, making: str, schema: pa.Schema, files: Mapping[str, bytes], overwrite: bool) -> None:
        before = self._there(ITEMS)
        if before is not None and not overwrite:
            raise IndexExistsError(
                f"{self.name} holds an index already; open it with Index.open, name another place, or replace it "
                "with overwrite=True."
            )
        replaced = making_of(before)  # now: the table shows what is there when it is asked
        try:
            kept = self._there(FILES)
            if kept is None:
                kept = self._db.create_table(FILES, _contents({}))
            self._upsert(kept, "name", _contents(all_named(making, files)))
            whole = stamped(schema, making)
            self._db.create_table(ITEMS, schema=whole, mode="create" if before is None else "overwrite")
        except BaseException:
            with suppress(Exception):
                if making_of(self._there(ITEMS)) != making:
                    self._forget(making)
            raise
        with suppress(Exception):  # of no use to anybody, and of no harm
            self._forget(replaced)

    def _forget(self, making: str | None) -> None:
        """Remove the files of an index that was replaced, or never made."""
        if making is not None:
            self._db.open_table(FILES).delete(f"name LIKE '{named(making, '%')}'")

    def put_files(self, files: Mapping[str, bytes]) -> None:
        """Add small files, in the place of those of the same names."""

        def write() -> None:
            making = making_of(self.items)
            assert making is not None
            self._upsert(self._db.open_table(FILES), "name", _contents(all_named(making, files)))

        self._retried(write)

    def known(self, ids: Sequence[str]) -> Known:
        """Which of these ids are there."""
        with self.reading():
            table = self.items
            version = int(table.version)  # asked first: what comes after it is looked for again when it matters
            if table.count_rows() == 0:
                return Known(set(), version)
            search = table.search().select(["id"])
            if len(ids) <= IDS:  # for more, the whole column is read once
                return Known(set(search.where(one_of("id", ids)).to_arrow()["id"].to_pylist()), version)
            return Known(among(search.to_batches(), ids), version)

    def taken(self, there: set[str], ids: Sequence[str]) -> BayesVLMError:
        """That some ids, in their order, are there already."""
        first, more = next(each for each in ids if each in there), len(there) - 1
        others = f", and {more} more of these" if more else ""
        return BayesVLMError(
            f"{self.name} has an item {first!r} already{others}; give other ids, or say existing='replace' or 'skip'."
        )

    def append(self, rows: pa.Table, existing: str, known: Known) -> int:
        """Add rows in one commit; returns how many were added or replaced.

        Args:
            rows: of ids that differ.
            existing: what to do about ids that are there already: "error", "replace" or "skip".
            known: which are. Where another writer came in between, they are looked for again.
        """

        def write() -> int:
            table = self.items
            ids = rows["id"].to_pylist()
            there = known.ids if known.version == table.version else self.known(ids).ids
            there = there.intersection(ids)
            if there and existing == "error":
                raise self.taken(there, ids)
            current = known.version == table.version
            fresh = rows.filter(_mask([each not in there for each in ids])) if there and existing == "skip" else rows
            if not fresh.num_rows:
                return 0
            before = self._add_columns(table, fresh.schema)
            whole = fitted(fresh, table.schema)
            done = self._upsert(table, "id", whole) if there else table.add(whole)
            if current and done.version == before + 1:  # nobody else has written since
                known.version = done.version
            return int(fresh.num_rows)

        return self._retried(write)

    def update(self, ids: Sequence[str], columns: Mapping[str, pa.Array]) -> int:
        """Change some columns of the rows that have these ids; returns how many there were."""
        import pyarrow as pa

        rows = pa.table({"id": pa.array(ids, pa.string()), **columns})

        def write() -> int:
            table = self.items
            self._add_columns(table, rows.schema)
            whole = fitted(rows, pa.schema([table.schema.field(name) for name in rows.column_names]))
            return int(table.merge_insert("id").when_matched_update_all().execute(whole).num_updated_rows)

        return self._retried(write)

    def delete(self, condition: str) -> int:
        """Remove the rows that a condition holds for; returns how many."""

        return self._retried(lambda: int(self.items.delete(condition).num_deleted_rows), condition)

    def compact(self) -> None:
        """Few large files in the place of many small ones; rows that were added since enter the index of vectors."""

        def write() -> None:
            for table in (self.items, self._db.open_table(FILES)):
                table.optimize(cleanup_older_than=_KEPT)

        self._retried(write)

    def index_vectors(self, column: str, build: Callable[[Any], Any]) -> None:
        """Make an index of vectors.

        Args:
            build: makes its settings of the module `lancedb.index`.
        """
        from lancedb import index as kinds

        self._retried(lambda: self.items.create_index(column, config=build(kinds)))

    # How -------------------------------------------------------------------------------------------------------------

    def _add_columns(self, table: Any, schema: pa.Schema) -> int:
        """Columns that came with these rows for the first time, empty for those that are there; the version then."""
        import pyarrow as pa

        fresh = [field for field in schema if field.name not in table.schema.names]
        if fresh:
            table.add_columns([pa.field(field.name, field.type, nullable=True) for field in fresh])
        return int(table.version)

    def _upsert(self, table: Any, key: str, rows: pa.Table) -> Any:
        return table.merge_insert(key).when_matched_update_all().when_not_matched_insert_all().execute(rows)

    @contextmanager
    def _writing(self, condition: str | None) -> Iterator[None]:
        lock = nullcontext() if self.folder is None else locked(self.folder / ".writer.lock", lambda: None)
        with self._said("written", condition), lock:
            yield

    def _retried(self, write: Callable[[], Result], condition: str | None = None) -> Result:
        """A write, again where others came in between."""
        for attempt in range(_TRIES):
            try:
                with self._writing(condition):
                    return write()
            except _ConflictError:
                if attempt + 1 == _TRIES:
                    raise BayesVLMError(
                        f"{self.name} is written by others all the time, who were quicker {_TRIES} times; try again."
                    ) from None
                time.sleep(0.05 * 2**attempt)
        raise AssertionError("unreachable")

    @contextmanager
    def _said(self, what: str, condition: str | None = None) -> Iterator[None]:
        """What LanceDB complains of, in a sentence."""
        try:
            yield
        except BayesVLMError:
            raise
        except (OSError, ValueError, RuntimeError) as error:
            reason = str(error)
            if self._replaced():
                raise self._anew() from error
            if condition is not None and isinstance(error, ValueError):
                raise BayesVLMError(
                    f"{self.name} cannot be {what} where {condition[:100]}: {_short(error)}; compare columns that it "
                    "has with values of their own kind."
                ) from error
            if "onflict" in reason and what == "written":
                raise _ConflictError from error
            full = "No space left" in reason or "File too large" in reason or "quota" in reason.lower()
            remedy = "make room and do it again: what was there before is there" if full else "check the place"
            raise BayesVLMError(f"{self.name} cannot be {what}: {_short(error)}; {remedy}.") from error


class IndexExistsError(BayesVLMError):
    """There is an index already where one was to be made."""


class _ConflictError(Exception):
    """Another writer was quicker."""


def _folder(place: str) -> Path | None:
    """Where it is on this machine, from wherever one looks; None: in object storage."""
    if place.startswith("file://"):
        return Path(unquote(urlsplit(place).path))
    return None if "://" in place else own_path(place).absolute()


def _contents(files: Mapping[str, bytes]) -> pa.Table:
    import pyarrow as pa

    return pa.table(
        {"name": pa.array(list(files), pa.string()), "content": pa.array(list(files.values()), pa.binary())}
    )


def _mask(values: Sequence[bool]) -> pa.Array:
    import pyarrow as pa

    return pa.array(values, pa.bool_())


def _short(error: Exception) -> str:
    """The first line of a complaint, without where in LanceDB's source it arose."""
    line = re.sub(r"^(lance error: LanceError\(\w+\): |Invalid input, )", "", first_line(error))
    return line.split(", /")[0].rstrip(".")[:300]
