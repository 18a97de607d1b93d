r"""How familiar an input is, as one number per input: higher = more familiar. Functions of arrays: they know no model.

With cosines c, logits z = t c (or those of any predictive distribution) and probabilities p:

    msp            max p                                  (Hendrycks and Gimpel 2017)
    mcm            max softmax(c): raw cosines            (Ming et al. 2022)
    max_cosine     max c
    energy         T logsumexp(z / T)                     (Liu et al. 2020)
    entropy        -H[p]
    neglabel       mean over groups of negatives of sum_known softmax([c_known, c_negative] / 0.01)  (Jiang et al. 2024)

The largest probability of a sure prediction is told apart from 1, and the entropy of one from 0, by adding up only the
rest: with d = z - max z and s the sum of exp(d) over all classes but the first,

    max p = 1 / (1 + s),        H = log(1 + s) - sum exp(d) d / (1 + s)
"""

from __future__ import annotations

import torch
from torch import Tensor

from bayesvlm.core.blocks import row_blocks
from bayesvlm.core.errors import BayesVLMError, check_count, check_positive
from bayesvlm.core.predict import entropy as shannon
from bayesvlm.safety.conformal import check_probs

NEGLABEL_TEMPERATURE = 0.01
GROUP = 100
"""Negatives in a group of NegLabel: 10,000 of them, as published, make 100 groups."""


def msp(probs: Tensor) -> Tensor:  # [N, C] -> [N] float64
    """The largest probability."""
    return check_probs(probs).amax(dim=1).double()


def entropy(probs: Tensor) -> Tensor:  # [N, C] -> [N] float64
    """Minus the entropy, in nats."""
    return -shannon(check_probs(probs).double())


def mcm(cosines: Tensor) -> Tensor:  # [N, C] -> [N] float64
    """The largest softmax of raw cosines, at a temperature of 1."""
    return 1 / (cosines.double() - cosines.double().amax(dim=1, keepdim=True)).exp().sum(dim=1)


def max_cosine(cosines: Tensor) -> Tensor:  # [N, C] -> [N] float64
    """The largest cosine."""
    return cosines.amax(dim=1).double()


def energy(logits: Tensor, temperature: float = 1.0) -> Tensor:  # [N, C] -> [N] float64
    """Minus the free energy of the logits, T logsumexp(z / T)."""
    check_positive("temperature", temperature)
    return temperature * (logits.double() / temperature).logsumexp(dim=1)


def neglabel(
    known: Tensor,  # [N, C]
    negative: Tensor,  # [N, M]
    groups: int | None = None,
    temperature: float = NEGLABEL_TEMPERATURE,
) -> Tensor:  # [N] float64
    """The share of the known names against negative ones, averaged over groups of the latter.

    Args:
        known: cosines with the classes.
        negative: cosines with the negatives; every `groups`-th belongs to one group.
        groups: None: one for every `GROUP` negatives, at least one.
        temperature: of the softmax of cosines.
    """
    if negative.ndim != 2 or not negative.shape[1] or len(negative) != len(known):
        raise BayesVLMError(
            f"The cosines with negatives are {list(negative.shape)} beside {list(known.shape)}; give [N, M] with at "
            "least one negative, for the same inputs."
        )
    groups = max(1, negative.shape[1] // GROUP) if groups is None else check_count("groups", groups)
    check_positive("temperature", temperature)
    known_sum = (known.double() / temperature).logsumexp(dim=1)
    scaled = negative.double() / temperature
    shares = [torch.sigmoid(known_sum - scaled[:, group::groups].logsumexp(dim=1)) for group in range(groups)]
    return torch.stack(shares).mean(dim=0)


def least_alike(cosines: Tensor, share: float = 0.15, quantile: float = 0.95) -> Tensor:  # [M, C] -> [m]
    """The words least like the known names: indices, the least alike first.

    Args:
        cosines: of every word with every class name.
        share: of the words that is kept.
        quantile: of a word's cosines, by which it is judged.
    """
    for name, value in (("share", share), ("quantile", quantile)):
        if not 0 < value <= 1:
            raise BayesVLMError(f"{name}={value}; it must be above 0 and at most 1.")
    blocks = row_blocks(len(cosines), cosines.shape[1])
    likeness = [cosines[rows].double().quantile(quantile, dim=1) for rows in blocks]
    return torch.cat(likeness).argsort(stable=True)[: max(1, round(share * len(cosines)))]


def softmax_scores(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # [N, C] -> [N] float64, [N] float64, [N]
    """`msp` and `entropy` of softmax(logits), without rounding off what sure predictions leave, and the best class."""
    numbers = 2**26 if logits.is_cuda else 2**19  # what a GPU is busy with, and what stays in a processor's cache
    blocks = list(row_blocks(len(logits), logits.shape[1], numbers)) or [slice(0, 0)]
    peak, negentropy, best = (
        torch.cat(each) for each in zip(*(_softmax_scores(logits[b]) for b in blocks), strict=True)
    )
    return peak, negentropy, best


def _softmax_scores(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    highest, best = logits.max(dim=1, keepdim=True)
    below = (logits - highest).clamp_min_(-200)  # exp(-200) is nothing, and 0 times infinity would be NaN
    rest = below.exp().scatter_(1, best, 0)
    total = rest.sum(dim=1).double()
    weighted = rest.mul_(below).sum(dim=1).double()
    return 1 / (1 + total), weighted / (1 + total) - total.log1p(), best[:, 0]
