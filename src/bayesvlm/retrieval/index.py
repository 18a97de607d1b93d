"""An index of images (or texts) that answers with how sure it is of every cosine."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, get_args

import torch

from bayesvlm.core.errors import BayesVLMError, BayesVLMWarning, check_choice, check_count
from bayesvlm.core.estimation import TOWERS, Tower
from bayesvlm.core.features import Features
from bayesvlm.core.notebook import html_table
from bayesvlm.images.files import names_a_file
from bayesvlm.progress import progress_bar
from bayesvlm.prompts import Templates
from bayesvlm.retrieval.adding import Items, as_ids, check_distinct, is_folder
from bayesvlm.retrieval.calibrating import calibrated
from bayesvlm.retrieval.columns import OWN, VECTOR, check_columns, fitted, from_arrow, kinds, schema
from bayesvlm.retrieval.filters import Kind, Where, as_sql, by_ids
from bayesvlm.retrieval.hits import LEVEL, Hits
from bayesvlm.retrieval.identity import check_identity, identity, loaded, posterior_files
from bayesvlm.retrieval.matching import FILE, Calibration
from bayesvlm.retrieval.queries import Queries
from bayesvlm.retrieval.rows import Rows, shape_of
from bayesvlm.retrieval.searching import Rank, Searcher
from bayesvlm.retrieval.store import ABOUT, SCHEMA, Store
from bayesvlm.vlm import BayesVLM

Existing = Literal["error", "replace", "skip"]
Id = str | os.PathLike[str]
Ids = Sequence[Id] | Id

ANN_ROWS = 100_000
"""From so many rows on `compact` makes an index of vectors; below, every row is looked at, which takes milliseconds."""
BITS = 5  # per coordinate in the index of vectors; recall@10 with 1, LanceDB's default: docs/retrieval.md
_RQ_WIDTHS = 8  # LanceDB makes such an index of widths that this divides; of others, one of a byte per coordinate


@dataclass(frozen=True)
class Added:
    """What `Index.add` did.

    Attributes:
        rows: how many items were added or replaced.
        skipped: how many were there already, and were skipped.
        unreadable: by place, why an image could not be read and has no row.
    """

    rows: int
    skipped: int = 0
    unreadable: Mapping[int, str] = field(default_factory=dict)

    def __int__(self) -> int:
        return self.rows


class Index:
    """A collection of images, or of texts, kept in LanceDB with what makes the variance of any cosine with it.

    It is of one posterior, which lies in it: `Index.open(folder)` brings the model along, and another is refused.

    Example:
        >>> import tempfile
        >>> from bayesvlm import BayesVLM, world
        >>> vlm, split = BayesVLM.from_pretrained("emoji-clip"), world.load("openmoji-black")
        >>> index = Index.create(tempfile.mkdtemp(), vlm)
        >>> added = index.add(split.images[:20], ids=[f"drawing {place}" for place in range(20)])
        >>> hits = index.search("grinning face", k=3)
        >>> len(index), hits[0].id, len(hits)
        (20, 'drawing 0', 3)
    """

    def __init__(
        self, store: Store, vlm: BayesVLM | None, about: Mapping[str, Any], calibration: Calibration | None = None
    ) -> None:
        self._store, self._about, self._calibration = store, dict(about), calibration
        self._vlm = vlm

    # Making and opening ----------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        place: str | Path,
        vlm: BayesVLM,
        *,
        tower: Tower = "image",
        overwrite: bool = False,
        storage_options: Mapping[str, str] | None = None,
    ) -> Self:
        """A new, empty index.

        Args:
            place: a folder, or a URL of object storage such as s3://bucket/index.
            vlm: a model with a damped posterior, whose covariances share one shape. It is kept in the index, the
                encoder by its name.
            tower: what is indexed: "image", or "text" for captions.
            overwrite: replace an index that is there.
            storage_options: of the object storage, as LanceDB takes them.
        """
        check_choice("tower", tower, TOWERS)
        _check_model(vlm)
        for each in TOWERS:
            shape_of(vlm, each)
        store = Store(place, storage_options)
        projection = vlm.image if tower == "image" else vlm.text
        about: dict[str, Any] = {
            "bayesvlm_index": SCHEMA,
            "tower": tower,
            "d": projection.embedding_width,
            "p": projection.input_width,
            "identity": identity(vlm),
        }
        files = {ABOUT: json.dumps(about, indent=1).encode(), **posterior_files(vlm)}
        store.create(schema(about["d"], about["p"]), files, overwrite)
        return cls(store, vlm.copy(), about)

    @classmethod
    def open(
        cls,
        place: str | Path,
        vlm: BayesVLM | None = None,
        *,
        model: str | Path | None = None,
        device: str | torch.device | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> Self:
        """An index that is there.

        Args:
            place: as for `create`.
            vlm: the model it was made with; None loads it, with the posterior that lies in the index. Another model, or
                another posterior of it, is refused.
            model: where the encoder is now, if it has moved: a folder or Hub id.
            device: for a model that is loaded.
            storage_options: as for `create`.
        """
        store = Store(place, storage_options)
        about, files = store.opened()
        if vlm is None:
            vlm = loaded(files, str(place), model, device)
        _check_model(vlm)
        check_identity(about["identity"], vlm, str(place))
        calibration = Calibration.from_json(files[FILE], str(place)) if FILE in files else None
        return cls(store, vlm.copy(), about, calibration)

    @classmethod
    def look(cls, place: str | Path, *, storage_options: Mapping[str, str] | None = None) -> Self:
        """An index that is there, without its model: to see what it holds, to delete, update or compact it.

        It takes no time, and the model need not be there; what has to encode or compare is refused.
        """
        store = Store(place, storage_options)
        about, files = store.opened()
        calibration = Calibration.from_json(files[FILE], str(place)) if FILE in files else None
        return cls(store, None, about, calibration)

    def refresh(self) -> Self:
        """Take on a calibration that was made elsewhere since this was opened; rows are always those that are there."""
        found = self._store.file(FILE)
        self._calibration = None if found is None else Calibration.from_json(found, self.place)
        return self

    def to(self, device: str | torch.device) -> Self:
        """The same index, with its model on another device."""
        return type(self)(self._store, self.vlm.to(device), self._about, self._calibration)

    # What it holds ---------------------------------------------------------------------------------------------------

    @property
    def vlm(self) -> BayesVLM:
        """The model, with the posterior that the index is of."""
        if self._vlm is None:
            raise BayesVLMError(
                f"{self.place} was opened without its model; take Index.open in the place of Index.look."
            )
        return self._vlm

    @property
    def place(self) -> str:
        """Where it lies."""
        return self._store.name

    @property
    def tower(self) -> Tower:
        """What is indexed: "image" or "text"."""
        found: Tower = self._about["tower"]
        return found

    @property
    def columns(self) -> tuple[str, ...]:
        """What came with the items beside their ids and paths."""
        return tuple(name for name in self._store.items.schema.names if name not in OWN)

    @property
    def types(self) -> dict[str, Kind]:
        """What each column holds, such as "text" or "whole numbers": what a condition can compare it with."""
        return kinds(self._store.items.schema)

    def __len__(self) -> int:
        with self._store.reading():
            return int(self._store.items.count_rows())

    def __contains__(self, item: object) -> bool:
        return isinstance(item, str | os.PathLike) and os.fspath(item) != "" and bool(self.get([item]))

    def __repr__(self) -> str:
        try:
            count = f"{len(self)} {self.tower}s"
        except BayesVLMError:
            count = f"{self.tower}s that cannot be read now,"
        return f"Index({self.place}: {count} of {self._about['identity']['model']})"

    def _repr_html_(self) -> str:
        """A small table for notebooks."""
        try:
            rows = [[f"{self.tower}s", f"{len(self):,}"], ["columns", ", ".join(self.columns) or "none"]]
        except BayesVLMError as error:
            rows = [[f"{self.tower}s", str(error)]]
        made = "none" if self._calibration is None else f"at most {self._calibration.error:.3g} turned away"
        rows += [["model", self._about["identity"]["model"]], ["calibration", made]]
        return html_table(f"Index {self.place}", ["", ""], rows)

    def info(self) -> dict[str, Any]:
        """What there is to say of it, as json."""
        return {
            "place": self.place,
            "tower": self.tower,
            "model": self._about["identity"]["model"],
            "posterior": self._about["identity"]["posterior"],
            "rows": len(self),
            "d": self._about["d"],
            "p": self._about["p"],
            "columns": list(self.columns),
            "calibration": None if self._calibration is None else self._calibration.summary(),
            **self._store.sizes(VECTOR),
        }

    def get(self, ids: Ids, columns: Sequence[str] = ("id", "path")) -> list[dict[str, Any]]:
        """What is kept of items, for those of these ids that are there; in no order."""
        return list(self.rows(None, columns, ids=ids))

    def rows(
        self,
        where: Where | None = None,
        columns: Sequence[str] = ("id", "path"),
        *,
        ids: Ids | None = None,
    ) -> Iterator[dict[str, Any]]:
        """What is kept of all items, of those that a condition holds for, or of those with some ids; in no order."""
        there = kinds(self._store.items.schema)
        for column in columns:
            if column not in there:
                raise BayesVLMError(f"There is no column {column!r}; the index has {', '.join(sorted(there))}.")
        condition = as_sql(where, there)
        for each in [condition] if ids is None else by_ids(as_ids(ids), condition):
            for batch in self._store.read(each, list(columns)):
                yield from batch.to_pylist()

    # Adding and removing ---------------------------------------------------------------------------------------------

    def add(
        self,
        items: Any,
        ids: Sequence[Id] | None = None,
        *,
        paths: Sequence[str | Path | None] | None = None,
        columns: Mapping[str, Sequence[Any]] | None = None,
        existing: Existing = "error",
        batch_size: int | None = None,
        workers: int | None = None,
        strict: bool = False,
        progress: bool | None = None,
    ) -> Added:
        """Add items; when this returns they are there, for every reader, whatever happens next.

        Rows are committed some thousand at a time: when it is interrupted, what was committed stays, and the same call
        with existing="skip" adds the rest.

        Args:
            items: images (or texts, in an index of texts), or Features of them.
            ids: a text for each; None: their paths, where the items are paths.
            paths: of each one's file, kept whole where there is such a file; None: the items, where they are paths.
            columns: what else to keep of the items, by name: a value each, to filter by and to see with a hit.
            existing: what to do about an id that is there already: "error", "replace" its row or "skip" it.
            batch_size, workers: as for `BayesVLM.stream`.
            strict: stop at the first image that cannot be read; else it has no row, a warning says so, and it is named
                in what is returned. Where not one can be read it is an error.
            progress: None shows a bar on a terminal.
        """
        check_choice("existing", existing, get_args(Existing))
        asked = Items.of(self.tower, items, ids, paths, columns)
        known = self._store.known(asked.ids)
        if known.ids and existing == "error":
            raise self._store.taken(known.ids, asked.ids)
        places = [place for place, each in enumerate(asked.ids) if existing != "skip" or each not in known.ids]
        wanted = asked if len(places) == len(asked) else asked[places]
        self._check_columns(wanted)
        added = 0
        unreadable: dict[int, str] = {}
        with progress_bar("Indexing", total=len(wanted), unit=f"{self.tower}s", show=progress) as advance:
            for table, reasons in wanted.tables(self.vlm, self.tower, batch_size, workers):
                if reasons and strict:
                    raise BayesVLMError(reasons[min(reasons)])
                unreadable |= {places[place]: why for place, why in reasons.items()}
                if table.num_rows:
                    added += self._store.append(table, existing, known)
                advance(table.num_rows + len(reasons))
        if unreadable:
            self._say_unreadable(asked, unreadable)
        return Added(added, len(asked) - added - len(unreadable), unreadable)

    def _say_unreadable(self, asked: Items, unreadable: Mapping[int, str]) -> None:
        place = min(unreadable)
        folder = isinstance(asked.given, list) and is_folder(asked.given[place])
        other = "; of a folder, bayesvlm.retrieval.sync or `bayesvlm index` adds the images" if folder else ""
        if len(unreadable) == len(asked):
            raise BayesVLMError(
                f"None of {len(asked)} item(s) can be read as an image, so nothing was added. The first: "
                f"{unreadable[place].rstrip('.')}{other or '; give images, or Features'}."
            )
        warnings.warn(
            f"{len(unreadable)} of {len(asked)} items cannot be read and have no row; `unreadable` of what is returned "
            f"names them. The first: {unreadable[place].rstrip('.')}{other}.",
            BayesVLMWarning,
            stacklevel=3,
        )

    def delete(self, ids: Ids | None = None, *, where: Where | None = None) -> int:
        """Remove items by their ids, or those that a condition holds for; returns how many there were."""
        if (ids is None) == (where is None):
            raise BayesVLMError("Say which items to delete: either ids=[...] or where={...}.")
        if ids is None:
            condition = as_sql(where, kinds(self._store.items.schema))
            assert condition is not None
            return self._store.delete(condition)
        return sum(self._store.delete(condition) for condition in by_ids(as_ids(ids)))

    def update(self, ids: Sequence[Id], columns: Mapping[str, Sequence[Any]]) -> int:
        """Change what else is kept of items, or keep something new of them; returns how many of them are there.

        Args:
            ids: of the items.
            columns: as for `add`, a value for each of them; other columns stay as they are.
        """
        named = as_ids(ids)
        check_distinct(named)
        kept = check_columns(columns, len(named))
        return self._store.update(named, kept) if named and kept else 0

    def compact(self) -> None:
        """Few large files in the place of many small ones, and from `ANN_ROWS` rows on an index of vectors.

        Searches go on meanwhile, and see all rows throughout.
        """
        self._store.compact()
        if len(self) >= ANN_ROWS and not self._store.indexed(VECTOR):
            whole = self._about["d"] % _RQ_WIDTHS == 0
            self._store.index_vectors(
                VECTOR,
                lambda of: of.IvfRq(distance_type="dot", num_bits=BITS) if whole else of.IvfSq(distance_type="dot"),
            )

    def _check_columns(self, items: Items) -> None:
        """Refuse values that do not go into the columns that there are, before anything is encoded."""
        import pyarrow as pa

        there = self._store.items.schema
        kept = {name: values for name, values in items.columns.items() if name in there.names}
        fitted(pa.table(kept), pa.schema([there.field(name) for name in kept]))

    # Searching -------------------------------------------------------------------------------------------------------

    def search(
        self,
        query: Any,
        k: int = 10,
        *,
        where: Where | None = None,
        tower: Tower | None = None,
        templates: Templates | None = None,
        rank: Rank = "mean",
        level: float = LEVEL,
        exact: bool = False,
        probes: int | None = None,
        seed: int = 0,
    ) -> Hits | list[Hits]:
        """The k items with the highest expected cosine, each with its standard deviation and interval.

        Args:
            query: a text, an image (a path as `pathlib.Path`, PIL, bytes, an array), a vector as wide as the embeddings
                (which has no variance), Features; or a list of one of these, and then a list of Hits is returned.
            k: how many; where there are fewer, all are returned.
            where: a condition on columns, such as {"year": (">=", 2020), "album": ["a", "b"]}; values cannot break out
                of it. Or a condition in SQL, which must not be made of what others type.
            tower: what Features, or strings, are of; None: of the other tower, and texts.
            templates: prompts with {c} in the place of a text, averaged as one query, as for `BayesVLM.classify`; None:
                those of the calibration, and as they are where there is none.
            rank: "mean"; "lower", by the lower end of the interval, to be safe; "upper", to explore. Both look at ten
                times as many items as are returned.
            level: of that interval.
            exact: look at every row, whatever index of vectors there is.
            probes: parts of the index of vectors to look into; None: all, which keeps recall high and is quick up to
                some ten million rows.
            seed: of the draws behind `p_best`.
        """
        options = {"where": where, "rank": rank, "level": level, "exact": exact, "probes": probes, "seed": seed}
        searcher = self._searcher(k, options)
        usual = None if self._calibration is None else self._calibration.prompts or None
        asked = Queries.of(self.vlm, query, tower, self.tower, templates, usual)
        if tower is None and asked.tower == "text" and not isinstance(query, Features):
            _warn_of_files(asked.names)
        found = searcher(asked)
        return found[0] if asked.single else found

    def like(
        self,
        ids: Ids,
        k: int = 10,
        *,
        where: Where | None = None,
        rank: Rank = "mean",
        level: float = LEVEL,
        exact: bool = False,
        probes: int | None = None,
        seed: int = 0,
    ) -> Hits | list[Hits]:
        """The k items most like one that is here, or like each of several; nothing is encoded.

        An item is not among those that are like it, but its copies are: their cosine is 1 and has no variance.

        Args:
            ids: of the item, or a list of ids, and then a list of Hits is returned.
            k, where, rank, level, exact, probes, seed: as for `search`.
        """
        options = {"where": where, "rank": rank, "level": level, "exact": exact, "probes": probes, "seed": seed}
        searcher = self._searcher(k, {**options, "others": True})
        names, vlm = as_ids(ids), self.vlm
        if not names:
            raise BayesVLMError("There is no id to look for the like of; give at least one.")
        asked = Queries.of_rows(vlm, self._stored(names), names, self.tower, isinstance(ids, str | os.PathLike))
        found = searcher(asked)
        return found[0] if asked.single else found

    def _searcher(self, k: int, options: Mapping[str, Any]) -> Searcher:
        check_count("k", k)
        check_choice("rank", options["rank"], get_args(Rank))
        return Searcher(self._store, self.vlm, self.tower, k, calibration=self._calibration, **options)

    def _stored(self, ids: Sequence[str]) -> Rows:
        """What is kept of items, in the order of their ids, which may stand several times."""
        import pyarrow as pa

        kept = ["id", VECTOR, "white", "alpha", "beta"]
        batches = [batch for each in by_ids(dict.fromkeys(ids)) for batch in self._store.read(each, kept)]
        found = pa.Table.from_batches(batches) if batches else None
        place = {} if found is None else {name: row for row, name in enumerate(found["id"].to_pylist())}
        missing = [name for name in ids if name not in place]
        if missing or found is None:
            listed = ", ".join(map(repr, missing[:3])) + (", ..." if len(missing) > 3 else "")
            raise BayesVLMError(f"{self.place} has no item {listed}; give ids of items that are there.")
        return from_arrow(found)[[place[name] for name in ids]]

    # Cut-offs --------------------------------------------------------------------------------------------------------

    @property
    def calibration(self) -> Calibration | None:
        """What `calibrate` learnt, if it was called."""
        return self._calibration

    def calibrate(
        self,
        queries: Any,
        relevant: Sequence[str | Collection[str]] | None,
        *,
        error: float = 0.05,
        tower: Tower | None = None,
        templates: Templates | None = None,
        progress: bool | None = None,
    ) -> Self:
        """Learn from queries whose answers are known when nothing here matches; kept with the index, and returned.

        Searches then say so in `hits.matches`: of queries that have a match, and are like these, at most `error` are
        told that nothing matches, because the best cosine is too low or the query itself too uncertain. It holds for
        the index as it is now; more items raise cosines, so that fewer are turned away, but deleting many ends it.
        Under a `where`, with `probes`, and of texts in other templates nothing is said.

        Args:
            queries: texts, images, Features or vectors, as for `search`.
            relevant: per query the id of what it should find, or a list of ids; [] where nothing in the index is
                relevant, which queries are used to say how many of those are answered all the same. None: it is not
                known; then queries are flagged that are among the `error` least self-consistent or most uncertain,
                without any guarantee.
            error: the share of queries with a match that may be turned away.
            tower, templates: as for `search`.
            progress: None shows a bar on a terminal.
        """
        asked = Queries.of(self.vlm, queries, tower, self.tower, templates)
        found = calibrated(self._store, self.vlm, self.tower, asked, relevant, error, progress)
        self._store.put_files({FILE: json.dumps(found.to_json()).encode()})
        self._calibration = found
        return self


def _check_model(vlm: object) -> None:
    if not isinstance(vlm, BayesVLM):
        raise BayesVLMError(
            f"vlm is {str(vlm)[:40]!r} ({type(vlm).__name__}); an index is of a model with a posterior, such as "
            'BayesVLM.from_pretrained("emoji-clip").'
        )


def _warn_of_files(texts: Sequence[str]) -> None:
    found = next((text for text in texts if names_a_file(text)), None)
    if found is not None:
        warnings.warn(
            f"{found!r} is a file, and is looked for as words; pathlib.Path({found!r}) looks for what is like it, and "
            'tower="text" says that words are meant.',
            BayesVLMWarning,
            stacklevel=3,
        )
