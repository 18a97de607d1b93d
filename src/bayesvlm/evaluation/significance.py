r"""Is one method really better than another on the same inputs? The paired t-test.

With D_n the difference of their losses on input n:    t = mean(D) / (std(D) / sqrt(N)),    p = P(|T_{N-1}| >= |t|)
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError


@dataclass(frozen=True)
class PairedTest:
    """Mean of a - b, its t statistic, and the two-sided p-value of their being equal in the mean."""

    difference: float
    t: float
    p: float


def paired_t_test(a: Tensor, b: Tensor) -> PairedTest:  # [N], [N]
    """Two-sided paired t-test, in float64.

    Without any difference p is 1. With the same difference on every input, t is infinite and p is 0.
    """
    return _test({"a": a, "b": b})


def not_worse_than_best(losses: Mapping[str, Tensor], level: float = 0.05) -> frozenset[str]:  # [N] each
    """The method with the smallest mean loss, and all that are not significantly worse than it at `level`.

    Each is compared with the best by a two-sided paired t-test over inputs, without correction for their number: what
    the paper prints in bold.
    """
    if not losses:
        raise BayesVLMError("There are no losses to compare; give at least one method.")
    if not 0 < level < 1:
        raise BayesVLMError(f"level={level}; it must lie between 0 and 1, such as 0.05.")
    for name, values in losses.items():
        if not bool(torch.isfinite(values).all()):
            raise BayesVLMError(f"The losses of {name!r} hold NaN or Inf; mend or drop those inputs.")
    best = min(losses, key=lambda name: float(losses[name].double().mean()))
    others = losses.keys() - {best}
    return frozenset({best} | {name for name in others if _test({name: losses[name], best: losses[best]}).p >= level})


def _test(pair: Mapping[str, Tensor]) -> PairedTest:
    """The paired t-test of two named columns of losses."""
    from scipy.stats import ttest_rel  # takes a quarter of a second: only where it is asked for

    (first, a), (second, b) = pair.items()
    if a.shape != b.shape or a.ndim != 1 or len(a) < 2:
        raise BayesVLMError(
            f"{first!r} has shape {list(a.shape)} and {second!r} {list(b.shape)}; both must be [N], one loss for "
            "each of the same inputs, at least two."
        )
    for name, values in pair.items():
        if not bool(torch.isfinite(values).all()):
            raise BayesVLMError(
                f"The losses of {name!r} hold NaN or Inf, which no t-test can weigh; clamp or drop them."
            )
    a, b = a.detach().cpu().double(), b.detach().cpu().double()
    differences = a - b
    mean = float(differences.mean())
    if bool((differences == differences[0]).all()):
        return PairedTest(mean, math.copysign(math.inf, mean), 0.0) if mean else PairedTest(0.0, 0.0, 1.0)
    with warnings.catch_warnings(action="ignore", category=RuntimeWarning):  # of differences that are nearly all equal
        outcome = ttest_rel(a.numpy(), b.numpy())
    return PairedTest(mean, float(outcome.statistic), float(outcome.pvalue))
