r"""How many inputs can be answered at a chosen risk: the exact binomial bound, in a fixed sequence.

Of the k most confident images c are answered rightly. Were the risk (the share of wrong answers) `risk` or more, c
would be as large with a probability of at most P(Binomial(k, 1 - risk) >= c): below 1 - confidence, the one-sided
Clopper-Pearson bound on the risk lies below `risk`. Thresholds are tested from the most confident image down, at the
whole level, until the first that fails (`bayesvlm.safety.precision` has the argument).
"""

from __future__ import annotations

from dataclasses import dataclass

from scipy.stats import beta
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.safety.precision import check_share, fewest_images, precision_thresholds


@dataclass(frozen=True)
class SelectiveFit:
    """A threshold on the confidence, and what it did on the images it was fitted on.

    Attributes:
        threshold: least confidence that is answered; infinite where none can be promised.
        images: how many there were.
        answered: how many are at the threshold or above.
        wrong: how many of those are answered wrongly.
        bound: the upper bound on the risk at this threshold; 1 where nothing is answered.
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
    found = precision_thresholds(confidence[:, None], correct.bool()[:, None], 1 - risk, confidence_level)
    answered, right = int(found.flagged[0]), int(found.correct[0])
    bound = risk_bound(answered, answered - right, confidence_level) if answered else 1.0
    return SelectiveFit(float(found.thresholds[0]), len(confidence), answered, answered - right, bound)
