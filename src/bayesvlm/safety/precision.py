r"""Thresholds above which a label is right often enough: on the images at hand, or with a confidence for all others.

At a threshold s, k images are flagged and c of them carry the label. Were the precision pi or less, c would be as large
with a probability of at most

    p(s) = P( Binomial(k, pi) >= c )

(that is: the one-sided Clopper-Pearson bound at 1 - delta lies above pi where p <= delta). The thresholds are tested in
a fixed sequence, from the most confident image down, each at the whole level delta, until the first that fails. No
level is divided, because a threshold that is not good enough is passed only if the first such is, which happens with a
probability of at most delta (fixed-sequence testing; Angelopoulos et al., "Learn then Test", 2021). The sequence begins
where k images, all of them right, could pass: k >= log(delta) / log(pi). That the beginning depends on the scores does
no harm where the precision does not rise as the threshold falls, which is what a score is for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

import torch
from scipy.stats import binom
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.printing import described

NEVER = math.inf


@dataclass(frozen=True, eq=False)
class ThresholdFit:
    """A threshold for each label, and what it did on the images it was fitted on.

    Args:
        thresholds: least score that is flagged; infinite where none is good enough.
        images: how many there were, N.
        positives: how many of them carry the label.
        flagged: how many are at the threshold or above.
        correct: how many of those carry the label.
    """

    thresholds: Tensor  # [C] float64
    images: int
    positives: Tensor  # [C]
    flagged: Tensor  # [C]
    correct: Tensor  # [C]

    __repr__ = described

    @property
    def precision(self) -> Tensor:  # [C]
        """Share of the flagged that carry the label; NaN where nothing is flagged."""
        return self.correct / self.flagged

    @property
    def recall(self) -> Tensor:  # [C]
        """Share of the images with the label that are flagged; NaN where there are none."""
        return self.correct / self.positives


def fewest_images(precision: float, confidence: float) -> int:
    """How many images must be flagged, all of them rightly, before a precision can be promised.

    >>> fewest_images(0.9, 0.95)
    29
    """
    return max(1, math.ceil(math.log1p(-confidence) / math.log(precision) - 1e-9))


def precision_thresholds(
    scores: Tensor,  # [N, C]
    labels: Tensor,  # [N, C] bool
    precision: float,
    confidence: float | None,
) -> ThresholdFit:
    """The smallest threshold of each label whose precision is at least `precision`.

    Args:
        scores: of every image and label, higher = more confident.
        labels: which labels each image carries.
        precision: between 0 and 1.
        confidence: with this probability over the images at hand, the precision holds for all images like them, of each
            label by itself; None: it holds on the images at hand, and nothing is promised.
    """
    check_share("precision", precision)
    if confidence is not None:
        check_share("confidence", confidence)
    _check(scores, labels)
    needed = _needed(len(scores), precision, confidence)  # [N]
    ordered, order = scores.double().cpu().sort(dim=0, descending=True)
    correct = labels.cpu().gather(0, order).long().cumsum(dim=0)  # [N, C], among the k highest
    below = torch.cat([ordered[1:], torch.full_like(ordered[:1], -math.inf)])
    enough = correct >= needed[:, None]
    tested = (ordered > below) & (needed <= torch.arange(1, len(needed) + 1))[:, None]
    passed = tested & enough
    if confidence is not None:
        passed &= (tested & ~enough).cumsum(dim=0) == 0
    flagged = torch.where(passed, torch.arange(1, len(needed) + 1)[:, None], 0).amax(dim=0)  # [C]
    last = (flagged - 1).clamp_min(0)[None]
    lowest, next_lower = ordered.gather(0, last)[0], below.gather(0, last)[0]
    between = (lowest + next_lower) / 2  # as far as can be from both, so that rounding moves no image across
    thresholds = torch.where(between > next_lower, between, lowest)
    return ThresholdFit(
        torch.where(flagged > 0, thresholds, NEVER),
        len(scores),
        correct[-1],
        flagged,
        torch.where(flagged > 0, correct.gather(0, last)[0], 0),
    )


def check_share(name: str, value: float, example: str = "0.9 for 90 %") -> float:
    """`value` as a float, if it lies between 0 and 1, both excluded."""
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 < value < 1:
        raise BayesVLMError(f"{name}={str(value)[:40]}; it must lie between 0 and 1, such as {example}.")
    return float(value)


def _needed(images: int, precision: float, confidence: float | None) -> Tensor:  # [N]
    """How many of the k highest must carry the label, k = 1 ... N; more than k where that many are too few."""
    count = torch.arange(1, images + 1)
    if confidence is None:
        return torch.ceil(precision * count.double() - 1e-9).long().clamp_min(1)
    return torch.from_numpy(binom.ppf(confidence, count.numpy(), precision)).long() + 1


def _check(scores: Tensor, labels: Tensor) -> None:
    if scores.ndim != 2 or scores.shape != labels.shape or labels.dtype != torch.bool or not len(scores):
        raise BayesVLMError(
            f"The scores are {list(scores.shape)} and the labels {labels.dtype} {list(labels.shape)}; both must be "
            "[N, C] with at least one row, the labels bool."
        )
    if not bool(torch.isfinite(scores).all()):
        raise BayesVLMError("The scores hold NaN or Inf; check the inputs they were made from.")
