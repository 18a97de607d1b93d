r"""How much a label would tell: BALD about the parameters, EPIG about predictions on the target.

The mathematics: docs/method.md, "Active learning".

Both come from class probabilities under the same parameter draws for all inputs. For EPIG pool and target must share
them, for it is the dependence between the two that is measured:

    EPIG(x) = E_* sum_{y, y*} p(y) p(y*) f(delta),   1 + delta = p(y, y*) / (p(y) p(y*)),
    f(delta) = (1 + delta) log(1 + delta) - delta,   delta = 1/S sum_k (p_k(y)/p(y) - 1) (p_k(y*)/p(y*) - 1)

The last term of f adds nothing to the sum, for delta is zero on average, but every term is now at least zero and of
second order in delta. With delta itself, computed from ratios that are centred, nothing large is ever subtracted from
something large: in float32 the definition leaves 3e-6 nats of rounding where scores are 1e-5, this form 1e-9.

A class that says nothing about an input is left out of its sum. Its part is at most what it says about the draws
themselves, p(y) 1/S sum_k r_k log r_k with r_k = p_k(y)/p(y), whose sum over the classes is BALD; classes are left out
until that adds up to `NEGLIGIBLE` nats, or to a hundredth of the whole.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesvlm.core.blocks import row_blocks
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.predict import entropy
from bayesvlm.core.threads import in_threads

NEGLIGIBLE = 1e-6  # nats; scores that matter are a thousand times as large
ALMOST_NEVER = -1 + 2.0**-23  # the least delta: f is 1 there as at -1, where two labels never occur together
TILE = 2**18  # joint probabilities at a time: they stay in the processor's cache
GROUPS = 4  # of the targets' labels, by how much they vary, where scores are bounded
FIRST = 16  # inputs that are scored at first where one is wanted; then twice as many, and so on


def bald(probs: Tensor) -> Tensor:  # [S, N, C] -> [N]
    """Mutual information between an input's label and the parameters, in nats: at most the entropy of the label."""
    _check(probs)
    total = entropy(probs.mean(dim=0))
    return _bounded(total - entropy(probs).mean(dim=0), total)


def epig(pool: Tensor, target: Tensor) -> Tensor:  # [S, N, C], [S, M, C] -> [N]
    """Mutual information between an input's label and a target's, averaged over the targets, in nats.

    At least 0, at most the entropy of either label.

    Args:
        pool, target: class probabilities under the same draws.
    """
    shared = _Shared.of(pool, target)
    return shared.scores(torch.arange(pool.shape[1], device=pool.device))


def most_informative(pool: Tensor, target: Tensor, above: float = -torch.inf) -> tuple[int, float]:
    """The input with the largest EPIG and that EPIG, scoring few of them.

    No score of the others is needed where a bound on it is below the best one that is known: inputs are scored in the
    order of their bounds until the next bound is lower.

    Args:
        pool, target: class probabilities under the same draws, [S, N, C] and [S, M, C].
        above: a score that is known already; where no input has more, the index is -1 and the score is this one.
    """
    shared = _Shared.of(pool, target)
    most, order = shared.bounds().sort(descending=True, stable=True)
    item, best, start, count = -1, above, 0, FIRST
    while start < len(order) and float(most[start]) > best:
        scored = order[start : start + count].sort().values  # the first of equals wins
        scores = shared.scores(scored)
        place = int(scores.argmax())
        if float(scores[place]) > best:
            item, best = int(scored[place]), float(scores[place])
        start, count = start + count, 2 * count
    return item, best


@dataclass(frozen=True, eq=False)
class _Ratios:
    """p_k(y)/p(y) - 1 of the labels that count, those of an input one after the other."""

    centred: Tensor  # [R, S]
    share: Tensor  # [R], p(y)
    told: Tensor  # [R], p(y) 1/S sum_k r_k log r_k
    owner: Tensor  # [R], the input

    @classmethod
    def of(cls, probs: Tensor) -> _Ratios:  # [S, N, C]
        series = probs.permute(1, 2, 0)  # [N, C, S]
        blocks = row_blocks(len(series), series[0].numel(), _tile(probs))
        return cls(*(torch.cat(parts) for parts in zip(*(cls._block(series, own) for own in blocks), strict=True)))

    @staticmethod
    def _block(series: Tensor, own: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        part = series[own]
        mean = part.mean(dim=2)  # [n, C]
        base = mean.clamp_min(torch.finfo(mean.dtype).tiny)[:, :, None]
        centred = (part - base).div_(base).clamp_min_(ALMOST_NEVER)
        told = torch.log1p(centred)
        told = mean * told.addcmul_(told, centred).sub_(centred).mean(dim=2).clamp_min_(0)
        ascending, order = told.sort(dim=1)
        sums = ascending.cumsum(dim=1)
        allowed = (sums[:, -1:] / 100).clamp_max(NEGLIGIBLE)
        counts = torch.zeros_like(mean, dtype=torch.bool).scatter_(1, order, sums > allowed)
        owner = counts.nonzero()[:, 0] + own.start
        return centred[counts], mean[counts], told[counts], owner


@dataclass(frozen=True, eq=False)
class _Shared:
    """What the labels of some inputs and those of the targets have in common under the draws."""

    inputs: _Ratios
    targets: _Ratios
    weight: Tensor  # [Q], of the targets' labels: p(y*) / M
    entropy: Tensor  # [N], of the inputs' labels

    @classmethod
    def of(cls, pool: Tensor, target: Tensor) -> _Shared:  # [S, N, C], [S, M, C]
        _check(pool)
        _check(target)
        if pool.shape[0] != target.shape[0]:
            raise BayesVLMError(
                f"The pool has {pool.shape[0]} draws and the target {target.shape[0]}; EPIG measures what they share, "
                "so they must be the same draws."
            )
        targets = _Ratios.of(target)
        return cls(_Ratios.of(pool), targets, targets.share / target.shape[1], entropy(pool.mean(dim=0)))

    @property
    def draws(self) -> int:
        return self.inputs.centred.shape[1]

    def scores(self, which: Tensor) -> Tensor:  # [n] -> [n]
        """EPIG of some of the inputs."""
        wanted = which.new_full((len(self.entropy),), -1)
        wanted[which] = torch.arange(len(which), device=which.device)
        place = wanted[self.inputs.owner]
        own = (place >= 0).nonzero().flatten()
        rows = self.inputs.centred[own].div_(self.draws)
        gained = _Bands(rows, self.targets.centred, self.weight).gained()
        scores = rows.new_zeros(len(which)).index_add_(0, place[own], self.inputs.share[own] * gained)
        return _bounded(scores, self.entropy[which])

    def bounds(self) -> Tensor:  # [N], float64
        """No score is above these, and where delta is small they are hardly above the scores.

        f(delta)/delta^2 falls with delta: from 1 at -1 over 1/2 at 0. With |delta| at most D, by Cauchy and Schwarz the
        product of the two labels' lengths, f(delta) is at most f(-D)/D^2 delta^2, and the squares of delta add up to a
        quadratic form, of S^2 operations per label instead of S for every pair. The targets' labels are taken in
        `GROUPS` of similar length, each with its own D. What a label tells about the draws is a bound, too.
        """
        rows, columns, S = self.inputs.centred, self.targets.centred, self.draws
        sums = torch.zeros(len(self.entropy), dtype=torch.float64, device=rows.device)
        if len(rows) == 0 or len(columns) == 0:  # nothing varies
            return sums
        lengths = columns.norm(dim=1)
        groups = lengths.argsort().chunk(GROUPS)
        weighted = [columns[own] * self.weight[own, None] for own in groups]
        forms = torch.cat([part.T @ columns[own] for part, own in zip(weighted, groups, strict=True)], dim=1)
        traces = torch.stack([(self.weight[own] * lengths[own].square()).sum() for own in groups]).double() / S**2
        reach = torch.stack([lengths[own].max() for own in groups]).double() / S
        rounding = 32 * torch.finfo(rows.dtype).eps
        found = torch.empty(len(rows), dtype=torch.float64, device=rows.device)
        for own in row_blocks(len(rows), forms.shape[1], _tile(rows)):
            part = rows[own]
            squares = ((part @ forms).view(len(part), -1, S) * part[:, None]).sum(dim=2).double() / S**2
            length = part.double().norm(dim=1, keepdim=True)
            squares = squares.clamp_min(0) + rounding * length.square() * traces
            D = (length * reach).clamp(1e-4, 1)
            found[own] = (squares * (torch.special.xlogy(1 - D, 1 - D) + D) / D.square()).sum(dim=1)
        share, told = self.inputs.share.double(), self.inputs.told.double()
        least = torch.minimum(share * found, told + rounding * (told + share))
        return sums.index_add_(0, self.inputs.owner, least)


class _Bands:
    """All labels of pool items against all labels of targets, a band of rows at a time, a band in tiles.

    Every thread has one pair of tiles for all its bands.
    """

    def __init__(self, rows: Tensor, columns: Tensor, weight: Tensor) -> None:  # [R, S], [Q, S], [Q]
        self.rows, self.columns, self.weight = rows, columns, weight
        self.width = max(1, min(len(columns), 2048))
        self.height = max(1, _tile(rows) // self.width)
        self._sums = rows.new_zeros(len(rows))
        self._own = threading.local()

    def gained(self) -> Tensor:  # [R]
        """sum over columns of weight f(delta)."""
        operations = 2.0 * self.rows.numel() * len(self.columns) if self.rows.device.type == "cpu" else 0.0
        in_threads(self._band, range(0, len(self.rows), self.height), operations)
        return self._sums

    def _band(self, top: int) -> None:
        if not hasattr(self._own, "tiles"):
            self._own.tiles = self.rows.new_empty(2, self.height * self.width)
        rows, sums = (of[top : top + self.height] for of in (self.rows, self._sums))
        for left in range(0, len(self.columns), self.width):
            columns, weight = (of[left : left + self.width] for of in (self.columns, self.weight))
            delta, log = self._own.tiles[:, : len(rows) * len(columns)].view(2, len(rows), len(columns))
            torch.mm(rows, columns.T, out=delta).clamp_min_(ALMOST_NEVER)
            torch.log1p(delta, out=log)
            log.addcmul_(log, delta).sub_(delta)  # f(delta)
            sums += log @ weight


def _tile(like: Tensor) -> int:
    """Numbers at a time: few on a CPU, so that they stay in its cache, many on a GPU, so that all of it has work."""
    return TILE if like.device.type == "cpu" else 2**26


def _check(probs: Tensor) -> None:
    if probs.ndim != 3 or min(probs.shape) == 0:
        raise BayesVLMError(
            f"Probabilities of shape {list(probs.shape)}; expected [draws, inputs, classes], none of them empty."
        )
    sums = probs.sum(dim=(0, 2)) / len(probs)
    wrong = ~((sums - 1).abs() < 1e-3)  # also NaN
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise BayesVLMError(
            f"The probabilities of input {row} sum to {float(sums[row]):.4g} over the classes; they must sum to one."
        )


def _bounded(scores: Tensor, most: Tensor) -> Tensor:  # [N], [N] -> [N]
    """Information between zero and the label's entropy; what lies outside by more than rounding is not information."""
    outside = ~((scores > -1e-4) & (scores < most + 1e-4))  # also NaN
    if bool(outside.any()):
        row = int(outside.nonzero()[0])
        raise BayesVLMError(
            f"Input {row} has the score {float(scores[row]):.3g}, outside 0 to {float(most[row]):.3g}, the entropy of "
            "its label; probabilities must be finite and sum to one over the classes."
        )
    return scores.clamp_min(0)
