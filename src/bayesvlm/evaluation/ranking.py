r"""How sure is a ranking, and is one score really better than another on the same inputs?

DeLong et al. (1988). With P positives x_i and M negatives y_j, the structural components of an AUROC are

    V+_i = share of negatives below x_i        V-_j = share of positives above y_j        (ties 1/2)
    variance(AUROC) = variance(V+) / P + variance(V-) / M

and the covariance of two scores' AUROCs is the same with covariances of their components.

Bootstrap: positives and negatives are drawn again, each kind as often as it occurs (stratified). A ranking is known by
how many of each kind have each score, so that a resample is two rows of counts and nothing is sorted again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.evaluation.selective import aupr, auroc, fpr95, split_kinds

RankMetric = Callable[[Tensor, Tensor], float]
"""`auroc`, `fpr95`, `aupr`, or any other function of scores [N] and positives [N]."""

_BLOCK = 2**21  # inputs the bootstrap draws at a time


@dataclass(frozen=True)
class DeLong:
    """Two AUROCs on the same inputs, their difference, its standard error, the two-sided p of their being equal."""

    first: float
    second: float
    difference: float
    standard_error: float
    p: float


def delong(a: Tensor, b: Tensor, positives: Tensor) -> DeLong:  # [N], [N], [N] bool
    """DeLong's test of two scores that rank the same inputs, a positive `difference` where the first is better.

    The normal approximation needs some tens of inputs of each kind. With scores that agree in every comparison the
    p-value is 1; where the difference is the same for every input, it is 0.
    """
    if a.shape != b.shape:
        raise BayesVLMError(f"a has shape {list(a.shape)} and b {list(b.shape)}; both must score the same inputs, [N].")
    first, second = (_components(name, scores, positives) for name, scores in (("a", a), ("b", b)))
    areas = float(first.positive.mean()), float(second.positive.mean())
    difference = areas[0] - areas[1]
    error = _standard_error(_Components(first.positive - second.positive, first.negative - second.negative))
    if error > _NOTHING:
        p = math.erfc(abs(difference) / error / math.sqrt(2))
    else:
        p = 1.0 if abs(difference) <= _NOTHING else 0.0
    return DeLong(*areas, difference, error, p)


def auroc_interval(scores: Tensor, positives: Tensor, level: float = 0.95) -> tuple[float, float]:  # [N], [N] bool
    """DeLong's normal interval of one AUROC, cut to [0, 1].

    Where every positive is above every negative it has no width: the components do not vary, and say nothing of how
    close to 1 the AUROC is.
    """
    half = NormalDist().inv_cdf((1 + _checked_level(level)) / 2)
    found = _components("scores", scores, positives)
    area, error = float(found.positive.mean()), _standard_error(found)
    return max(0.0, area - half * error), min(1.0, area + half * error)


@dataclass(frozen=True)
class PairedBootstrap:
    """A metric of one score less that of another: the difference, the middle of its resamples, its two-sided p."""

    difference: float
    low: float
    high: float
    p: float


def rank_interval(
    metric: RankMetric,
    scores: Tensor,  # [N]
    positives: Tensor,  # [N] bool
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> tuple[float, float]:
    """Percentile bootstrap, positives and negatives drawn apart: the middle `level` of the metric over resamples.

    Args:
        metric: `auroc`, `fpr95` or `aupr`, which are computed from counts; any other function is called once for every
            resample.
        scores: one number per input.
        positives: which of them should have the high ones.
        resamples: how many to draw.
        seed: of the draws, which are the same on every device.
        level: probability mass of the interval.
    """
    level = _checked_level(level)
    (values,) = _resampled(metric, [("scores", scores)], positives, resamples, seed)
    return _middle(values, level)


def paired_bootstrap(
    metric: RankMetric,
    a: Tensor,  # [N]
    b: Tensor,  # [N]
    positives: Tensor,  # [N] bool
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> PairedBootstrap:
    """`rank_interval` of metric(a) - metric(b), both from the same resamples.

    p is twice the share of resamples on the other side of zero (or on it), counting one more than there are: with
    1,000 resamples it is at least 0.002.
    """
    if a.shape != b.shape:
        raise BayesVLMError(f"a has shape {list(a.shape)} and b {list(b.shape)}; both must score the same inputs, [N].")
    level = _checked_level(level)
    first, second = _resampled(metric, [("a", a), ("b", b)], positives, resamples, seed)
    differences = first - second
    low, high = _middle(differences, level)
    tail = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    p = min(1.0, 2 * (tail + 1) / (len(differences) + 1))
    return PairedBootstrap(metric(a, positives) - metric(b, positives), low, high, p)


# DeLong ---------------------------------------------------------------------------------------------------------------

_NOTHING = 1e-14  # components are multiples of 1/(2 P) and 1/(2 M): below this they are all equal


@dataclass(frozen=True)
class _Components:
    positive: Tensor  # [P]
    negative: Tensor  # [M]


def _components(name: str, scores: Tensor, positives: Tensor) -> _Components:
    """Structural components, in the order of the inputs."""
    above, below = split_kinds(name, scores, positives)
    if min(len(above), len(below)) < 2:
        raise BayesVLMError(
            f"There are {len(above)} positive and {len(below)} negative inputs; a standard error needs two of each."
        )
    return _Components(_share_below(above, below), 1 - _share_below(below, above))


def _share_below(values: Tensor, others: Tensor) -> Tensor:  # [n], [m] -> [n]
    """Of each value, the share of others below it, ties 1/2."""
    ascending = others.sort().values
    below, up_to = (torch.searchsorted(ascending, values, right=right) for right in (False, True))
    return (below + up_to).double() / (2 * len(others))


def _standard_error(of: _Components) -> float:
    return math.sqrt(float(of.positive.var()) / len(of.positive) + float(of.negative.var()) / len(of.negative))


# Bootstrap ------------------------------------------------------------------------------------------------------------


def _resampled(
    metric: RankMetric, columns: Sequence[tuple[str, Tensor]], positives: Tensor, resamples: int, seed: int
) -> list[Tensor]:  # [R] each
    """The metric of every column on the same resamples."""
    if resamples < 1:
        raise BayesVLMError(f"resamples={resamples}; give at least 1, and 1000 or more for a 95 % interval.")
    kinds = [split_kinds(name, scores, positives) for name, scores in columns]
    sizes = [len(kind) for kind in kinds[0]]
    generator = torch.Generator().manual_seed(seed)
    values: list[list[Tensor]] = [[] for _ in columns]
    ranked = [_ranked(*kind) for kind in kinds]
    step = max(1, _BLOCK // sum(sizes))
    for start in range(0, resamples, step):
        drawn = [torch.randint(size, (min(step, resamples - start), size), generator=generator) for size in sizes]
        for column, (kind, places) in enumerate(zip(kinds, ranked, strict=True)):
            rows = [of.to(places.positive.device) for of in drawn]
            counted = _COUNTED.get(metric)
            block = counted(places.counts(*rows)) if counted else _called(metric, kind, rows)
            values[column].append(block.cpu())
    return [torch.cat(of) for of in values]


def _called(metric: RankMetric, kind: tuple[Tensor, Tensor], rows: Sequence[Tensor]) -> Tensor:  # [r]
    """A metric that nothing is known of, one resample after the other."""
    above, below = kind
    flags = torch.arange(len(above) + len(below), device=above.device) < len(above)
    draws = zip(*rows, strict=True)
    found = [metric(torch.cat([above[first], below[second]]), flags) for first, second in draws]
    return torch.tensor(found, dtype=torch.float64)


@dataclass(frozen=True)
class _Counts:
    """How many of each kind have each score, the highest score first."""

    positive: Tensor  # [R, L], float64
    negative: Tensor  # [R, L]


@dataclass(frozen=True)
class _Ranked:
    """The place of every input's score among all L different ones, the highest first."""

    positive: Tensor  # [P]
    negative: Tensor  # [M]
    levels: int

    def counts(self, positive: Tensor, negative: Tensor) -> _Counts:  # [R, P], [R, M] rows
        """Of the inputs at these rows."""
        return _Counts(self._count(self.positive[positive]), self._count(self.negative[negative]))

    def _count(self, places: Tensor) -> Tensor:  # [R, n] -> [R, L]
        total = torch.zeros(len(places), self.levels, dtype=torch.float64, device=places.device)
        return total.scatter_add_(
            1, places, torch.ones((), dtype=torch.float64, device=places.device).expand_as(places)
        )


def _ranked(above: Tensor, below: Tensor) -> _Ranked:
    levels, place = torch.unique(torch.cat([above, below]), return_inverse=True)
    place = len(levels) - 1 - place
    return _Ranked(place[: len(above)], place[len(above) :], len(levels))


def _auroc(of: _Counts) -> Tensor:  # [R]
    above = of.positive.cumsum(dim=1) - of.positive / 2
    return (of.negative * above).sum(dim=1) / (of.positive.sum(dim=1) * of.negative.sum(dim=1))


def _aupr(of: _Counts) -> Tensor:  # [R]
    hits, alarms = of.positive.cumsum(dim=1), of.negative.cumsum(dim=1)
    precision = hits / (hits + alarms).clamp_min(1)  # above the highest score drawn there is nothing
    return (of.positive * precision).sum(dim=1) / hits[:, -1]


def _fpr95(of: _Counts) -> Tensor:  # [R]
    hits, alarms = of.positive.cumsum(dim=1), of.negative.cumsum(dim=1)
    needed = -(-95 * int(hits[0, -1]) // 100)
    place = (hits < needed).sum(dim=1, keepdim=True)
    return (alarms.gather(1, place) / alarms[:, -1:])[:, 0]


_COUNTED: Mapping[RankMetric, Callable[[_Counts], Tensor]] = {auroc: _auroc, aupr: _aupr, fpr95: _fpr95}


def _checked_level(level: float) -> float:
    if not 0 < level < 1:
        raise BayesVLMError(f"level={level}; it must lie between 0 and 1, such as 0.95.")
    return level


def _middle(values: Tensor, level: float) -> tuple[float, float]:
    low, high = values.quantile(torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)).tolist()
    return low, high
