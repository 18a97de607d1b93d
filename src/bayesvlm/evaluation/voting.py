r"""ZERO test-time augmentation (Farina et al. 2024): the most confident views vote.

Of V views of an input with probabilities p_v keep the K = max(1, floor(keep V)) of smallest entropy. The label is what
most of them say on their own (softmax at zero temperature, hence the name), the probabilities are the mean of theirs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.printing import described


class Vote(NamedTuple):
    """What the kept views say together."""

    probs: Tensor  # [N, C], their mean
    labels: Tensor  # [N], the class most of them put first; of equally many the one with the larger mean probability

    def __repr__(self) -> str:
        return described(self)


def vote(probs: Tensor, keep: float = 0.3) -> Vote:  # [N, V, C]
    """Let the most confident share of the views of each input vote."""
    if probs.ndim != 3 or 0 in probs.shape:
        raise BayesVLMError(f"probs has shape {list(probs.shape)}; it must be [N, V, C], none of them zero.")
    if not 0 < keep <= 1:
        raise BayesVLMError(f"keep={keep}; it is the share of views that vote, above 0 and at most 1.")
    classes = probs.shape[2]
    kept = max(1, int(keep * probs.shape[1] + 1e-9))  # 0.29 of 100 is 29
    entropy = torch.special.entr(probs).sum(dim=2)  # [N, V]
    chosen = entropy.argsort(dim=1, stable=True)[:, :kept]
    sure = probs.gather(1, chosen[:, :, None].expand(-1, -1, classes))  # [N, K, C]
    mean = sure.mean(dim=1)
    ballots = torch.zeros_like(mean).scatter_add_(1, sure.argmax(dim=2), torch.ones_like(mean[:, :1]).expand(-1, kept))
    tied = ballots == ballots.amax(dim=1, keepdim=True)
    return Vote(mean, mean.masked_fill(~tied, -1).argmax(dim=1))
