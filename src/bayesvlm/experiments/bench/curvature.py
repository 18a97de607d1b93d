"""InfoNCE curvature, O(N K d), against the per-sample form as the paper writes it, O(N K d^2).

Both are linear in the number of rows, so the slow one is timed on fewer rows and compared by time per row.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from bayesvlm.core.contrast import Precision
from bayesvlm.core.curvature import infonce_curvature
from bayesvlm.experiments.bench.generated import clip_like
from bayesvlm.experiments.bench.measured import Fact, Measured, Plan, compared
from bayesvlm.experiments.bench.turns import take_turns

SCALE = 100.0
REFERENCE = "per sample, float32"
_CHECKED = 20  # rows that errors are taken on


def measure(plan: Plan) -> Measured:
    """At the paper's contrast batch, with few rows where there is no GPU."""
    d, K = (64, 512) if plan.quick else (512, 32768)
    rows, slow_rows = (64, 10) if plan.quick else (K, 200) if plan.cuda else (4096, 10)
    precisions: list[Precision] = ["float32", "tf32", "bf16"] if plan.cuda else ["float32"]
    source, target = (tensor.to(plan.device) for tensor in clip_like(K, d))
    source = source[:rows]
    few = source[:_CHECKED]
    right = per_sample(few.double(), target.double())
    runs: dict[str, Any] = {
        precision: partial(infonce_curvature, source, target, SCALE, precision=precision) for precision in precisions
    }
    runs[REFERENCE] = partial(per_sample, source[:slow_rows], target)
    seconds = take_turns(runs, plan.device, plan.repeats or 5)
    errors: dict[str, dict[str, Fact]] = {
        precision: {"relative_error": _error(infonce_curvature(few, target, SCALE, precision=precision), right)}
        for precision in precisions
    }
    units = {way: float(slow_rows if way == REFERENCE else rows) for way in runs}
    return Measured(
        REFERENCE,
        "row",
        {"d": d, "K": K, "rows": rows, "rows of the reference": slow_rows},
        compared(seconds, REFERENCE, units, errors),
        {"relative_error_of_the_reference": _error(per_sample(few, target), right)},
    )


def per_sample(source: Tensor, target: Tensor, scale: float = SCALE, samples: int = 5) -> Tensor:
    """`sum_i t^2 M_i (sum_k pi_ik h_k h_k^T - m_i m_i^T) M_i`, a d x d matrix for every row, a few rows at a time.

    Args:
        source, target: raw embeddings, [N, d] and [K, d].
        scale: t.
        samples: rows at a time, each with a copy of all targets.

    Returns:
        [d, d] in the dtype of the embeddings.
    """
    norm = source.norm(dim=1, keepdim=True)
    ghat, hhat = source / norm, target / target.norm(dim=1, keepdim=True)
    identity = torch.eye(source.shape[1], dtype=source.dtype, device=source.device)
    total = torch.zeros_like(identity)
    for start in range(0, len(source), samples):
        g = ghat[start : start + samples]
        pi = torch.softmax(scale * g @ hhat.T, dim=1)
        scaled = pi[:, :, None] * hhat  # [s, K, d]: a row-scaled copy of H for each sample
        mean = pi @ hhat
        covariance = hhat.T @ scaled - mean[:, :, None] * mean[:, None, :]
        jacobian = (identity - g[:, :, None] * g[:, None, :]) / norm[start : start + samples, :, None]
        total += scale**2 * (jacobian @ covariance @ jacobian).sum(dim=0)
    return total


def _error(value: Tensor, right: Tensor) -> float:
    return float((value.double() - right).norm() / right.norm())
