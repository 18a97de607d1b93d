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

  so a softmax that saturates on one target (e_i -> 0) keeps its relative accuracy, whether that target is the match
  or not. (On several equal targets it does in float64; in float32 its terms cancel to about 1e-8 of t^2, which is
  nothing beside any row that is not saturated.)

Sigmoid. `Lambda_i = t^2/K sum_j sigma(a_ij) sigma(-a_ij) hhat_j hhat_j^T`, even in the label's sign: two products.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError, check_choice

Precision = Literal["float32", "float64", "tf32", "bf16"]
DEFAULT_MEMORY = 512 * 2**20  # bytes of working memory beyond inputs and result


class _Tf32Setting(NamedTuple):
    name: str
    on: object
    off: object


# torch 2.9 renamed the switch and refuses to have both names used in one process
_TF32_SETTING = (
    _Tf32Setting("fp32_precision", "tf32", "ieee")
    if hasattr(torch.backends.cuda.matmul, "fp32_precision")
    else _Tf32Setting("allow_tf32", True, False)
)


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
    batch = _ContrastBatch(source, target, precision, memory, centred=True)
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
    batch = _ContrastBatch(source, target, precision, memory, centred=False)
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
    log_total: Tensor | None = None  # [n] log sum_k exp(logit_k), where it takes several tiles


def _rest_moments(
    batch: _ContrastBatch,
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
        known = None if batch.single_tile else _online_anchors(batch, ghat[rows], scale)
        for columns, hhat, tiles in batch.column_tiles(ghat[rows] * scale):
            logit, pi = tiles
            anchor = known or _Anchors(*logit.max(dim=1))
            if anchor.log_total is None:
                torch.softmax(logit, dim=1, out=pi)
            else:
                torch.sub(logit, anchor.log_total[:, None], out=pi).exp_()
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


def _online_anchors(batch: _ContrastBatch, ghat: Tensor, scale: float) -> _Anchors:
    """The anchors when the targets do not fit one tile: a pass of its own, the sum rescaled as the anchor moves."""
    best = ghat.new_full((len(ghat),), -math.inf)
    target = torch.zeros(len(ghat), dtype=torch.long, device=ghat.device)
    total = torch.zeros_like(best)
    for columns, _, (logit, share) in batch.column_tiles(ghat * scale):
        tile_best, where = logit.max(dim=1)
        tile_total = torch.sub(logit, tile_best[:, None], out=share).exp_().sum(dim=1)
        target = torch.where(tile_best > best, where + columns.start, target)
        new_best = torch.maximum(best, tile_best)
        total = total * torch.exp(best - new_best) + tile_total * torch.exp(tile_best - new_best)
        best = new_best
    return _Anchors(best, target, best + total.log())


def _take_out(anchor: Tensor, pi: Tensor, columns: slice) -> None:
    """Zero each row's anchor in a tile of probabilities [n, k], where it lies among the tile's columns."""
    inside = (anchor >= columns.start) & (anchor < columns.stop)
    local = (anchor - columns.start).clamp(0, pi.shape[1] - 1)[:, None]
    pi.scatter_(1, local, pi.gather(1, local).masked_fill(inside[:, None], 0))


class _Sums:
    """The float64 sums: `curvature = H^T diag(columns) H - X - X^T`."""

    def __init__(self, batch: _ContrastBatch) -> None:
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


class _ContrastBatch:
    """Unit sources and (shifted) unit targets, in tiles that fit the memory allowed."""

    def __init__(
        self, source: Tensor, target: Tensor, precision: Precision | None, memory: int, *, centred: bool
    ) -> None:
        self.source, self.target = source, target
        self.source_norm, self.target_norm = _norms(source, "source"), _norms(target, "target")
        if source.shape[1] != target.shape[1] or source.device != target.device:
            raise BayesVLMError(
                f"source is {list(source.shape)} on {source.device} and target {list(target.shape)} on "
                f"{target.device}; both must be [rows, d] with the same d, on one device."
            )
        self.precision = _resolve_precision(precision, source, target)
        self.dtype = torch.float64 if self.precision == "float64" else torch.float32
        self.device, self.width, self.target_count = source.device, int(source.shape[1]), len(target)
        self.smallest_norm = float(self.source_norm.min())
        itemsize = 8 if self.dtype == torch.float64 else 4
        # Of the memory: at most a quarter for the unit targets, a quarter for everything of size [block of rows, d]
        # (about twelve arrays), what is left for the two [n, k] tiles.
        quarter = memory // 4
        block = max(1, quarter // (self.width * 12 * itemsize))
        size = len(target) * self.width * itemsize
        kept = size <= quarter
        self.column_tile = len(target) if kept else min(len(target), block)
        left = 3 * quarter - (size if kept else quarter)
        per_row = 2 * self.column_tile * (itemsize + (2 if self.precision == "bf16" else 0))
        self.row_tile = max(1, min(len(source), block, left // per_row))
        self.block = block // self.row_tile * self.row_tile  # whole tiles
        self.kept: Tensor | None = None
        self.shift: Tensor | None = None
        if kept:
            self.kept = self.targets(slice(None))
        if centred:
            self.shift = self._mean_target()
            if self.kept is not None:
                self.kept.sub_(self.shift)
        self.workspace = torch.empty(2 * self.row_tile * self.column_tile, dtype=self.dtype, device=self.device)

    @property
    def single_tile(self) -> bool:
        return self.column_tile == self.target_count

    @staticmethod
    def spans(count: int, size: int) -> Iterator[slice]:
        for start in range(0, count, size):
            yield slice(start, min(start + size, count))

    def row_blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(ghat [n, d], weights 1/|g|^2 [n]); the weights in units of the largest, which `_Sums` puts back."""
        for span in self.spans(len(self.source), self.block):
            norm = self.source_norm[span]
            yield self._unit(self.source[span], norm), (self.smallest_norm / norm).square().to(self.dtype)

    def row_tiles(self, count: int) -> Iterator[slice]:
        """The rows of a block, a tile at a time."""
        return self.spans(count, self.row_tile)

    def column_tiles(self, ghat: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """(columns, hhat [k, d], tiles [2, n, k]); the first tile is ghat hhat^T, both are the caller's to overwrite.

        The tiles are reused: allocating afresh would cost as much as the arithmetic.
        """
        for columns in self.spans(self.target_count, self.column_tile):
            hhat = self.targets(columns)
            tiles = self.workspace[: 2 * len(ghat) * len(hhat)].view(2, len(ghat), len(hhat))
            if self.precision == "bf16":
                tiles[0] = self.product(ghat, hhat.T)
            else:
                torch.mm(ghat, hhat.T, out=tiles[0])
            yield columns, hhat, tiles

    def targets(self, rows: slice | Tensor) -> Tensor:  # [k, d]
        """Unit targets, shifted; from the kept copy where there is one."""
        if self.kept is not None:
            return self.kept[rows]
        hhat = self._unit(self.target[rows], self.target_norm[rows])
        return hhat if self.shift is None else hhat.sub_(self.shift)

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        if self.precision != "bf16":
            return left @ right
        if self.device.type == "cuda":  # bfloat16 in, float32 out
            return torch.mm(left.bfloat16(), right.bfloat16(), out_dtype=torch.float32)
        return (left.bfloat16() @ right.bfloat16()).to(self.dtype)

    @contextmanager
    def products(self) -> Iterator[None]:
        """CUDA products in exactly the precision asked for, whatever the caller's global setting is."""
        if self.device.type != "cuda":
            yield
            return
        setting, matmul = _TF32_SETTING, torch.backends.cuda.matmul
        before = getattr(matmul, setting.name)
        setattr(matmul, setting.name, setting.on if self.precision == "tf32" else setting.off)
        try:
            yield
        finally:
            setattr(matmul, setting.name, before)

    def _mean_target(self) -> Tensor:  # [d]
        if self.kept is not None:
            return self.kept.mean(dim=0)
        total = torch.zeros(self.width, dtype=self.dtype, device=self.device)
        for rows in self.spans(self.target_count, self.block):
            total += self.targets(rows).sum(dim=0)
        return total / self.target_count

    def _unit(self, rows: Tensor, norm: Tensor) -> Tensor:  # [n, d], [n] -> [n, d]
        """Unit vectors: divided in float64 (half-precision and extreme norms are safe), kept in the products' dtype."""
        return torch.div(rows, norm[:, None], out=torch.empty(rows.shape, dtype=self.dtype, device=self.device))


def _resolve_precision(precision: Precision | None, source: Tensor, target: Tensor) -> Precision:
    if precision is None:
        return "float64" if torch.float64 in (source.dtype, target.dtype) else "float32"
    check_choice("precision", precision, ("float32", "float64", "tf32", "bf16"))
    if precision == "tf32" and source.device.type != "cuda":
        raise BayesVLMError(
            f"precision='tf32' needs a CUDA device, the embeddings are on {source.device}; use 'float32'."
        )
    return precision


def _norms(rows: Tensor, name: str) -> Tensor:  # [n, d] -> [n]
    """Norms in float64 of what must be embeddings with a direction."""
    if rows.ndim != 2 or not rows.is_floating_point() or rows.numel() == 0:
        raise BayesVLMError(
            f"{name} must be a non-empty floating-point matrix [rows, d], got {rows.dtype} of shape {list(rows.shape)}."
        )
    # on a CPU half precision is widened before it is summed: a part at a time, then
    parts = [rows] if rows.is_cuda else torch.split(rows, max(1, 2**22 // rows.shape[1]))
    norm = torch.cat([torch.linalg.vector_norm(part, dim=1, dtype=torch.float64) for part in parts])
    usable = torch.isfinite(norm) & (norm > 0)
    if not bool(usable.all()):
        bad = torch.nonzero(~usable).flatten().tolist()
        raise BayesVLMError(
            f"{name} rows {bad[:10]}{' and more' if len(bad) > 10 else ''} are zero, NaN or Inf; "
            "an embedding needs a direction to be normalised."
        )
    return norm


def _checked_scale(scale: float) -> float:
    scale = float(scale)
    if not (math.isfinite(scale) and scale > 0):
        raise BayesVLMError(f"scale={scale}; it must be positive: t = exp(logit_scale), not logit_scale itself.")
    return scale


def _check_positives(positives: Tensor | None, rows: int, targets: int) -> None:
    if positives is None:
        return
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
