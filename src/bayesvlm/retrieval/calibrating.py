"""Calibration queries, what is relevant to them, and what a search of the index finds for each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import Tower
from bayesvlm.progress import progress_bar
from bayesvlm.retrieval.filters import by_ids
from bayesvlm.retrieval.matching import (
    DEPTH,
    FITTED,
    NO_ITEM,
    Asked,
    Calibration,
    MatchModel,
    check_enough,
    check_error,
)
from bayesvlm.retrieval.queries import Queries
from bayesvlm.retrieval.remaining import sample
from bayesvlm.retrieval.searching import Scored, Searcher
from bayesvlm.retrieval.store import Store
from bayesvlm.vlm import BayesVLM

_SAME = 1e-6  # relative: what rounding leaves between equal scores
_TOGETHER = 64  # queries that are searched for at once


def calibrated(
    store: Store,
    vlm: BayesVLM,
    tower: Tower,
    asked: Queries,
    relevant: Sequence[str | Collection[str]] | None,
    error: float,
    progress: bool | None = None,
) -> Calibration:
    """What queries say of an index, of its rows, model and tower; the other arguments as for `Index.calibrate`."""
    error = check_error(error)
    with store.reading():
        rows = int(store.items.count_rows())
    if not rows:
        raise BayesVLMError(f"{store.name} is empty, so there is nothing to calibrate; add items first.")
    labels = None if relevant is None else checked_relevant(relevant, len(asked), partial(_known, store))
    check_enough(len(asked) if labels is None else sum(map(bool, labels)), error, labels is not None)
    found = _Found()
    with progress_bar("Calibrating", total=len(asked), unit="queries", show=progress) as advance:
        for start in range(0, len(asked), _TOGETHER):
            own = None if labels is None else labels[start : start + _TOGETHER]
            k = min(rows, max(FITTED, DEPTH + max(map(len, own or [set()]))))
            searcher = Searcher(store, vlm, tower, k)
            some = asked[start : start + _TOGETHER]
            for place, scored in enumerate(searcher.scored(some, labels is not None)):
                found.add(scored, float(some.variance[place]), None if own is None else own[place])
                advance(1)
    model = None if labels is None else found.model()
    scores = found.matched.score
    if float(scores.max() - scores.min()) <= _SAME * float(scores.abs().max()):
        raise BayesVLMError(
            f"All {len(scores)} queries score the same ({float(scores[0]):.4g}), so nothing can be learnt from them; "
            "calibrate on different queries."
        )
    asked_of = found.matched, found.nothing, found.without
    return Calibration(error, *asked_of, model, asked.tower, rows, asked.prompts, sample(store))


def checked_relevant(
    relevant: Sequence[str | Collection[str]], count: int, known: Callable[[Sequence[str]], set[str]]
) -> list[set[str]]:
    """The ids that are relevant to each query, if all of them are in the index."""
    how = "give an id, or a list of ids, per query, and [] where nothing in the index is relevant"
    if isinstance(relevant, str) or not isinstance(relevant, Sequence):
        raise BayesVLMError(f"relevant is {str(relevant)[:40]!r}; {how}.")
    if len(relevant) != count:
        raise BayesVLMError(f"There are {len(relevant)} entries of relevant for {count} queries; {how}.")
    labels: list[set[str]] = []
    for place, own in enumerate(relevant):
        ids = [own] if isinstance(own, str) else own
        if not isinstance(ids, Collection) or not all(isinstance(each, str) and each for each in ids):
            raise BayesVLMError(f"relevant[{place}] is {str(own)[:40]!r}; {how}.")
        labels.append(set(ids))
    wanted = sorted(set().union(*labels))
    unknown = sorted(set(wanted) - known(wanted))
    if unknown:
        named = ", ".join(repr(each) for each in unknown[:3]) + (", ..." if len(unknown) > 3 else "")
        raise BayesVLMError(
            f"relevant names {len(unknown)} ids that the index does not have: {named}; add those items first, or leave "
            "them out."
        )
    return labels


class _Found:
    """What searches found, query after query."""

    def __init__(self) -> None:
        self._labels: list[bool | None] = []  # whether something is relevant; None: not known
        self._scores: list[float] = []
        self._rest: list[float] = []  # had the relevant items been taken away
        self._variances: list[float] = []
        self._hits: list[tuple[Tensor, Tensor, Tensor]] = []  # cosines, their std, which are relevant

    def add(self, scored: Scored, variance: float, own: set[str] | None) -> None:
        """Of one query: its hits, its own variance and what is relevant to it."""
        self._labels.append(None if own is None else bool(own))
        self._scores.append(scored.score)
        self._variances.append(variance)
        right = torch.tensor([each in (own or ()) for each in scored.ids], dtype=torch.bool)
        rest = scored.mean[~right]
        self._rest.append(float(rest.max()) if len(rest) else NO_ITEM)
        self._hits.append((scored.mean[:FITTED], scored.std[:FITTED], right[:FITTED]))

    @property
    def matched(self) -> Asked:
        """Queries that have a match; all, where that is not known."""
        return self._asked(self._scores, (True, None))

    @property
    def nothing(self) -> Asked:
        """Queries that have none."""
        return self._asked(self._scores, (False,))

    @property
    def without(self) -> Asked:
        """Those that have a match, as if they had none."""
        return self._asked(self._rest, (True,))

    def _asked(self, scores: Sequence[float], labels: tuple[bool | None, ...]) -> Asked:
        places = [place for place, label in enumerate(self._labels) if label in labels]
        return Asked.of([scores[place] for place in places], [self._variances[place] for place in places])

    def model(self) -> MatchModel:
        """The probability that a hit is relevant."""
        cosine, std, relevant = (torch.cat(of) for of in zip(*self._hits, strict=True))
        if not bool(relevant.any()):
            raise BayesVLMError(
                f"None of the first {FITTED} hits of any query is among what is relevant to it, so nothing can be "
                "learnt; check that the ids belong to the queries, in order."
            )
        if bool(relevant.all()):
            raise BayesVLMError(
                "Every hit of every query is relevant, so nothing can be learnt of what is not; add other items to the "
                "index."
            )
        return MatchModel.fit(cosine, std, relevant)


def _known(store: Store, ids: Sequence[str]) -> set[str]:
    """Which of these ids are in the index."""
    return {name for some in by_ids(ids) for batch in store.read(some, ["id"]) for name in batch["id"].to_pylist()}
