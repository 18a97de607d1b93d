r"""Does the uncertainty know which predictions are wrong? Selective prediction and detection by one score per input.

    risk(k/N) = errors among the k least uncertain / k
    AURC      = mean of risk(k/N) over k = 1 ... N                  (Geifman and El-Yaniv 2017)
    E-AURC    = AURC - that of an order which puts all errors last  (Geifman et al. 2019)
    AUGRC     = mean of k/N risk(k/N)                               (Traub et al. 2024)
    AUROC     = P(s+ > s-) + P(s+ = s-) / 2
    AUPR      = sum over thresholds t of P(positive | s >= t) (recall at t - recall at the next higher one)
    FPR95     = P(s- >= t),  t the highest threshold with P(s+ >= t) >= 0.95

For failures take `auroc(uncertainty, ~correct)`, for inputs out of distribution `auroc(uncertainty, outside)`. Whether
one score ranks better than another, and intervals: `ranking`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.printing import described

_ROUNDING = 1e-12  # of risks that are sums of shares: 3 times 1/3 of an error is an error


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
    uncertainty, correct = check_flagged("uncertainty", uncertainty, "correct", correct)
    levels, group = torch.unique(uncertainty, return_inverse=True)
    rate = torch.zeros_like(levels).scatter_reduce_(0, group, (~correct).double(), "mean", include_self=False)
    kept = torch.arange(1, len(group) + 1, dtype=torch.float64, device=group.device)
    return RiskCoverage(kept / len(group), rate[group.sort().values].cumsum(dim=0) / kept)


def aurc(uncertainty: Tensor, correct: Tensor) -> float:  # [N], [N] bool
    """Area under the risk-coverage curve, the mean of its N risks: 0 is best, no use is the error rate."""
    return float(risk_coverage(uncertainty, correct).risk.mean())


def e_aurc(uncertainty: Tensor, correct: Tensor) -> float:  # [N], [N] bool
    """Excess AURC, what the order alone loses: `aurc` less the smallest possible with as many errors; 0 is best."""
    curve = risk_coverage(uncertainty, correct)
    count, right = len(correct), int(correct.sum())
    kept = torch.arange(1, count + 1, dtype=torch.float64, device=curve.risk.device)
    return float((curve.risk - (kept - right).clamp_min(0) / kept).mean())


def augrc(uncertainty: Tensor, correct: Tensor) -> float:  # [N], [N] bool
    """Area under the generalised risk-coverage curve, the mean of its N generalised risks coverage * risk.

    A generalised risk is the chance that an input is answered, and wrongly. 0 is best; with an error rate e no use is
    about e/2. torch-uncertainty takes the trapezoidal rule from 1/N to 1 instead of the mean, which differs by O(1/N).
    """
    curve = risk_coverage(uncertainty, correct)
    return float((curve.coverage * curve.risk).mean())


def coverage_at_risk(uncertainty: Tensor, correct: Tensor, risk: float) -> float:  # [N], [N] bool
    """The largest coverage whose risk on these inputs is at most `risk`; 0 where there is none.

    It describes the inputs it is given and promises nothing of others: a threshold that holds for new inputs has to be
    calibrated.
    """
    if not 0 <= risk <= 1:
        raise BayesVLMError(f"risk={risk}; it is an error rate, from 0 to 1, such as 0.05.")
    curve = risk_coverage(uncertainty, correct)
    within = (curve.risk <= risk + _ROUNDING).nonzero()
    return float(curve.coverage[within[-1, 0]]) if len(within) else 0.0


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


def aupr(scores: Tensor, positives: Tensor) -> float:  # [N], [N] bool
    """Average precision: the area under the precision-recall curve in steps; no use is the share of positives.

    A threshold takes all inputs of one score, so that the order of equals does not matter, as in scikit-learn.
    """
    positive, negative = _both_kinds(scores, positives)
    levels, hits = torch.unique(positive, return_counts=True)
    reached = len(positive) - torch.searchsorted(positive, levels)  # positives at or above each level
    alarms = len(negative) - torch.searchsorted(negative, levels)
    return float((hits * (reached / (reached + alarms).double())).sum()) / len(positive)


def _both_kinds(scores: Tensor, positives: Tensor) -> tuple[Tensor, Tensor]:  # [P], [N - P], each ascending
    positive, negative = split_kinds("scores", scores, positives)
    return positive.sort().values, negative.sort().values


def split_kinds(name: str, scores: Tensor, positives: Tensor) -> tuple[Tensor, Tensor]:  # [P], [N - P]
    """The scores of the positives and of the negatives in float64, in the order given, if there are both."""
    scores, positives = check_flagged(name, scores, "positives", positives)
    count = int(positives.sum())
    if count in (0, len(scores)):
        raise BayesVLMError(
            f"{count} of {len(scores)} inputs are positive; a ranking needs both kinds, give at least one of each."
        )
    return scores[positives], scores[~positives]


def check_flagged(name: str, values: Tensor, flag_name: str, flags: Tensor) -> tuple[Tensor, Tensor]:  # [N], [N]
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
