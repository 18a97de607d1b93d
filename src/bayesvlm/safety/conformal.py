r"""Guarantees in finite samples, from nothing but that calibration images and new ones are alike (exchangeable).

Whether an input is unfamiliar (higher scores = more familiar):

    p = (1 + #{calibration scores <= score}) / (n + 1),      P(p <= alpha) <= alpha  for familiar inputs

Which classes an input may be of: those whose score s is at most the ceil((n + 1)(1 - alpha))-th smallest score of the
calibration images' own labels. Then the set has the label with a probability of at least 1 - alpha.

    LAC    s_y = 1 - p_y                                        (Sadinle et al. 2019)
    APS    s_y = sum_{p_j > p_y} p_j + U p_y                    (Romano et al. 2020), U uniform on [0, 1], per input
    RAPS   s_y = APS + penalty max(0, o_y - rank),  o_y = 1 + #{p_j > p_y}     (Angelopoulos et al. 2021)

All is computed in float64. Functions of arrays: they know no model.
"""

from __future__ import annotations

import math
from numbers import Real

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError, check_count

_EXACT = 1e-9  # how far (n + 1) alpha may be from the whole number that it is meant to be


def fewest(alpha: float) -> int:
    """How many calibration images a level needs: with fewer, nothing is ever flagged and every class is in every set.

    >>> fewest(0.05), fewest(0.1), fewest(0.3)
    (19, 9, 3)
    """
    return max(1, math.ceil(1 / alpha - 1 - _EXACT))


def p_values(calibration: Tensor, scores: Tensor) -> Tensor:  # [n], [N] -> [N] float64
    """How often a familiar input looks as unfamiliar as this one: small where the score is lower than usual."""
    ordered = _numbers("calibration", calibration).sort().values
    at_most = torch.searchsorted(ordered, _numbers("scores", scores).contiguous(), right=True)
    return (1 + at_most).double() / (len(ordered) + 1)


def alarm_threshold(calibration: Tensor, alpha: float) -> float:
    """Scores below it have a p-value of at most `alpha`, and no others; -inf where there are too few for any.

    It is the floor((n + 1) alpha)-th smallest calibration score.
    """
    ordered = _numbers("calibration", calibration).sort().values
    place = math.floor((len(ordered) + 1) * alpha + _EXACT)
    return float(ordered[place - 1]) if 1 <= place <= len(ordered) else -math.inf


def threshold(scores: Tensor, miss: float) -> float:
    """The ceil((n + 1)(1 - miss))-th smallest score of calibration labels; infinite where there are too few.

    Args:
        scores: of each calibration image's own label, [n].
        miss: alpha, how often a set may be without the label.
    """
    ordered = _numbers("scores", scores).sort().values
    place = math.ceil((len(ordered) + 1) * (1 - miss) - _EXACT)
    return math.inf if place > len(ordered) else float(ordered[max(place, 1) - 1])


def lac(probs: Tensor) -> Tensor:  # [N, C] -> [N, C] float64
    """1 - p: the smallest sets on average, at the cost of the coverage of difficult images."""
    return 1 - check_probs(probs).double()


def aps(probs: Tensor, u: Tensor) -> Tensor:  # [N, C], [N] -> [N, C] float64
    """The probability of all classes that are more probable, and a random share u of the class's own."""
    return _aps(probs, u)[0]


def raps(probs: Tensor, u: Tensor, penalty: float = 0.01, rank: int = 5) -> Tensor:  # [N, C], [N] -> [N, C] float64
    """APS, and a penalty for every rank beyond the `rank`-th: fewer very large sets."""
    penalty, rank = check_penalty(penalty), check_count("rank", rank, least=0)
    scores, above = _aps(probs, u)
    return scores + penalty * (above + 1 - rank).clamp_min(0).double()


def of_labels(scores: Tensor, labels: Tensor) -> Tensor:  # [N, C], [N] -> [N]
    """The score of each input's own label."""
    return scores.gather(1, labels.to(scores.device)[:, None])[:, 0]


def _aps(probs: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:  # [N, C], [N, C]
    """The scores, and how many classes are more probable than each."""
    probs = check_probs(probs).double()
    if u.shape != probs.shape[:1] or not bool(((u >= 0) & (u <= 1)).all()):
        raise BayesVLMError(
            f"u has shape {list(u.shape)} for {len(probs)} inputs; it must be [N] numbers between 0 and 1, one per "
            "input."
        )
    ordered, order = probs.sort(dim=1, descending=True)
    before = ordered.cumsum(dim=1) - ordered
    place = torch.arange(probs.shape[1], device=probs.device).expand_as(order)
    starts = torch.ones_like(order, dtype=torch.bool)
    starts[:, 1:] = ordered[:, 1:] < ordered[:, :-1]
    first = torch.where(starts, place, 0).cummax(dim=1).values  # of those that are as probable
    scores = before.gather(1, first) + u.to(probs)[:, None] * ordered
    return torch.empty_like(scores).scatter_(1, order, scores), torch.empty_like(order).scatter_(1, order, first)


def check_penalty(penalty: float) -> float:
    """The penalty of RAPS as a float, if it can be one."""
    if not isinstance(penalty, Real) or isinstance(penalty, bool) or not 0 <= penalty < math.inf:
        raise BayesVLMError(f"penalty={str(penalty)[:40]}; it must be a finite number of at least 0, such as 0.01.")
    return float(penalty)


def check_probs(probs: Tensor) -> Tensor:  # [N, C]
    """Refuse what are no class probabilities."""
    if not isinstance(probs, Tensor) or probs.ndim != 2 or not probs.is_floating_point() or not probs.shape[1]:
        shape = list(probs.shape) if isinstance(probs, Tensor) else type(probs).__name__
        raise BayesVLMError(f"probs is {shape}; it must be a tensor of class probabilities [N, C].")
    off = 1e-2 if probs.element_size() > 2 else 0.1
    if not bool(((probs >= 0) & ((probs.sum(dim=1, keepdim=True) - 1).abs() < off)).all()):  # also catches NaN
        raise BayesVLMError("probs must hold numbers of at least 0 that add up to 1 in every row; pass probabilities.")
    return probs


def _numbers(name: str, values: Tensor) -> Tensor:  # [n] float64
    """Values on the processor, if they can be put in an order."""
    if not isinstance(values, Tensor) or values.ndim != 1:
        shape = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise BayesVLMError(f"{name} is {shape}; it must be a tensor [N], one number per input.")
    if bool(values.isnan().any()):
        raise BayesVLMError(f"{name} holds NaN; check the inputs it was made from.")
    return values.detach().double().cpu()
