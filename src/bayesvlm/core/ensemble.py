r"""Several prompts of one class as one row of activations: its Gaussian is exact, because a projection is linear.

The mathematics: docs/method.md, "Prompt ensembles".

    hbar_c = 1/m sum_j h_cj / |h_cj|        the unit embeddings of m prompts, averaged, as users of CLIP do
           = Q psibar_c,                    with |h_cj| held at |mu_cj|, its mean, as ProbCosine holds norms
    psibar_c = 1/m sum_j psi_cj / |mu_cj|   (a bias: the 1 that goes with it is averaged with the same weights)

The prompts share the projection Q, so the variance of their mean is that of Q at psibar_c. It is not that of m
independent Gaussians, which is up to m times too small, and m Gaussians are not kept.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.core.posterior import directed
from bayesvlm.core.projection import Projection


def ensemble(
    projection: Projection,
    prompts: Features,  # [M]
    groups: Sequence[int] | Tensor,  # [M]
    first: int = 0,
) -> Features:  # [C]
    """The prompts of each group as one input of the projection, its embedding as long as theirs are on average.

    A group of one is returned as it was. Variances that a model predicts for its prompts (ProLIP, PCME++) are of the
    text itself and not of a shared projection; of several prompts the standard deviations are averaged, which is right
    if their errors agree and too large otherwise.

    Args:
        projection: of the tower.
        prompts: activations of all prompts.
        groups: which group each belongs to, numbered from 0; none may be empty.
        first: what errors call the first group, where these are some of many.
    """
    group = torch.as_tensor(groups, device=prompts.activations.device)
    sizes = torch.bincount(group)
    if group.shape != (len(prompts),) or not bool(sizes.all()):
        raise BayesVLMError(
            f"There are {len(prompts)} prompts in groups of {sizes.tolist()[:10]}; each needs its group, and none may "
            "be empty."
        )
    count = len(sizes)
    norms = directed(projection.embed(prompts)).norm(dim=1).to(prompts.activations)  # [M], |mu_cj|
    if count == len(prompts):
        return prompts[torch.argsort(group)]
    length = _sums(norms[:, None], group, count)[:, 0] / sizes  # [C]
    weights = (length[group] / sizes[group] / norms)[:, None]  # [M, 1]

    def averaged(rows: Tensor) -> Tensor:
        return _sums(rows * weights.to(rows), group, count)

    constant = prompts.constant
    if constant is None and projection.bias is not None:
        constant = torch.ones_like(weights)
    together = Features(
        averaged(prompts.activations),
        None if prompts.residual is None else averaged(prompts.residual),
        None if prompts.log_variance is None else 2 * averaged((prompts.log_variance / 2).exp()).log(),
        None if constant is None else averaged(constant),
    )
    shrunk = projection.embed(together).norm(dim=1).to(length) / length  # 1 where all prompts of a class agree
    if bool((shrunk < 1e-4).any()):
        raise BayesVLMError(
            f"The prompts of class {first + int(shrunk.argmin())} point in opposite directions and cancel, so their "
            "mean has no direction; give prompts that mean the same."
        )
    return together.scaled(1 / shrunk)


def _sums(rows: Tensor, group: Tensor, count: int) -> Tensor:  # [M, w] -> [count, w]
    return rows.new_zeros(count, rows.shape[1]).index_add_(0, group, rows)
