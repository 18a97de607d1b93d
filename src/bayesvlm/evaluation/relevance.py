"""Which items answer which query: any number of items for a query, any number of queries for an item."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.printing import described


@dataclass(frozen=True, eq=False)
class Relevance:
    """The items that answer each query.

    Attributes:
        counts: how many items answer each query, 0 for one that nothing answers.
        items: their rows, query after query, ascending within each.
        size: how many items there are.

    Example:
        >>> relevant = Relevance.of([[0, 2], [], [2]], size=3)
        >>> relevant.lists(), relevant.transposed().lists()
        ([[0, 2], [], [2]], [[0], [], [0, 2]])
    """

    counts: Tensor  # [Q], integers
    items: Tensor  # [P], integers
    size: int

    __repr__ = described

    @classmethod
    def of(cls, relevant: Iterable[Iterable[int]], size: int) -> Relevance:
        """From the rows of each query's items; a row that is named twice counts once."""
        listed = [sorted(set(rows)) for rows in relevant]
        for query, rows in enumerate(listed):
            if rows and not (rows[0] >= 0 and rows[-1] < size):
                wrong = rows[0] if rows[0] < 0 else rows[-1]
                raise BayesVLMError(f"Item {wrong} answers query {query}; the {size} items are numbered from 0.")
        counts = torch.tensor([len(rows) for rows in listed], dtype=torch.int64)
        items = torch.tensor([row for rows in listed for row in rows], dtype=torch.int64)
        return cls(counts, items, size)

    def __len__(self) -> int:
        return len(self.counts)

    @property
    def queries(self) -> Tensor:  # [P]
        """The query of each of `items`."""
        return torch.repeat_interleave(torch.arange(len(self)), self.counts)

    def lists(self) -> list[list[int]]:
        """The rows of each query's items."""
        found: list[list[int]] = [rows.tolist() for rows in torch.split(self.items, self.counts.tolist())]
        return found

    def transposed(self) -> Relevance:
        """The same the other way round: items ask, queries answer."""
        order = torch.argsort(self.items, stable=True)
        counts = torch.bincount(self.items, minlength=self.size)
        return Relevance(counts, self.queries[order], len(self))

    def among(self, queries: Sequence[int] | Tensor, items: Sequence[int] | Tensor) -> Relevance:
        """Between some of the queries and some of the items, in the order in which they are named."""
        place = torch.full((self.size,), -1)
        place[torch.as_tensor(items, dtype=torch.int64)] = torch.arange(len(items))
        listed = self.lists()
        of = [[row for row in place[listed[int(query)]].tolist() if row >= 0] for query in queries]
        return Relevance.of(of, len(items))

    def padded(self, rows: slice) -> Tensor:  # [q, R]
        """The items of some queries side by side, as many as the longest row needs; -1 where a row has no more."""
        starts = torch.cat([self.counts.new_zeros(1), self.counts.cumsum(dim=0)])
        counts = self.counts[rows]
        width = int(counts.max()) if len(counts) else 0
        columns = torch.arange(width).expand(len(counts), width)
        inside = columns < counts[:, None]
        found = torch.full((len(counts), width), -1)
        found[inside] = self.items[(starts[:-1][rows][:, None] + columns)[inside]]
        return found

    def groups(self) -> Tensor:  # [Q]
        """Which queries hang together because they share an item, or a chain of shared items: a number for each."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        total = len(self) + self.size
        edges = (torch.ones(len(self.items)).numpy(), (self.queries.numpy(), (len(self) + self.items).numpy()))
        _, labels = connected_components(coo_array(edges, shape=(total, total)), directed=False)
        return torch.from_numpy(labels[: len(self)]).long()


@dataclass(frozen=True, eq=False)
class HeldOut:
    """A collection without what answers some of the queries.

    Attributes:
        kept: whether each item stays in the collection.
        answerable: whether each query has all its items there; one that has not has none.
    """

    kept: Tensor  # [M] bool
    answerable: Tensor  # [Q] bool

    __repr__ = described


def hold_out(relevance: Relevance, share: float = 0.5, seed: int = 0) -> HeldOut:
    """Take away what answers about so many of the queries, so that nothing in the collection matches them.

    Queries that share an item go together: nobody keeps a part of what answers him. Items that answer no query stay,
    and queries that nothing answers are not answerable.

    Args:
        relevance: which items answer which query.
        share: of the queries that lose theirs.
        seed: of the draw.

    Raises:
        BayesVLMError: where all queries hang together, so that there is nothing to divide.
    """
    if not 0 < share < 1:
        raise BayesVLMError(f"share={share}; it is the share of queries whose items are held out, such as 0.5.")
    asked = relevance.counts > 0
    groups = relevance.groups()
    names, sizes = torch.unique(groups[asked], return_counts=True)
    if len(names) < 2:
        raise BayesVLMError(
            f"All {int(asked.sum())} queries share items with one another, so that none can be held out for some of "
            "them only; take a set with more."
        )
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))
    before = sizes[order].cumsum(dim=0) - sizes[order]
    chosen = order[before < share * int(asked.sum())]
    chosen = chosen[: len(names) - 1]
    held = torch.isin(groups, names[chosen]) & asked
    kept = torch.ones(relevance.size, dtype=torch.bool)
    kept[relevance.items[held[relevance.queries]]] = False
    return HeldOut(kept, asked & ~held)
