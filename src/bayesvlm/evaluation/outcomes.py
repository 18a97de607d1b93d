r"""What the metrics need to know of each prediction: six numbers per input instead of C probabilities.

With p the probabilities of an input and y its label,

    confidence = max_c p_c          correct = [argmax_c p_c = y]
    nll = -log p_y                  squared_error = sum_c (p_c - [c = y])^2
    entropy = -sum_c p_c log p_c

Every metric is a function of these, over the last dimension: a bootstrap draws them again as [resamples, N] and never
touches the probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Integral

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.printing import described

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_SUM_TOLERANCE = 1e-3  # a softmax in float16 passes; one in bfloat16, rounded to three digits, may not


@dataclass(frozen=True, eq=False)
class Reliability:
    """The reliability diagram: mean confidence and accuracy in bins of equal width; NaN where a bin is empty."""

    edges: Tensor  # [B + 1], from 0 to 1
    confidence: Tensor  # [..., B]
    accuracy: Tensor  # [..., B]
    count: Tensor  # [..., B], integers

    __repr__ = described


@dataclass(frozen=True, eq=False)
class Outcomes:
    """The six numbers of every prediction, and the metrics as functions of them: one value per leading index.

    The columns serve elsewhere too: `correct` for selective prediction, `nll` or `squared_error` for a paired test.
    """

    labels: Tensor  # [..., N], integers
    confidence: Tensor  # [..., N], in the dtype of the probabilities
    correct: Tensor  # [..., N], bool
    nll: Tensor  # [..., N], float64
    squared_error: Tensor  # [..., N], float64
    entropy: Tensor  # [..., N], float64, nats

    __repr__ = described

    @classmethod
    def of(cls, probs: Tensor, labels: Tensor) -> Outcomes:  # [N, C], [N]
        """Reduce probabilities, checked, on their device.

        Of equally probable classes the first is the prediction. A probability of zero counts as the smallest normal
        number of its dtype: one such input costs 87 nats in float32, 708 in float64 and 9.7 in float16, not infinity.
        """
        probs, labels = _checked(probs, labels)
        confidence, predicted = probs.max(dim=1)
        given = probs.gather(1, labels[:, None])
        error = probs.to(torch.float64, copy=True).scatter_add_(1, labels[:, None], -torch.ones_like(given).double())
        return cls(
            labels=labels,
            confidence=confidence,
            correct=predicted == labels,
            nll=_nll(given[:, 0]),
            squared_error=error.square_().sum(dim=1),
            entropy=torch.special.entr(probs).sum(dim=1, dtype=torch.float64),
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Outcomes]) -> Outcomes:
        """One after the other, [N_1 + N_2 + ...]: made in chunks where N x C probabilities are too many to hold."""
        return cls(*(torch.cat([getattr(part, column.name) for part in parts], dim=-1) for column in fields(cls)))

    def take(self, rows: Tensor) -> Outcomes:  # [..., n]
        """The outcomes at these rows, in the shape of `rows`."""
        return Outcomes(*(getattr(self, column.name)[rows] for column in fields(self)))

    def accuracy(self) -> Tensor:  # [...]
        """Mean of `correct`."""
        return self.correct.double().mean(dim=-1)

    def nlpd(self) -> Tensor:  # [...]
        """Mean of -log p_y, in nats."""
        return self.nll.mean(dim=-1)

    def brier(self) -> Tensor:  # [...]
        """Mean of sum_c (p_c - [c = y])^2, between 0 and 2."""
        return self.squared_error.mean(dim=-1)

    def balanced_accuracy(self) -> Tensor:  # [...]
        """Mean over the classes that occur among the labels of the accuracy within each."""
        classes = int(self.labels.max()) + 1
        hits = _sums(self.correct, self.labels, classes)
        return (hits / _sums(torch.ones_like(self.correct), self.labels, classes)).nanmean(dim=-1)

    def reliability(self, bins: int = 20) -> Reliability:
        """Mean confidence and accuracy in bins of equal width: [b/B, (b+1)/B), the last with its right end.

        A confidence on an edge belongs to the bin above it. The edges are rounded to the dtype of the probabilities, so
        that a float32 0.35 is on the edge 7/20.
        """
        _check_bins(bins)
        device, dtype = self.confidence.device, self.confidence.dtype
        edges = (torch.arange(bins + 1, dtype=torch.float64, device=device) / bins).to(dtype).double()
        place = torch.bucketize(self.confidence.double(), edges, right=True).sub_(1).clamp_(max=bins - 1)
        count = _sums(torch.ones_like(self.correct), place, bins)
        confidence = _sums(self.confidence, place, bins) / count
        return Reliability(edges, confidence, _sums(self.correct, place, bins) / count, count.long())

    def ece(self, bins: int = 20) -> Tensor:  # [...]
        """sum_b count_b / N |accuracy_b - confidence_b| over the bins of `reliability`."""
        diagram = self.reliability(bins)
        gaps = diagram.count * (diagram.accuracy - diagram.confidence).abs()
        return gaps.nansum(dim=-1) / self.labels.shape[-1]

    def adaptive_ece(self, bins: int = 20) -> Tensor:  # [...]
        """The same over bins of equal mass: N/B inputs each, by rank of confidence.

        With G(k) the sum of (correct - confidence) over the k least confident inputs this is
        sum_b |G((b+1) N/B) - G(b N/B)| / N. G is linear between whole k and across equal confidences: an input on the
        border of two bins is shared between them, ties are shared evenly, and the order of the inputs does not matter.
        """
        _check_bins(bins)
        count = self.labels.shape[-1]
        confidence, order = self.confidence.double().sort(dim=-1)
        gap = self.correct.double().gather(-1, order) - confidence
        total = torch.nn.functional.pad(gap.cumsum(dim=-1), (1, 0))  # [..., N + 1], G at whole k without ties
        ranks = torch.arange(bins + 1, dtype=torch.float64, device=gap.device).mul_(count).div_(bins)
        inside = ranks.long().clamp_(max=count - 1).expand(*gap.shape[:-1], -1)
        level = confidence.gather(-1, inside)  # [..., B + 1], the confidence each border falls on
        first, last = (torch.searchsorted(confidence, level, right=right) for right in (False, True))
        low, high = total.gather(-1, first), total.gather(-1, last)
        borders = low + (high - low) * (ranks - first) / (last - first)
        return borders.diff(dim=-1).abs().sum(dim=-1) / count


def negative_log_likelihood(probs: Tensor, labels: Tensor) -> Tensor:  # [N, C], [N] -> [N]
    """-log p_y of every input in nats, float64; `Outcomes.of` has the same among other things."""
    probs, labels = _checked(probs, labels)
    return _nll(probs.gather(1, labels[:, None])[:, 0])


def _nll(given: Tensor) -> Tensor:  # [N]
    """-log of the probabilities of the labels; zero counts as the smallest normal number."""
    return -given.clamp_min(torch.finfo(given.dtype).tiny).double().log()


def _checked(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:  # [N, C], [N]
    probs = torch.as_tensor(probs).detach()
    labels = check_labelled("probs", probs, labels)
    _check_probabilities(probs)
    return probs, labels


def check_labelled(name: str, values: Tensor, labels: Tensor) -> Tensor:  # [N, C], [N] -> [N]
    """The labels as int64 on the device of `values`, if both are what their shapes say and the values finite."""
    labels = torch.as_tensor(labels)
    if values.ndim != 2 or not values.is_floating_point():
        raise BayesVLMError(
            f"{name} has shape {list(values.shape)} and {values.dtype}; it must be floating-point numbers [N, C], "
            "one row per input and one column per class."
        )
    rows, classes = values.shape
    if rows < 1 or classes < 2:
        raise BayesVLMError(f"{name} has shape {[rows, classes]}; give at least one input and two classes.")
    if labels.ndim != 1 or labels.dtype not in _INTEGERS:
        raise BayesVLMError(
            f"labels has shape {list(labels.shape)} and {labels.dtype}; it must be integers [N], the index of each "
            "input's class."
        )
    if len(labels) != rows:
        raise BayesVLMError(f"{name} has {rows} rows and there are {len(labels)} labels; give one label per row.")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= classes:
        raise BayesVLMError(
            f"The labels run from {low} to {high}, but {name} has {classes} classes; number them 0 to {classes - 1}."
        )
    finite = torch.isfinite(values).all(dim=1)
    if not bool(finite.all()):
        raise BayesVLMError(
            f"{name} holds NaN or Inf, first in row {int(finite.long().argmin())}; all must be finite: mend or drop "
            "those inputs and classes."
        )
    return labels.to(values.device, torch.int64)


def _check_probabilities(probs: Tensor) -> None:  # [N, C]
    if float(probs.min()) < 0:
        raise BayesVLMError(
            f"probs holds {float(probs.min()):.4g}; probabilities are not negative: pass the softmax, not logits."
        )
    sums = probs.sum(dim=1, dtype=torch.float64)
    worst = int((sums - 1).abs().argmax())
    if abs(float(sums[worst]) - 1) > _SUM_TOLERANCE:
        raise BayesVLMError(
            f"Row {worst} of probs sums to {float(sums[worst]):.6g}; each must sum to one within {_SUM_TOLERANCE}: "
            "pass the softmax over all classes, in float32."
        )


def _check_bins(bins: int) -> None:
    if isinstance(bins, bool) or not isinstance(bins, Integral) or bins < 1:
        raise BayesVLMError(f"bins={bins!r}; it must be a whole number of at least 1, and is 20 in the paper.")


def _sums(values: Tensor, groups: Tensor, size: int) -> Tensor:  # [..., N], [..., N] -> [..., size]
    """Sum of the values of each group, in float64."""
    total = torch.zeros(*groups.shape[:-1], size, dtype=torch.float64, device=groups.device)
    return total.scatter_add_(-1, groups, values.double())
