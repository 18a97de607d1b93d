r"""Does the uncertainty know which predictions are wrong? Selective prediction and detection by one score an input.

    risk(k/N) = errors among the k least uncertain / k
    AURC      = mean of risk(k/N) over k = 1 ... N
    AUROC     = P(s+ > s-) + P(s+ = s-) / 2
    FPR95     = P(s- >= t),  t the highest threshold with P(s+ >= t) >= 0.95

For failures take `auroc(uncertainty, ~correct)`, for inputs out of distribution `auroc(uncertainty, outside)`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.printing import described


@dataclass(frozen=True, eq=False)
class RiskCoverage:
    """Error rate among the inputs kept, against the share of inputs kept."""

    coverage: Tensor  # [N], 1/N ... 1
    risk: Tensor  # [N]

    __repr__ = described


def risk_coverage(uncertainty: Tensor, correct: Tensor) -> RiskCoverage:  # [N], [N] bool
    """Keep the k least uncertain inputs, k = 1 ... N.

    Equal uncertainties enter in random order, and the risk is its expectation over that order, exactly: each of them
    counts with the error rate of all of them.
    """
    uncertainty, correct = _checked("uncertainty", uncertainty, "correct", correct)
    levels, group = torch.unique(uncertainty, return_inverse=True)
    rate = torch.zeros_like(levels).scatter_reduce_(0, group, (~correct).double(), "mean", include_self=False)
    kept = torch.arange(1, len(group) + 1, dtype=torch.float64, device=group.device)
    return RiskCoverage(kept / len(group), rate[group.sort().values].cumsum(dim=0) / kept)


def aurc(uncertainty: Tensor, correct: Tensor) -> float:  # [N], [N] bool
    """Area under the risk-coverage curve, the mean of its N risks: 0 is best, no use is the error rate."""
    return float(risk_coverage(uncertainty, correct).risk.mean())


def auroc(scores: Tensor, positives: Tensor) -> float:  # [N], [N] bool
    """Probability that a positive scores above a negative, ties 1/2: 1 is best, no use is 0.5."""
    positive, negative = _both_kinds(scores, positives)
    below, up_to = (torch.searchsorted(negative, positive, right=right) for right in (False, True))
    return float((below + up_to).double().sum()) / (2 * len(positive) * len(negative))


def fpr95(scores: Tensor, positives: Tensor) -> float:  # [N], [N] bool
    """Share of negatives at or above the highest threshold that at least 95 % of the positives reach: 0 is best."""
    positive, negative = _both_kinds(scores, positives)
    reached = -(-95 * len(positive) // 100)  # the smallest whole number of at least 95 %
    return float((negative >= positive[len(positive) - reached]).double().mean())


def _both_kinds(scores: Tensor, positives: Tensor) -> tuple[Tensor, Tensor]:  # [P], [N - P], ascending
    scores, positives = _checked("scores", scores, "positives", positives)
    count = int(positives.sum())
    if count in (0, len(scores)):
        raise BayesVLMError(
            f"{count} of {len(scores)} inputs are positive; a ranking needs both kinds, give at least one of each."
        )
    return scores[positives].sort().values, scores[~positives].sort().values


def _checked(name: str, values: Tensor, flag_name: str, flags: Tensor) -> tuple[Tensor, Tensor]:  # [N], [N]
    """The values in float64 and the flags on their device, if there are as many of both and no NaN; Inf only ranks."""
    if values.ndim != 1 or len(values) == 0:
        raise BayesVLMError(
            f"{name} has shape {list(values.shape)}; it must be [N], one number per input, at least one."
        )
    if flags.shape != values.shape or flags.dtype != torch.bool:
        raise BayesVLMError(
            f"{flag_name} has shape {list(flags.shape)} and {flags.dtype}; it must be bool {list(values.shape)}, "
            f"one for each of {name}."
        )
    if bool(values.isnan().any()):
        raise BayesVLMError(
            f"{name} holds {int(values.isnan().sum())} NaN, which have no rank; mend or drop those inputs."
        )
    return values.detach().double(), flags.to(values.device)
