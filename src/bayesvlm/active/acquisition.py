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

import torch
from torch import Tensor

from bayesvlm.core.blocks import row_blocks
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.predict import entropy
from bayesvlm.core.threads import in_threads

NEGLIGIBLE = 1e-6  # nats; scores that matter are a thousand times as large
ALMOST_NEVER = -1 + 2.0**-23  # the least delta: f is 1 there as at -1, where two labels never occur together
TILE = 2**18  # joint probabilities at a time: they stay in the processor's cache


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
    _check(pool)
    _check(target)
    if pool.shape[0] != target.shape[0]:
        raise BayesVLMError(
            f"The pool has {pool.shape[0]} draws and the target {target.shape[0]}; EPIG measures what they share, so "
            "they must be the same draws."
        )
    rows, row_share, owner = _centred_ratios(pool)  # [R, S], [R], [R]
    rows.div_(len(pool))
    columns, column_share, _ = _centred_ratios(target)  # [Q, S], [Q]
    weight = column_share / target.shape[1]
    bands = _Bands(rows, columns, weight)
    told = row_share * bands.gained()
    scores = row_share.new_zeros(pool.shape[1]).index_add_(0, owner, told)
    return _bounded(scores, entropy(pool.mean(dim=0)))


class _Bands:
    """All labels of pool items against all labels of targets, a band of rows at a time, a band in tiles.

    Every thread has one pair of tiles for all its bands.
    """

    def __init__(self, rows: Tensor, columns: Tensor, weight: Tensor) -> None:  # [R, S], [Q, S], [Q]
        self.rows, self.columns, self.weight = rows, columns, weight
        self.width = max(1, min(len(columns), 2048))
        self.height = max(1, TILE // self.width)
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


def _centred_ratios(probs: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # [R, S], [R], [R]
    """p_k(y) / p(y) - 1 for every input and class that counts, p(y), and the input's index."""
    mean = probs.mean(dim=0)  # [N, C]
    ascending, order = _told_about_draws(probs, mean).sort(dim=1)
    sums = ascending.cumsum(dim=1)
    allowed = (sums[:, -1:] / 100).clamp_max(NEGLIGIBLE)
    counts = torch.zeros_like(mean, dtype=torch.bool).scatter_(1, order, sums > allowed)
    owner, label = counts.nonzero(as_tuple=True)
    share = mean[owner, label]
    ratios = probs[:, owner, label].T.contiguous().sub_(share[:, None]).div_(share[:, None])
    return ratios, share, owner


def _told_about_draws(probs: Tensor, mean: Tensor) -> Tensor:  # [S, N, C], [N, C] -> [N, C]
    """p(y) 1/S sum_k f(r_k - 1): what each class adds to BALD, nats."""
    tiny, told = torch.finfo(mean.dtype).tiny, torch.empty_like(mean)
    for own in row_blocks(len(mean), len(probs) * mean.shape[1], TILE):
        ratios = (probs[:, own] / mean[own].clamp_min(tiny)).clamp_min_(tiny)  # r log r of the least is as good as zero
        told[own] = mean[own] * (ratios.log().mul_(ratios).mean(dim=0) - ratios.mean(dim=0) + 1).clamp_min(0)
    return told


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
