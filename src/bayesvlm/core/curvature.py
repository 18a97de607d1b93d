r"""Curvature of the contrastive losses with respect to an embedding, summed over a batch in O(N K d).

The generalised Gauss-Newton factor of the output side is `B = sum_i J_i^T Lambda_i J_i` (paper, appendix C),
with `J_i = M_i = (I - ghat ghat^T) / |g_i|` the Jacobian of the normalisation. The paper builds a d x d matrix for
every row, O(N K d^2). Because M_i is the identity minus rank one, the sum collapses to three [N,K] x [K,d] products.

InfoNCE. `Lambda_i = t^2 C_i`, where C_i is the covariance of the targets hhat_k under `pi_i = softmax(t Hhat ghat_i)`.
A covariance does not change when all targets move, so two shifts are free and keep the digits that the textbook
form `E[h h^T] - m m^T` loses:

* all targets by their mean, which takes out what the targets share (the modality gap);
* each row's targets by its *anchor* a_i, the most probable target, whose own term then vanishes. With the remaining
  mass `e_i = sum_{k != a} pi_ik` and `v_i = sum_{k != a} pi_ik (h_k - h_a)` every term is O(e_i):

      C_i = sum_{k != a} pi_ik h_k h_k^T - e_i h_a h_a^T - v_i (h_a + v_i/2)^T - (h_a + v_i/2) v_i^T

  so a saturated softmax (e_i -> 0) keeps its relative accuracy, whether it saturates on the match or not.

Captions repeat, and copies of the anchor would bring the cancellation back: equal targets are therefore contrasted
once, with their number m_k, by adding log m_k to the logit.

Sigmoid. `Lambda_i = t^2/K sum_j sigma(a_ij) sigma(-a_ij) hhat_j hhat_j^T`, even in the label's sign: two products.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from bayesvlm.core.contrast import ContrastBatch, Precision
from bayesvlm.core.errors import BayesVLMError, check_choice
from bayesvlm.core.passes import Anchors, projected, round_to_tf32


@torch.no_grad()
def infonce_curvature(
    source: Tensor,  # [N, d]
    target: Tensor,  # [K, d]
    scale: float,
    positives: Tensor | None = None,  # [N]
    *,
    precision: Precision | None = None,
    memory: int | None = None,
) -> Tensor:  # [d, d]
    r"""`sum_i t^2 M_i C_i M_i` of the InfoNCE loss over rows i of `source`, contrasted with all K of `target`.

    Args:
        source: raw (not normalised) embeddings of the tower whose curvature is wanted.
        target: raw embeddings of the other tower: the contrast batch.
        scale: t = exp(logit_scale).
        positives: index of each row's match in `target`; None means row i matches target i when N == K, and that
            no match is present otherwise. The Gauss-Newton curvature of a softmax does not depend on the label, so
            this is checked (a miscounted batch is a bug worth finding) and cannot change the result.
        precision: of the products; None takes float64 for float64 inputs and float32 otherwise. "tf32" needs CUDA;
            its ten bits are carried in half precision where the kernels see to its range, which is twice as fast.
            Sums over rows are kept in float64 whatever this is.
        memory: bytes of working memory, whatever N and K are; None takes 512 MiB, on a GPU 896 MiB.

    Returns:
        [d, d] float64, symmetric, the sum over rows, scale^2 included.
    """
    scale = _checked_scale(scale)
    # half precision reaches to 65,504: logits' operands to `scale`, moments to what the passes make of them
    batch = ContrastBatch(source, target, precision, memory, merged=True, halves=scale < 2**15)
    _check_positives(positives, len(source), len(target))
    sums = _Sums(batch)
    with batch.products():
        for ghat, weight in batch.row_tiles():
            anchors, moments = _moments(batch, ghat, weight, scale)
            h_anchor = batch.targets(anchors.target).to(batch.dtype)
            sums.anchors.append((anchors.target, (weight * anchors.mass).double()))
            sums.add_cross(*batch.passes.crossed(ghat, h_anchor, anchors, weight, moments, scale))
    return sums.curvature(scale)


@torch.no_grad()
def sigmoid_curvature(
    source: Tensor,  # [N, d]
    target: Tensor,  # [K, d]
    scale: float,
    bias: float,
    normalise: Literal["paper", "sum"] = "paper",
    *,
    precision: Precision | None = None,
    memory: int | None = None,
) -> Tensor:  # [d, d]
    r"""`sum_i M_i Lambda_i M_i` of the sigmoid loss over rows i of `source`, contrasted with all K of `target`.

    Args:
        source, target, scale, precision, memory: as for `infonce_curvature`.
        bias: logit_bias, added to `scale * cosine`.
        normalise: "paper" divides by the contrast batch size K; "sum" does not, as the authors' code.

    Returns:
        [d, d] float64, symmetric, the sum over rows, scale^2 included.
    """
    scale = _checked_scale(scale)
    if not math.isfinite(bias):
        raise BayesVLMError(f"The logit bias is {bias}; it must be a finite number.")
    check_choice("normalise", normalise, ("paper", "sum"))
    batch = ContrastBatch(source, target, precision, memory, merged=False)
    sums = _Sums(batch)
    with batch.products():
        for ghat, weight in batch.row_tiles():
            u = _sigmoid_moment(batch, ghat, weight, scale, bias)
            left, right = ghat * weight[:, None], projected(ghat, u)
            if batch.precision == "tf32":
                left, right = round_to_tf32(left), round_to_tf32(right)
            sums.add_cross(left, right)
    curvature = sums.curvature(scale / 2)  # s = 4 sigma(a) sigma(-a): the 1/4 is in the half of the scale
    return curvature / len(target) if normalise == "paper" else curvature


def _moments(
    batch: ContrastBatch,
    ghat: Tensor,  # [n, d]
    weight: Tensor,  # [n]
    scale: float,
) -> tuple[Anchors, Tensor]:  # [2, n, d]
    """Each row's anchor a, and over k != a the sums of `share_k (logit_k - logit_a) h_k` and of `share_k h_k`."""
    left, anchors = ghat * scale, None
    if not batch.whole:  # a row's total must be known before its share of the column sums: a product more
        parts = (batch.passes.anchors(tile, columns) for columns, _, tile in batch.column_tiles(left))
        anchors = reduce(Anchors.merge, parts)
    moments: Tensor | None = None
    for columns, hhat, tile in batch.column_tiles(left):
        anchors, operand = batch.passes.softmax(tile, columns, weight, anchors)
        product = batch.product(operand.flatten(0, 1), hhat)
        moments = product if moments is None else moments.add_(product)
    assert anchors is not None
    assert moments is not None
    return anchors, moments.view(2, *ghat.shape)


def _sigmoid_moment(
    batch: ContrastBatch,
    ghat: Tensor,  # [n, d]
    weight: Tensor,  # [n]
    scale: float,
    bias: float,
) -> Tensor:  # [n, d]
    """Over k the sums of `4 s_ik cosine_ik h_k`. No tile is held beyond this call: its memory is wanted at the end."""
    moment = torch.zeros_like(ghat)
    for columns, hhat, tile in batch.column_tiles(ghat):
        moment += batch.product(batch.passes.sigmoid(tile, columns, weight, scale / 2, bias / 2), hhat)
    return moment


class _Sums:
    """The float64 sums: `curvature = H^T diag(columns) H - X - X^T`."""

    def __init__(self, batch: ContrastBatch) -> None:
        width, device = batch.width, batch.device
        self.batch = batch
        self.anchors: list[tuple[Tensor, Tensor]] = []  # targets [n], and what to take off their column sums [n]
        self.cross = torch.zeros(width, width, dtype=torch.float64, device=device)

    def add_cross(self, left: Tensor, right: Tensor) -> None:
        """X += left^T right: a product over the tile's rows, added up in float64."""
        self.cross += (left.T @ right).double()

    def curvature(self, scale: float) -> Tensor:  # [d, d]
        self.batch.release()
        total = -self.cross
        sums = self.batch.passes.column_sums()
        if self.anchors:  # accumulating index_put sorts, where index_add on a GPU adds in an order of chance
            targets, masses = (torch.cat(parts) for parts in zip(*self.anchors, strict=True))
            sums = sums.index_put((targets,), -masses, accumulate=True)
        for columns in self.batch.spans(self.batch.target_count, self.batch.part):
            hhat = self.batch.targets(columns).double()
            total += (hhat * sums[columns, None] / 2).T @ hhat
        return (total + total.T) * (scale / self.batch.smallest_norm) ** 2


def _checked_scale(scale: float) -> float:
    scale = float(scale)
    if not (math.isfinite(scale) and scale > 0):
        raise BayesVLMError(f"scale={scale}; it must be positive: t = exp(logit_scale), not logit_scale itself.")
    return scale


def _check_positives(positives: Tensor | None, rows: int, targets: int) -> None:
    if positives is None:
        return
    positives = torch.as_tensor(positives)
    if positives.shape != (rows,) or positives.is_floating_point():
        raise BayesVLMError(
            f"positives must be {rows} integers, one for each source row, "
            f"got {positives.dtype} of shape {list(positives.shape)}."
        )
    if rows and (int(positives.min()) < 0 or int(positives.max()) >= targets):
        raise BayesVLMError(
            f"positives run from {int(positives.min())} to {int(positives.max())}, "
            f"but there are {targets} targets (0 to {targets - 1})."
        )
