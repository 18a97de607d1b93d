r"""How good is a search, and does it know when it has found nothing? Every query has its own items that answer it.

With r_1 < r_2 < ... < r_R the ranks of the R items that answer a query,

    recall@k    = [r_1 <= k]                                   as image-text retrieval has it: is one of them there?
    R-precision = #{j: r_j <= R} / R
    mAP@R       = 1/R sum over j with r_j <= R of j / r_j      (Musgrave et al. 2020)

averaged over queries. Items of equal score that do not answer come first, so that a score which makes everything equal
earns nothing and the order of the items does not matter.

Standard errors are those of a mean over queries, or of a bootstrap over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bayesvlm.core.blocks import row_blocks
from bayesvlm.core.errors import BayesVLMError, check_count
from bayesvlm.core.printing import described
from bayesvlm.evaluation.metrics import Estimate
from bayesvlm.evaluation.ranking import auroc_interval, rank_interval
from bayesvlm.evaluation.selective import auroc, check_flagged, fpr95

KEPT = 0.95
"""The share of queries with a match that a cut-off is to keep, unless told otherwise."""
RESAMPLES = 1000
_BLOCK = 2**21  # queries that a bootstrap draws at a time


@dataclass(frozen=True, eq=False)
class Ranked:
    """Where the items that answer each query came out.

    Attributes:
        ranks: from 1, ascending; inf where a query has no more of them.
        scores: of these items, descending; -inf likewise.
    """

    ranks: Tensor  # [Q, R] float64
    scores: Tensor  # [Q, R] float64

    __repr__ = described

    @classmethod
    def of(cls, scores: Tensor, relevant: Tensor) -> Ranked:  # [Q, M], [Q, R]
        """By the scores of all items.

        Args:
            scores: of every query and item; -inf for an item that is not in the collection.
            relevant: the items that answer each query, -1 where it has no more, as `Relevance.padded` gives them.
        """
        if bool(scores.isnan().any()):
            raise BayesVLMError("The scores hold NaN, which has no rank; mend or drop those items.")
        relevant = relevant.to(scores.device)
        there = relevant >= 0
        own = scores.gather(1, relevant.clamp(min=0)).double()
        own = own.masked_fill(~there, -torch.inf).sort(dim=1, descending=True).values
        others = scores.clone()
        others[there.nonzero()[:, 0], relevant[there]] = -torch.inf
        ranks = torch.full_like(own, torch.inf)
        for place in range(own.shape[1]):
            above = (others >= own[:, place : place + 1].to(others)).sum(dim=1)
            ranks[:, place] = above + place + 1
        return cls(ranks.masked_fill(own == -torch.inf, torch.inf), own)

    @classmethod
    def concatenate(cls, parts: Sequence[Ranked]) -> Ranked:
        """Blocks of queries one after the other."""
        width = max(part.ranks.shape[1] for part in parts)

        def wide(values: Tensor, empty: float) -> Tensor:
            return torch.nn.functional.pad(values, (0, width - values.shape[1]), value=empty)

        ranks = torch.cat([wide(part.ranks, torch.inf) for part in parts])
        return cls(ranks, torch.cat([wide(part.scores, -torch.inf) for part in parts]))

    def __len__(self) -> int:
        return len(self.ranks)

    def __getitem__(self, queries: Tensor) -> Ranked:
        return Ranked(self.ranks[queries], self.scores[queries])

    @property
    def counts(self) -> Tensor:  # [Q]
        """How many items answer each query."""
        return (self.scores > -torch.inf).sum(dim=1)

    def found(self, k: int) -> Tensor:  # [Q] bool
        """Whether an item that answers the query is among the first k."""
        return (self.ranks <= check_count("k", k)).any(dim=1)

    def above(self, cut_off: Tensor) -> Ranked:  # [Q]
        """The same where items below each query's cut-off are not shown; they still count as what was to be found."""
        hidden = self.scores < cut_off.to(self.scores)[:, None]
        return Ranked(self.ranks.masked_fill(hidden, torch.inf), self.scores)

    def precision(self) -> Tensor:  # [Q] float64
        """R-precision of each query; NaN for one that nothing answers."""
        return (self.ranks <= self.counts[:, None]).sum(dim=1).double() / self.counts

    def average_precision(self) -> Tensor:  # [Q] float64
        """mAP@R of each query; NaN for one that nothing answers."""
        places = torch.arange(1, self.ranks.shape[1] + 1, device=self.ranks.device)
        inside = self.ranks <= self.counts[:, None]
        return torch.where(inside, places / self.ranks, 0.0).sum(dim=1) / self.counts

    def recall(self, k: int) -> Estimate:
        """The share of queries that find something among the first k."""
        return self._mean(self.found(k))

    def r_precision(self) -> Estimate:
        """Of as many items as answer a query, the share that does."""
        return self._mean(self.precision())

    def map_at_r(self) -> Estimate:
        """The mean precision at each of these items, of those among the first R."""
        return self._mean(self.average_precision())

    def _mean(self, values: Tensor) -> Estimate:  # [Q]
        """Over the queries that something answers."""
        asked = self.counts > 0
        if not bool(asked.any()):
            raise BayesVLMError(f"Nothing answers any of the {len(self)} queries, so there is nothing to find.")
        return Estimate.of(values[asked])


# Risk and coverage ----------------------------------------------------------------------------------------------------


class Doubted(NamedTuple):
    """The answer to each query, by how doubtful a score finds it."""

    doubt: Tensor  # [Q]
    correct: Tensor  # [Q] bool


@dataclass(frozen=True)
class AreaDifference:
    """Two areas under risk-coverage curves on the same queries, and the first less the second: negative is better."""

    difference: float
    standard_error: float
    low: float
    high: float
    p: float


def risk_coverage_area(answers: Doubted, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """`aurc` with the standard error of a bootstrap over the queries."""
    areas = _areas([answers], resamples, seed)[0]
    return Estimate(float(areas[0]), float(areas[1:].std()))


def compare_areas(
    first: Doubted, second: Doubted, resamples: int = RESAMPLES, seed: int = 0, level: float = 0.95
) -> AreaDifference:
    """The area of the first less that of the second, by a paired bootstrap: both from the same resampled queries.

    p is twice the share of resamples on the other side of zero (or on it), counting one more than there are.
    """
    if not 0 < level < 1:
        raise BayesVLMError(f"level={level}; it must lie between 0 and 1, such as 0.95.")
    if len(first.doubt) != len(second.doubt):
        raise BayesVLMError(
            f"There are {len(first.doubt)} answers and {len(second.doubt)}; both must be to the same queries."
        )
    one, other = _areas([first, second], resamples, seed)
    differences = (one - other)[1:]
    low, high = differences.quantile(torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)).tolist()
    tail = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    p = min(1.0, 2 * (tail + 1) / (len(differences) + 1))
    return AreaDifference(float(one[0] - other[0]), float(differences.std()), low, high, p)


def _areas(columns: Sequence[Doubted], resamples: int, seed: int) -> list[Tensor]:  # [1 + R] each
    """Areas of the queries as they are, then of resamples of them, which all columns share.

    A resample is how often each query is in it. Within a level of doubt with n of N queries and an error rate of r,
    where b queries with e errors come before, the risks after j = b + 1 ... b + n queries are (e + (j - b) r) / j, and
    add up to n r + (e - b r) (H(b + n) - H(b)) with H the harmonic numbers: ties count as their expectation.
    """
    check_count("resamples", resamples)
    checked = [check_flagged("doubt", answers.doubt, "correct", answers.correct) for answers in columns]
    levels = [torch.unique(doubt, return_inverse=True)[1].cpu() for doubt, _ in checked]
    wrong = [(~correct).double().cpu() for _, correct in checked]
    count = len(wrong[0])
    steps = 1 / torch.arange(1, count + 1, dtype=torch.float64)
    harmonic = torch.cat([steps.new_zeros(1), steps.cumsum(dim=0)])

    def of(weights: Tensor, level: Tensor, errors: Tensor) -> Tensor:  # [r, N] -> [r]
        size = int(level.max()) + 1
        n = weights.new_zeros(len(weights), size).index_add_(1, level, weights)
        e = weights.new_zeros(len(weights), size).index_add_(1, level, weights * errors)
        rate = torch.where(n > 0, e / n, 0.0)
        after = n.cumsum(dim=1)
        before, errors_before = after - n, e.cumsum(dim=1) - e
        grown = harmonic[after.round().long()] - harmonic[before.round().long()]
        return (e + (errors_before - before * rate) * grown).sum(dim=1) / count

    generator = torch.Generator().manual_seed(seed)
    found = [[of(torch.ones(1, count, dtype=torch.float64), *both)] for both in zip(levels, wrong, strict=True)]
    for block in row_blocks(resamples, count, _BLOCK):
        drawn = torch.randint(count, (block.stop - block.start, count), generator=generator)
        weights = torch.zeros(len(drawn), count, dtype=torch.float64)
        weights.scatter_add_(1, drawn, torch.ones_like(weights))
        for column, both in zip(found, zip(levels, wrong, strict=True), strict=True):
            column.append(of(weights, *both))
    return [torch.cat(parts) for parts in found]


# Queries that nothing answers -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Detection:
    """How well a score tells queries that have a match from those that have none.

    Attributes:
        auroc: with its 95 % interval.
        false_answers: the share of queries without a match that are answered where 95 % of the others are, likewise.
        kept, falsely_answered: the same two shares at a cut-off that was found on other queries than it is judged on.
    """

    auroc: float
    auroc_interval: tuple[float, float]
    false_answers: float
    false_answers_interval: tuple[float, float]
    kept: Estimate
    falsely_answered: Estimate


def detection(scores: Tensor, answerable: Tensor, seed: int = 0) -> Detection:  # [Q], [Q] bool
    """What a score, higher where something matches, is worth for saying that nothing does."""
    cut_off = other_half_cut_offs(scores, answerable, seed=seed)
    answered = scores.double() >= cut_off
    return Detection(
        auroc(scores, answerable),
        auroc_interval(scores, answerable),
        fpr95(scores, answerable),
        rank_interval(fpr95, scores, answerable, seed=seed),
        Estimate.of(answered[answerable]),
        Estimate.of(answered[~answerable]),
    )


def flat_cut_off(scores: Tensor, kept: float = KEPT) -> float:  # [Q]
    """The highest cut-off that at least this share of the queries reaches."""
    if not 0 < kept <= 1:
        raise BayesVLMError(f"kept={kept}; it is the share of queries to keep, above 0 and at most 1.")
    if not len(scores):
        raise BayesVLMError("There is no query to find a cut-off on; give some that have a match.")
    below = int((1 - kept) * len(scores) + 1e-9)
    return float(scores.double().sort().values[below])


def other_half_cut_offs(scores: Tensor, answerable: Tensor, kept: float = KEPT, seed: int = 0) -> Tensor:  # [Q] float64
    """For each query the cut-off that was found on the half of the queries that it is not in."""
    scores, answerable = check_flagged("scores", scores, "answerable", answerable)
    positive = scores[answerable]
    if len(positive) < 2:
        raise BayesVLMError(f"{len(positive)} queries have a match; a cut-off that is judged on others takes two.")
    found = torch.empty_like(scores)
    sides = torch.zeros(len(scores), dtype=torch.bool, device=scores.device)
    generator = torch.Generator().manual_seed(seed)
    for flag in (answerable, ~answerable):  # each kind in halves
        rows = flag.nonzero()[:, 0].cpu()
        rows = rows[torch.randperm(len(rows), generator=generator)]
        sides[rows[: len(rows) // 2].to(sides.device)] = True
    for side in (sides, ~sides):
        found[side] = flat_cut_off(scores[~side & answerable], kept)
    return found
