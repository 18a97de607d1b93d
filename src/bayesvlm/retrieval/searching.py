"""A search: candidates by an inner product, exact moments for those, an order."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from bayesvlm.core.embeddings import Shape
from bayesvlm.core.errors import BayesVLMError, BayesVLMWarning, check_count
from bayesvlm.core.estimation import TOWERS, Tower
from bayesvlm.core.linearised import Directed, joint_cosines, paired_cosines, query_cosines
from bayesvlm.retrieval.columns import FOUND, OWN, VECTOR, from_arrow, kinds
from bayesvlm.retrieval.filters import Where, as_sql
from bayesvlm.retrieval.hits import JOINT, LEVEL, Hits, half_width, no_hits
from bayesvlm.retrieval.matching import DEPTH, NO_ITEM, Calibration, self_consistency
from bayesvlm.retrieval.queries import Queries
from bayesvlm.retrieval.remaining import remaining
from bayesvlm.retrieval.rows import Rows, pair_moments, shape_of
from bayesvlm.retrieval.store import Store
from bayesvlm.vlm import BayesVLM

if TYPE_CHECKING:
    import pyarrow as pa

Rank = Literal["mean", "lower", "upper"]

REFINE = 10
"""Times as many candidates of an index of vectors as are returned have their exact inner product computed."""
_ALL = 2**20  # partitions: more than there are
_WIDER = 10  # times as many items are looked at where the order is another: by bounds, and by means in one tower
_REFINE_WIDER = 2  # times as many as those
_TOGETHER = 64  # queries that LanceDB answers in one pass over the rows
_READ = 2**27  # bytes of candidates that are read for them at once
_DECIDING = DEPTH * _WIDER  # candidates that decide on a query, however many are looked at for its hits
_LEFT = 0.9  # of the items that a calibration saw: with fewer there is a word of warning


@dataclass(frozen=True, eq=False)
class Scored:
    """What a calibration takes from a search: hits by expected cosine, and what decides on the query."""

    ids: list[str]
    mean: Tensor  # [k] float64
    std: Tensor  # [k] float64
    score: float


@dataclass(frozen=True, eq=False)
class _Seen:
    """The candidates of one query, in order of their inner product with it; `rows` is None where there are none."""

    query: Rows  # [1]
    of: Tower | None
    found: pa.Table
    rows: Rows | None
    mean: Tensor  # [N] float64
    variance: Tensor  # [N] float64


@dataclass(frozen=True, eq=False)
class Searcher:
    """How to search; called with queries. Arguments as for `Index.search`, and the calibration of the index."""

    store: Store
    vlm: BayesVLM
    tower: Tower
    k: int
    where: Where | None = None
    rank: Rank = "mean"
    level: float = LEVEL
    exact: bool = False
    probes: int | None = None
    seed: int = 0
    calibration: Calibration | None = None
    others: bool = False  # the items that are asked with, by their ids, are no answers

    def __post_init__(self) -> None:
        half_width(self.level)
        if self.probes is not None:
            check_count("probes", self.probes)
            if self.exact:
                raise BayesVLMError(
                    f"exact=True looks at every row, and probes={self.probes} into that many parts of the index of "
                    "vectors; give one of the two."
                )

    def __call__(self, asked: Queries) -> list[Hits]:
        """What each of the queries finds."""
        judge = self._judge(asked)
        hits = []
        for place, seen in enumerate(self._seen(asked)):
            one = self._hits(asked.names[place], float(asked.variance[place]), seen)
            if judge:
                score = self._score(seen, judge.labelled)
                one = replace(one, **vars(judge.judged(score, one.query_variance)), error=judge.error)
            hits.append(replace(one, p_match=self._p_match(one, asked)))
        fewest = min(len(found) for found in hits)
        if self.where is None and fewest < self.k:
            warnings.warn(
                f"k is {self.k} and there are {fewest} items: all of them are returned.", BayesVLMWarning, stacklevel=3
            )
        return hits

    def scored(self, asked: Queries, labelled: bool) -> Iterator[Scored]:
        """Of each query the first k hits by expected cosine, and what decides on it."""
        for seen in self._seen(asked):
            order = self._order(seen.mean, seen.variance)[: self.k]
            ids = seen.found["id"].take(order.tolist()).to_pylist()
            std = seen.variance[order].clamp(min=0).sqrt()
            yield Scored(ids, seen.mean[order], std, self._score(seen, labelled))

    def _seen(self, asked: Queries) -> Iterator[_Seen]:
        """The candidates of each query, with the moments of their cosines."""
        import pyarrow.compute as pc

        inner = 0.0 if asked.tower is None else float(self._shapes[asked.tower].inner(self._shapes[self.tower]))
        for place, found in enumerate(self._candidates(asked)):
            query = asked.rows[place : place + 1]
            if self.others:
                found = found.filter(pc.not_equal(found["id"], asked.names[place]))
            if not found.num_rows:
                nothing = torch.zeros(0, dtype=torch.float64)
                yield _Seen(query, asked.tower, found, None, nothing, nothing)
                continue
            rows = from_arrow(found)
            same = asked.tower == self.tower
            moments = _with_one(query, rows, self._shapes[self.tower]) if same else pair_moments(query, rows, inner)
            yield _Seen(query, asked.tower, found, rows, *moments)

    def _score(self, seen: _Seen, labelled: bool) -> float:
        """The highest expected cosine; without labels, how often draws agree on the best of the first items."""
        if seen.rows is None:
            return NO_ITEM
        if labelled:
            return float(seen.mean[:_DECIDING].max())
        first = torch.argsort(seen.mean[:_DECIDING], descending=True, stable=True)[:DEPTH]
        return self_consistency(*self._joint(seen, first))

    def _judge(self, asked: Queries) -> Calibration | None:
        """What says whether anything matches: of queries like its own, and of the whole index, not of a part of it."""
        whole = self.where is None and self.probes is None and not self.others
        return self._calibration_of(asked) if whole else None

    def _p_match(self, hits: Hits, asked: Queries) -> Tensor | None:
        calibration = self._calibration_of(asked)
        return None if calibration is None else calibration.p_match(hits.mean, hits.std)

    def _calibration_of(self, asked: Queries) -> Calibration | None:
        alike = self.calibration is not None and self.calibration.is_of(asked.tower, asked.prompts)
        return self.calibration if alike else None

    def _hits(self, name: str, variance: float, seen: _Seen) -> Hits:
        if seen.rows is None:
            return no_hits(name, variance)
        order = self._order(seen.mean, seen.variance)[: self.k]
        found, joint = seen.found.take(order.tolist()), self._joint(seen, order[:JOINT])
        extra = [column for column in found.column_names if column not in (*OWN, *FOUND)]
        return Hits(
            query=name,
            ids=tuple(found["id"].to_pylist()),
            paths=tuple(found["path"].to_pylist()),
            mean=seen.mean[order],
            std=seen.variance[order].clamp(min=0).sqrt(),
            joint_mean=joint[0],
            joint_covariance=joint[1],
            query_variance=variance,
            columns={column: found[column].to_pylist() for column in extra},
            seed=self.seed,
        )

    def _candidates(self, asked: Queries) -> Iterator[pa.Table]:
        """Of each query, the rows whose inner product with it is the largest."""
        as_found = self.rank == "mean" and asked.tower != self.tower
        judge = self._judge(asked)
        least = max(self.k, DEPTH) if judge else self.k + self.others
        wanted, refine = (least, REFINE) if as_found else (least * _WIDER, _REFINE_WIDER)
        wanted = self.store.at_most(wanted)
        table = self.store.reader
        if judge:
            self._warn_of_missing(table, judge)
        condition = None if self.where is None else as_sql(self.where, kinds(table.schema))
        vectors = asked.rows.mean.numpy()
        together = max(1, min(_TOGETHER, _READ // (wanted * self._bytes_of_a_row)))
        for start in range(0, len(vectors), together):
            some = vectors[start : start + together]
            with self.store.reading(condition):
                search = self._search(table, some if len(some) > 1 else some[0], condition, refine)
                found = self.store.own(search.limit(wanted).to_arrow())
            if len(some) == 1:
                yield found
                continue
            of = found["query_index"].to_numpy()
            for place in range(len(some)):
                yield found.take(np.flatnonzero(of == place))

    def _search(self, table: Any, vectors: np.ndarray[Any, Any], condition: str | None, refine: int) -> Any:
        search = table.search(vectors, vector_column_name=VECTOR).distance_type("dot")
        if condition is not None:
            search = search.where(condition, prefilter=True)
        if self.exact:
            return search.bypass_vector_index()
        return search.nprobes(self.probes or _ALL).refine_factor(refine)

    def _warn_of_missing(self, table: Any, judge: Calibration) -> None:
        """Where many of the items have gone that a calibration saw, or are others now."""
        with self.store.reading():
            rows = int(table.count_rows())
        share = remaining(self.store, judge.sample)
        if rows < _LEFT * judge.rows:
            left = f"has {rows} of the {judge.rows} items that it was calibrated on"
        elif share < _LEFT:
            left = f"has about {share:.0%} of the {judge.rows} items that it was calibrated on as they were"
        else:
            return
        warnings.warn(
            f"{self.store.name} {left}, so that more queries are turned away than it promised; calibrate again.",
            BayesVLMWarning,
            stacklevel=5,
        )

    @cached_property
    def _bytes_of_a_row(self) -> int:
        """About how many a candidate takes: it is worked with in double precision."""
        adapter = self.vlm.image if self.tower == "image" else self.vlm.text
        return 8 * (adapter.embedding_width + adapter.input_width)

    def _joint(self, seen: _Seen, order: Tensor) -> tuple[Tensor, Tensor]:  # [k], [k, k]
        """Mean and covariance of the cosines of some items together."""
        assert seen.rows is not None
        query, items, own = seen.query.directed, seen.rows[order].directed, self._shapes[self.tower]
        if seen.of == self.tower:
            return joint_cosines(query, items, own)
        return query_cosines(query, None if seen.of is None else self._shapes[seen.of], items, own)

    @cached_property
    def _shapes(self) -> dict[Tower, Shape]:
        return {tower: shape_of(self.vlm, tower).to("cpu", torch.float64) for tower in TOWERS}

    def _order(self, mean: Tensor, variance: Tensor) -> Tensor:
        return torch.argsort(mean + self._half * variance.clamp(min=0).sqrt(), descending=True, stable=True)

    @cached_property
    def _half(self) -> float:
        """Standard deviations that are added to the mean."""
        return 0.0 if self.rank == "mean" else (1 if self.rank == "upper" else -1) * half_width(self.level)


def _with_one(query: Rows, items: Rows, shape: Shape) -> tuple[Tensor, Tensor]:  # [1], [N] -> [N], [N]
    """Mean and variance of the cosines of one query with items of its own tower."""
    one = query.directed
    return paired_cosines(Directed(*(part.expand(len(items), -1) for part in one)), items.directed, shape)
