"""What a search returns: items in order, each with how sure its cosine is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from functools import cached_property, lru_cache
from typing import Any, overload

import torch
from scipy.stats import norm
from torch import Tensor

from bayesvlm.core.dataframe import needed_pandas
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.linearised import probability_of_best
from bayesvlm.core.notebook import html_table
from bayesvlm.core.printing import FIRST

LEVEL = 0.95
"""Of credible intervals, unless told otherwise."""
DRAWS = 512
"""Of the cosines of the items of one search, for the probability that one is the best of them."""
JOINT = 100
"""Hits whose joint covariance is kept: memory grows with their square. Those behind them have a `p_best` of 0."""


def half_width(level: float) -> float:
    """How many standard deviations a central interval of a normal distribution reaches to either side."""
    if isinstance(level, bool) or not isinstance(level, int | float) or not 0 < level < 1:
        raise BayesVLMError(f"level={level}; a credible level lies strictly between 0 and 1, such as 0.95.")
    return _normal_quantile(0.5 + level / 2)


@lru_cache(maxsize=64)
def _normal_quantile(probability: float) -> float:
    return float(norm.ppf(probability))


class Interval(tuple[Any, Any]):
    """(low, high), a 95 % credible interval of a cosine, of one item or of each; `interval(0.5)` is another one."""

    mean: Any
    std: Any

    def __new__(cls, mean: Any, std: Any, level: float = LEVEL) -> Interval:
        """Under a normal approximation, cut to [-1, 1]."""
        half = half_width(level) * std
        if isinstance(mean, Tensor):
            made = super().__new__(cls, ((mean - half).clamp(-1, 1), (mean + half).clamp(-1, 1)))
        else:
            made = super().__new__(cls, (max(-1.0, min(1.0, mean - half)), max(-1.0, min(1.0, mean + half))))
        made.mean, made.std = mean, std
        return made

    def __call__(self, level: float) -> Interval:
        return Interval(self.mean, self.std, level)

    def __getnewargs__(self) -> tuple[Any, Any]:  # for pickles and copies
        return self.mean, self.std


@dataclass(frozen=True)
class Hit:
    """An item that a search found.

    Attributes:
        id: as it was added.
        path: of its file, where it has one.
        mean, std: of its cosine with the query.
        p_best: the probability that it is the best of the items that were returned with it (of the first `JOINT`).
        p_match: the probability that it is what was asked for; None where the index is not calibrated.
        columns: what else was kept of it.
    """

    id: str
    path: str | None
    mean: float
    std: float
    p_best: float
    p_match: float | None
    columns: Mapping[str, Any]

    @property
    def interval(self) -> Interval:
        """(low, high), a 95 % credible interval of the cosine; `hit.interval(0.5)` is another one."""
        return Interval(self.mean, self.std)


@dataclass(frozen=True, eq=False)
class Hits(Sequence[Hit]):
    """The items that one query found, in order; tensors of all of them as attributes.

    Attributes:
        query: what was asked, to speak of it.
        ids, paths, columns: of each item.
        mean, std: of each cosine, [k].
        joint_mean, joint_covariance: of the first `JOINT` cosines together, as draws of the projections that they share
            rank them (`query_cosines`, or `joint_cosines` of one tower), [k], [k, k]. Of the other tower the variances
            are smaller than std**2, which counts how lengths vary too.
        query_variance: which share of the query's expected squared length is variance: how uncertain the query is by
            itself.
        p_match: [k]; None where the index is not calibrated.
        matches: False where nothing here matches, at the error rate that the index was calibrated for; True where the
            query is not turned away, which is no proof of a match; None where the index is not calibrated.
        p_value: how often a query that does have a match looks as if it had none, as much as this one; None likewise.
        query_p_value: how often a calibration query is at least as uncertain by itself as this one; None likewise.
        error: the error rate of `matches`; None likewise.
    """

    query: str
    ids: tuple[str, ...]
    paths: tuple[str | None, ...]
    mean: Tensor  # [k] float64
    std: Tensor  # [k] float64
    joint_mean: Tensor  # [k] float64
    joint_covariance: Tensor  # [k, k] float64
    query_variance: float
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    seed: int = 0
    p_match: Tensor | None = None
    matches: bool | None = None
    p_value: float | None = None
    query_p_value: float | None = None
    error: float | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> Hit: ...
    @overload
    def __getitem__(self, index: slice) -> list[Hit]: ...
    def __getitem__(self, index: int | slice) -> Hit | list[Hit]:
        if isinstance(index, slice):
            return [self[place] for place in range(len(self))[index]]
        place = range(len(self))[index]
        return Hit(
            id=self.ids[place],
            path=self.paths[place],
            mean=float(self.mean[place]),
            std=float(self.std[place]),
            p_best=float(self.p_best[place]),
            p_match=None if self.p_match is None else float(self.p_match[place]),
            columns={name: values[place] for name, values in self.columns.items()},
        )

    def __iter__(self) -> Iterator[Hit]:
        return (self[place] for place in range(len(self)))

    @property
    def id(self) -> tuple[str, ...]:
        """As `ids`."""
        return self.ids

    @property
    def interval(self) -> Interval:
        """(low, high), 95 % credible intervals of the cosines, [k] each; `hits.interval(0.5)` are others."""
        return Interval(self.mean, self.std)

    @cached_property
    def p_best(self) -> Tensor:  # [k] float64
        """The probability that each is the best of these, by draws that they share; adds up to 1."""
        if not len(self):
            return self.mean.new_zeros(0)
        first = probability_of_best(self.joint_mean, self.joint_covariance, draws=DRAWS, seed=self.seed)
        return torch.cat([first, first.new_zeros(len(self) - len(first))])

    @property
    def self_consistency(self) -> float:
        """How often draws of the projections agree on the best item: without a calibration, the only sign there is of
        whether the first hit means anything. It promises nothing."""
        return float(self.p_best.max()) if len(self) else 0.0

    def to_json(self) -> dict[str, Any]:
        """As json keeps it."""
        low, high = (bound.tolist() for bound in self.interval)
        found = [
            {
                "id": hit.id,
                "path": hit.path,
                "mean": hit.mean,
                "std": hit.std,
                "interval": [low[place], high[place]],
                "p_best": hit.p_best,
                "p_match": hit.p_match,
                **({"columns": {name: _plain(value) for name, value in hit.columns.items()}} if hit.columns else {}),
            }
            for place, hit in enumerate(self)
        ]
        return {
            "query": self.query,
            "query_variance": self.query_variance,
            "matches": self.matches,
            "p_value": self.p_value,
            "query_p_value": self.query_p_value,
            "self_consistency": self.self_consistency,
            "hits": found,
        }

    def to_pandas(self, level: float = LEVEL) -> Any:  # pandas.DataFrame
        """A table with a row per hit, by its rank; those of several searches can be concatenated.

        Its columns are `query`, `id`, `path`, `mean`, `std`, `low` and `high` of the interval, `p_best`, `p_match`
        where the index is calibrated, and those that were kept of the items.

        Args:
            level: probability that the interval covers.
        """
        pandas = needed_pandas()
        low, high = self.interval(level)
        own: dict[str, Any] = {
            "query": [self.query] * len(self),
            "id": list(self.ids),
            "path": list(self.paths),
            "mean": self.mean.numpy(),
            "std": self.std.numpy(),
            "low": low.numpy(),
            "high": high.numpy(),
            "p_best": self.p_best.numpy(),
        }
        if self.p_match is not None:
            own["p_match"] = self.p_match.numpy()
        called = {name: f"{name} (column)" if name in own else name for name in self.columns}
        own |= {called[name]: list(values) for name, values in self.columns.items()}
        return pandas.DataFrame(own, index=pandas.RangeIndex(1, len(self) + 1, name="rank"))

    def __repr__(self) -> str:
        answer = {None: "", True: ", not turned away", False: ", nothing here matches"}[self.matches]
        first = f", the first {self.ids[0]!r} at {self.mean[0]:.3f} +- {self.std[0]:.3f}" if len(self) else ""
        return f"Hits({self.query!r}: {len(self)}{first}{answer})"

    def _repr_html_(self) -> str:
        """A small table for notebooks."""
        low, high = self.interval
        rows = []
        for place, hit in enumerate(self[:FIRST]):
            match = "" if hit.p_match is None else f"{hit.p_match:.0%}"
            cosine = f"{hit.mean:.3f} ({float(low[place]):.2f} to {float(high[place]):.2f})"
            rows.append([hit.id, cosine, f"{hit.p_best:.0%}", match])
        columns = ["", "cosine and 95 % interval", "best of these", "a match"]
        said = {None: "", True: f"Not turned away{doubt(self)}.", False: "Nothing here matches."}[self.matches]
        return html_table(f"{len(self)} hits for {self.query!r}", columns, rows, len(self) > FIRST, said)


def doubt(hits: Hits) -> str:
    """What to say behind "not turned away": how near it was to that, and how improbable even the best match is."""
    said = "" if hits.p_value is None else f" ({_p_value(hits.p_value, hits.error)})"
    best = weak_match(hits)
    return said if best is None else f"{said}; the most probable match has {_percent(best)}"


def weak_match(hits: Hits) -> float | None:
    """The probability of the most probable match where that is below one half."""
    best = None if hits.p_match is None or not len(hits) else float(hits.p_match.max())
    return None if best is None or best >= 0.5 else best


def above(value: float, limit: float) -> str:
    """A number above a limit, with two digits, or as many as keep it above."""
    written = (f"{value:.{digits}g}" for digits in range(2, 17))
    return next((each for each in written if float(each) > limit), f"{value:g}")


def _p_value(p_value: float, error: float | None) -> str:
    if error is None:
        return f"p = {p_value:.2g}"
    return f"p = {above(p_value, error)}, nothing matches from {error:g} down"


def _percent(share: float) -> str:
    return "<1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def _plain(value: Any) -> Any:
    """A value of a column, as json has it."""
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, bool | int | float | str) else _text(value)


def _text(value: Any) -> str:
    return value.isoformat() if isinstance(value, date | datetime | time) else str(value)


def no_hits(query: str, query_variance: float) -> Hits:
    """What is found where there is nothing to find."""
    nothing = torch.zeros(0, dtype=torch.float64)
    return Hits(query, (), (), nothing, nothing, nothing, nothing[:, None].expand(0, 0), query_variance)
