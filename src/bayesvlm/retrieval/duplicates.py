"""Near-duplicates: items whose cosine with one that is kept may be as high as a given similarity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args, overload

import torch
from scipy.stats import norm
from torch import Tensor

from bayesvlm.core.blocks import row_blocks
from bayesvlm.core.duplicates import Neighbours, Reach, stars
from bayesvlm.core.errors import BayesVLMError, check_choice
from bayesvlm.core.estimation import Tower
from bayesvlm.core.linearised import paired_cosines
from bayesvlm.core.notebook import html_table
from bayesvlm.core.printing import FIRST
from bayesvlm.progress import progress_bar
from bayesvlm.retrieval.collected import Collected, of_index, of_items
from bayesvlm.retrieval.filters import Where
from bayesvlm.retrieval.hits import LEVEL, Interval, half_width
from bayesvlm.retrieval.index import Index
from bayesvlm.retrieval.rows import Rows, shape_of
from bayesvlm.retrieval.searching import Rank
from bayesvlm.vlm import BayesVLM

SIMILARITY = 0.95
"""That pairs are to reach, unless told otherwise."""
_PAIRS = 2**22  # numbers in the means of pairs whose moments are computed at once


@dataclass(frozen=True)
class NearCopy:
    """An item that is near what is kept in its place.

    Attributes:
        id, path: of the item.
        mean, std: of its cosine with what is kept; a copy has cosine 1 without any doubt.
        p_similar: the probability that the cosine is at least the similarity that was asked for.
    """

    id: str
    path: str | None
    mean: float
    std: float
    p_similar: float

    @property
    def interval(self) -> Interval:
        """(low, high), a 95 % credible interval of the cosine; `copy.interval(0.5)` is another one."""
        return Interval(self.mean, self.std)


@dataclass(frozen=True)
class DuplicateGroup:
    """Items that are near-copies of one of them.

    Attributes:
        id, path: of the one to keep: the first in the order of preference.
        copies: the others, the nearest first. Each is near the one that is kept, not necessarily near the rest.
    """

    id: str
    path: str | None
    copies: tuple[NearCopy, ...]

    def __len__(self) -> int:
        return 1 + len(self.copies)


@dataclass(frozen=True)
class Duplicates(Sequence[DuplicateGroup]):
    """Groups of near-duplicates, the largest first; items that are near no other are in none.

    Attributes:
        groups: of two items or more.
        items: how many were compared.
        similarity, level, by: as they were asked for.
    """

    groups: tuple[DuplicateGroup, ...]
    items: int
    similarity: float
    level: float
    by: Rank

    @property
    def copies(self) -> int:
        """How many items there are beside those that are kept in their place."""
        return sum(len(group.copies) for group in self.groups)

    def __len__(self) -> int:
        return len(self.groups)

    @overload
    def __getitem__(self, index: int) -> DuplicateGroup: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[DuplicateGroup, ...]: ...
    def __getitem__(self, index: int | slice) -> DuplicateGroup | tuple[DuplicateGroup, ...]:
        return self.groups[index]

    def __repr__(self) -> str:
        return (
            f"Duplicates({self.copies} near-copies in {len(self)} groups, of {self.items} items; similarity "
            f"{self.similarity:g}, {self.level:.6g} intervals, by {self.by})"
        )

    def _repr_html_(self) -> str:
        """A small table for notebooks."""
        rows = []
        for group in self.groups[:FIRST]:
            nearest = group.copies[0]
            low, high = nearest.interval(self.level)
            cosine = f"{nearest.mean:.3f} ({low:.3f} to {high:.3f})"
            rows.append([group.id, str(len(group.copies)), nearest.id, cosine])
        columns = ["kept", "near-copies", "the nearest", "its cosine, with interval"]
        title = f"{self.copies} near-copies in {len(self)} groups, of {self.items} items"
        return html_table(title, columns, rows, len(self) > FIRST, f"Similarity {self.similarity:g}.")


@overload
def near_duplicates(
    source: Index,
    *,
    similarity: float = ...,
    level: float = ...,
    by: Rank = ...,
    prefer: str | None = ...,
    where: Where | None = ...,
    progress: bool | None = ...,
) -> Duplicates: ...
@overload
def near_duplicates(
    source: BayesVLM,
    items: Any,
    ids: Sequence[str] | None = ...,
    *,
    similarity: float = ...,
    level: float = ...,
    by: Rank = ...,
    prefer: Sequence[float] | None = ...,
    tower: Tower = ...,
    progress: bool | None = ...,
) -> Duplicates: ...
def near_duplicates(
    source: Index | BayesVLM,
    items: Any = None,
    ids: Sequence[str] | None = None,
    *,
    similarity: float = SIMILARITY,
    level: float = LEVEL,
    by: Rank = "upper",
    prefer: str | Sequence[float] | None = None,
    where: Where | None = None,
    tower: Tower = "image",
    progress: bool | None = None,
) -> Duplicates:
    """Groups of items that are near-copies of the one of them to keep.

    All pairs are compared, in blocks, on the device of the model: memory is what the items take, plus a block. An item
    is dropped for one alone, the first in the order of preference that it is near and that is kept itself.

    Args:
        source: an index, or a model with a damped posterior to compare `items` with.
        items: images, texts or Features, where a model is given.
        ids: a name for each; None: its path, or its place.
        similarity: that a cosine is to reach.
        level: of the credible intervals.
        by: which point of the interval is to reach it: "upper", so that no pair is left out that may well be as
            similar; "lower", so that none is taken that may well not be; or the "mean", as without a posterior.
        prefer: which of the items to keep: those with the higher number, of each item or in this column of the index;
            None: the first, of an index by id.
        where: which items of the index, as for `Index.search`.
        tower: what Features, or strings, are of.
        progress: None shows a bar on a terminal.

    Example:
        >>> from bayesvlm import BayesVLM, world
        >>> vlm, images = BayesVLM.from_pretrained("emoji-clip"), world.load("openmoji-black").images[:20]
        >>> found = near_duplicates(vlm, [*images, images[3]], similarity=0.99)
        >>> found[0].id, found[0].copies[0].id, round(found[0].copies[0].std, 6)
        ('3', '20', 0.0)
    """
    check_asked(similarity, level, by)
    asked: dict[str, Any] = {"similarity": similarity, "level": level, "by": by, "progress": progress}
    if not isinstance(source, Index):
        return compared(source, of_items(source, items, ids, prefer, tower, progress), tower, **asked)
    if items is not None or ids is not None:
        raise BayesVLMError("An index is given and items beside it; add them to the index, or pass its model.")
    return compared(source.vlm, of_index(source, where, prefer), source.tower, **asked)


def compared(
    vlm: BayesVLM,
    items: Collected,
    tower: Tower,
    *,
    similarity: float,
    level: float,
    by: Rank,
    progress: bool | None = None,
) -> Duplicates:
    """Groups of items that were collected; arguments as for `near_duplicates`."""
    check_asked(similarity, level, by)
    reach = Reach(float(similarity), {"upper": 1.0, "mean": 0.0, "lower": -1.0}[by] * half_width(level))
    with progress_bar("Comparing", total=len(items), unit="items", show=progress) as advance:
        groups = grouped(vlm, items, tower, reach, advance)
    return Duplicates(groups, len(items), float(similarity), float(level), by)


@torch.no_grad()
def grouped(
    vlm: BayesVLM, items: Collected, tower: Tower, reach: Reach, advance: Callable[[int], object]
) -> tuple[DuplicateGroup, ...]:
    """Groups of items that were collected."""
    order = torch.tensor(items.order, dtype=torch.long)
    rows = _moved(items.rows, vlm.device, order)
    shape = shape_of(vlm, tower).to(vlm.device, torch.float64)
    neighbours = Neighbours(rows.mean, rows.alpha.sqrt(), lambda places: rows[places].directed, shape, reach)
    keeper = stars(neighbours, advance)
    copies = (keeper != torch.arange(len(keeper))).nonzero()[:, 0]
    moments: list[tuple[Tensor, Tensor]] = [
        paired_cosines(rows[keeper[some]].directed, rows[some].directed, shape)
        for block in row_blocks(len(copies), max(1, rows.mean.shape[1]), _PAIRS)
        for some in [copies[block]]
    ]
    found: dict[int, list[NearCopy]] = {}
    places = iter(copies.tolist())
    for mean, variance in moments:
        for cosine, std in zip(mean.tolist(), variance.clamp(min=0).sqrt().tolist(), strict=True):
            place = next(places)
            own = items.order[place]
            likely = _probability(cosine, std, reach.similarity)
            copy = NearCopy(items.ids[own], items.paths[own], cosine, std, likely)
            found.setdefault(int(keeper[place]), []).append(copy)
    groups = [
        DuplicateGroup(
            items.ids[items.order[kept]],
            items.paths[items.order[kept]],
            tuple(sorted(members, key=lambda copy: -copy.mean)),
        )
        for kept, members in sorted(found.items())
    ]
    return tuple(sorted(groups, key=lambda group: -len(group)))


def _moved(rows: Rows, device: torch.device, order: Tensor) -> Rows:
    """In another order, on the device of the model."""
    return Rows(*(getattr(rows, field.name)[order].to(device) for field in fields(Rows)))


def _probability(mean: float, std: float, similarity: float) -> float:
    """That a cosine is at least so high, under a normal approximation."""
    return float(norm.sf(similarity, mean, std)) if std > 0 else float(mean >= similarity)


def check_asked(similarity: float, level: float, by: Rank) -> None:
    """Refuse a similarity, a level or a point of the interval that is none."""
    half_width(level)
    if isinstance(similarity, bool) or not isinstance(similarity, int | float) or not -1 < similarity < 1:
        raise BayesVLMError(
            f"similarity={similarity}; a cosine that near-copies reach lies between -1 and 1, such as 0.95; 0.9999 "
            "finds exact copies."
        )
    check_choice("by", by, get_args(Rank))
