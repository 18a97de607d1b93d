r"""How many inputs can be answered at a chosen risk: exact binomial tests, in fixed sequences.

Of the k most confident images c are answered rightly. Were the risk (the share of wrong answers) `risk` or more, c
would be as large with a probability of at most P(Binomial(k, 1 - risk) >= c): below a level delta, the one-sided
Clopper-Pearson bound on the risk lies below `risk`. Thresholds are tested from the most confident image down until the
first that fails, each at the whole level, because a threshold that is not good enough is passed only if the first such
is (fixed-sequence testing).

One early mistake would end a single sequence, however good what follows is. So where there are images enough, four
sequences begin at four ranks that depend on nothing but their number, each with a quarter of delta = 1 - confidence
(Angelopoulos et al., "Learn then Test", 2021): the first where so many right answers could pass, the others evenly
beyond it on a logarithmic scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, binom
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.safety.precision import NEVER, check_share, fewest_images

SEQUENCES = 4


@dataclass(frozen=True)
class SelectiveFit:
    """A threshold on the confidence, and what it did on the images it was fitted on.

    Attributes:
        threshold: least confidence that is answered; infinite where none can be promised.
        images: how many there were.
        answered: how many are at the threshold or above.
        wrong: how many of those are answered wrongly.
        bound: the upper bound on the risk at this threshold, at the level it was tested; 1 where nothing is answered.
    """

    threshold: float
    images: int
    answered: int
    wrong: int
    bound: float

    @property
    def coverage(self) -> float:
        """Share of the images that are answered."""
        return self.answered / self.images


def fewest_answers(risk: float, confidence: float) -> int:
    """How many images must be answered, all of them rightly, before a risk can be promised.

    >>> fewest_answers(0.05, 0.95)
    59
    """
    return fewest_images(1 - risk, confidence)


def risk_bound(answered: int, wrong: int, confidence: float) -> float:
    """The one-sided upper Clopper-Pearson bound on the risk.

    >>> round(risk_bound(59, 0, 0.95), 4)
    0.0495
    """
    return 1.0 if wrong >= answered else float(beta.ppf(confidence, wrong + 1, answered - wrong))


def selective_threshold(
    confidence: Tensor,  # [n]
    correct: Tensor,  # [n] bool
    risk: float,
    confidence_level: float = 0.95,
) -> SelectiveFit:
    """The smallest threshold whose risk is below `risk`, with a probability of `confidence_level` over the images.

    Args:
        confidence: of each image's answer, higher = surer.
        correct: whether the answer was right.
        risk: the share of answered images that may be answered wrongly, between 0 and 1.
        confidence_level: of the promise.
    """
    check_share("risk", risk)
    check_share("confidence", confidence_level)
    if confidence.ndim != 1 or confidence.shape != correct.shape or not len(confidence):
        raise BayesVLMError(
            f"The confidences are {list(confidence.shape)} and correct {list(correct.shape)}; both must be [N], one "
            "per image, with at least one."
        )
    if not bool(confidence.isfinite().all()):
        raise BayesVLMError("The confidences hold NaN or Inf; check the inputs they were made from.")
    count, delta = len(confidence), 1 - confidence_level
    starts = _starts(count, risk, delta)
    level = delta / len(starts)
    ordered, order = confidence.detach().double().cpu().sort(descending=True)
    right = correct.cpu().bool()[order].long().cumsum(dim=0).numpy()
    values, ranks = ordered.numpy(), np.arange(1, count + 1)
    tested = np.append(values[1:] < values[:-1], True)  # a threshold takes all images that are as confident
    passed = binom.sf(right - 1, ranks, 1 - risk) <= level
    answered = max(_last(ranks, tested, passed, start) for start in starts)
    if not answered:
        return SelectiveFit(NEVER, count, 0, 0, 1.0)
    lowest, wrong = values[answered - 1], answered - int(right[answered - 1])
    next_lower = values[answered] if answered < count else lowest
    between = (lowest + next_lower) / 2  # as far as can be from both, so that rounding moves no image across
    bound = risk_bound(answered, wrong, 1 - level)
    return SelectiveFit(float(between if between > next_lower else lowest), count, answered, wrong, bound)


def _starts(images: int, risk: float, delta: float) -> list[int]:
    """The ranks that sequences begin at."""
    least = fewest_answers(risk, 1 - delta / SEQUENCES)
    if images < 2 * least:
        return [fewest_answers(risk, 1 - delta)]
    return [round(least * (images / least) ** (number / SEQUENCES)) for number in range(SEQUENCES)]


def _last(ranks: NDArray[np.int64], tested: NDArray[np.bool_], passed: NDArray[np.bool_], start: int) -> int:
    """The last rank of a sequence that passes; 0: none does."""
    open_to = tested & (ranks >= start)
    failed = np.flatnonzero(open_to & ~passed)
    before = open_to if not len(failed) else open_to & (ranks <= failed[0])
    return int(ranks[before & passed].max(initial=0))
