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
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bayesvlm.core.contrast import DEFAULT_MEMORY, ContrastBatch, Precision
from bayesvlm.core.errors import BayesVLMError, check_choice


@torch.no_grad()
def infonce_curvature(
    source: Tensor,  # [N, d]
    target: Tensor,  # [K, d]
    scale: float,
    positives: Tensor | None = None,  # [N]
    *,
    precision: Precision | None = None,
    memory: int = DEFAULT_MEMORY,
) -> Tensor:  # [d, d]
    r"""`sum_i t^2 M_i C_i M_i` of the InfoNCE loss over rows i of `source`, contrasted with all K of `target`.

    Args:
        source: raw (not normalised) embeddings of the tower whose curvature is wanted.
        target: raw embeddings of the other tower: the contrast batch.
        scale: t = exp(logit_scale).
        positives: index of each row's match in `target`; None means row i matches target i when N == K, and that
            no match is present otherwise. The Gauss-Newton curvature of a softmax does not depend on the label, so
            this is checked (a miscounted batch is a bug worth finding) and cannot change the result.
        precision: of the products; None takes float64 for float64 inputs and float32 otherwise. "tf32" needs CUDA.
            Sums over rows are kept in float64 whatever this is.
        memory: bytes of working memory, whatever N and K are.

    Returns:
        [d, d] float64, symmetric, the sum over rows, scale^2 included.
    """
    scale = _checked_scale(scale)
    batch = ContrastBatch(source, target, precision, memory, merged=True)
    _check_positives(positives, len(source), len(target))
    sums = _Sums(batch)
    with batch.products():
        for ghat, weight in batch.row_blocks():
            anchor, mass, mean, slope = _rest_moments(batch, ghat, weight, scale, sums.columns)
            h_anchor = batch.targets(anchor.target)
            v = mean - mass[:, None] * h_anchor
            drift = slope - anchor.logit[:, None] * mean  # sum_{k != a} pi_k (logit_k - logit_a) h_k
            u = drift / scale - (v * ghat).sum(dim=1, keepdim=True) * (h_anchor + v)  # C_i ghat_i
            sums.columns.index_add_(0, anchor.target, -(weight * mass).double())
            sums.add_cross(weight, v, h_anchor + v / 2)
            sums.add_projection(weight, ghat, u)
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
    memory: int = DEFAULT_MEMORY,
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
        for ghat, weight in batch.row_blocks():
            u = torch.zeros_like(ghat)
            for rows in batch.row_tiles(len(ghat)):
                for columns, hhat, (cosine, spread) in batch.column_tiles(ghat[rows]):
                    # sigma(a) sigma(-a) = 1 / (4 cosh^2(a/2)): no digit lost at either end; the 1/4 waits for the end
                    torch.mul(cosine, scale / 2, out=spread).add_(bias / 2).cosh_().reciprocal_().square_()
                    sums.columns[columns] += (weight[rows] @ spread).double()
                    u[rows] += batch.product(cosine.mul_(spread), hhat)
            sums.add_projection(weight, ghat, u)
    curvature = sums.curvature(scale / 2)
    return curvature / len(target) if normalise == "paper" else curvature


class _Anchors(NamedTuple):
    """Each row's most probable target, taken out of its sums (see the module's docstring)."""

    logit: Tensor  # [n]
    target: Tensor  # [n]
    log_total: Tensor | None = None  # [n] log sum_k m_k exp(logit_k), where it is known beforehand


def _rest_moments(
    batch: ContrastBatch,
    ghat: Tensor,  # [n, d]
    weight: Tensor,  # [n]
    scale: float,
    column_sums: Tensor,  # [K]
) -> tuple[_Anchors, Tensor, Tensor, Tensor]:  # [n], [n, d], [n, d]
    """Moments of the softmax without its anchors: mass e_i, sum pi_k h_k and sum pi_k logit_k h_k over k != a.

    Adds `sum_i w_i pi_ik` (again without the anchors) to `column_sums`.
    """
    anchors, mass = [], ghat.new_zeros(len(ghat))
    moments = ghat.new_zeros(2, *ghat.shape)  # of pi * logit, of pi
    for rows in batch.row_tiles(len(ghat)):
        known = None if batch.single_tile and batch.log_copies is None else _online_anchors(batch, ghat[rows], scale)
        for columns, hhat, tiles in batch.column_tiles(ghat[rows] * scale):
            logit, pi = tiles
            anchor = known or _Anchors(*logit.max(dim=1))
            if anchor.log_total is None:
                torch.softmax(logit, dim=1, out=pi)
            else:
                torch.sub(logit, anchor.log_total[:, None], out=pi)
                _count_copies(pi, batch, columns).exp_()
            if batch.single_tile:
                pi.scatter_(1, anchor.target[:, None], 0)
            else:
                _take_out(anchor.target, pi, columns)
            mass[rows] += pi.sum(dim=1)
            column_sums[columns] += (weight[rows] @ pi).double()
            logit.mul_(pi)
            moments[:, rows] += batch.product(tiles.flatten(0, 1), hhat).view(2, len(pi), -1)
        anchors.append(anchor)
    merged = _Anchors(torch.cat([a.logit for a in anchors]), torch.cat([a.target for a in anchors]))
    return merged, mass, moments[1], moments[0]


def _online_anchors(batch: ContrastBatch, ghat: Tensor, scale: float) -> _Anchors:
    """The anchors when targets have copies or do not fit one tile: a pass of its own, rescaled as the anchor moves."""
    best = ghat.new_full((len(ghat),), -math.inf)
    target = torch.zeros(len(ghat), dtype=torch.long, device=ghat.device)
    total, anchor_logit = torch.zeros_like(best), torch.zeros_like(best)
    for columns, _, (logit, share) in batch.column_tiles(ghat * scale):
        tile_best, where = _count_copies(share.copy_(logit), batch, columns).max(dim=1)
        tile_total = share.sub_(tile_best[:, None]).exp_().sum(dim=1)
        wins = tile_best > best
        target = torch.where(wins, where + columns.start, target)
        anchor_logit = torch.where(wins, logit.gather(1, where[:, None])[:, 0], anchor_logit)
        new_best = torch.maximum(best, tile_best)
        total = total * torch.exp(best - new_best) + tile_total * torch.exp(tile_best - new_best)
        best = new_best
    return _Anchors(anchor_logit, target, best + total.log())


def _count_copies(logit: Tensor, batch: ContrastBatch, columns: slice) -> Tensor:
    """Add log m_k to logits [n, k], in place: a target with m_k copies is m_k times as probable."""
    return logit if batch.log_copies is None else logit.add_(batch.log_copies[columns])


def _take_out(anchor: Tensor, pi: Tensor, columns: slice) -> None:
    """Zero each row's anchor in a tile of probabilities [n, k], where it lies among the tile's columns."""
    inside = (anchor >= columns.start) & (anchor < columns.stop)
    local = (anchor - columns.start).clamp(0, pi.shape[1] - 1)[:, None]
    pi.scatter_(1, local, pi.gather(1, local).masked_fill(inside[:, None], 0))


class _Sums:
    """The float64 sums: `curvature = H^T diag(columns) H - X - X^T`."""

    def __init__(self, batch: ContrastBatch) -> None:
        width, device = batch.width, batch.device
        self.batch = batch
        self.columns = torch.zeros(batch.target_count, dtype=torch.float64, device=device)
        self.cross = torch.zeros(width, width, dtype=torch.float64, device=device)

    def add_cross(self, weight: Tensor, left: Tensor, right: Tensor) -> None:
        """X += sum_i w_i left_i right_i^T: a product over the block, added up in float64."""
        self.cross += ((left * weight[:, None]).T @ right).double()

    def add_projection(self, weight: Tensor, ghat: Tensor, u: Tensor) -> None:
        """What M_i = I - ghat ghat^T takes away: X += sum_i w_i ghat_i (u_i - q_i ghat_i / 2)^T, q_i = ghat_i . u_i."""
        q = (ghat * u).sum(dim=1)
        self.add_cross(weight, ghat, u - q[:, None] / 2 * ghat)

    def curvature(self, scale: float) -> Tensor:  # [d, d]
        total = -self.cross
        for columns in self.batch.spans(self.batch.target_count, self.batch.block):
            hhat = self.batch.targets(columns).double()
            total += (hhat * self.columns[columns, None] / 2).T @ hhat
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
