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

  so a saturated softmax (e_i -> 0) keeps its relative accuracy, whether the model is confidently right or wrong.

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
        for ghat, weight in batch.row_tiles():
            anchors = None if batch.single_tile else _online_anchors(batch, ghat, scale)
            mass = ghat.new_zeros(len(ghat))  # sum_{k != a} pi_k / pi_a, and the two sums weighted by it
            mean, slope = torch.zeros_like(ghat), torch.zeros_like(ghat)
            for columns, hhat, logit in batch.column_tiles(ghat * scale):
                anchors = anchors or _Anchors(*logit.max(dim=1))
                logit.sub_(anchors.logit[:, None])
                share = torch.exp(logit, out=batch.second_tile(logit.shape))  # pi_k / pi_a
                _take_out(anchors.target, share, columns)
                mass += share.sum(dim=1)
                total = 1 + (mass if anchors.rest is None else anchors.rest)
                sums.columns[columns] += ((weight / total) @ share).double()
                mean += batch.product(share, hhat)
                slope += batch.product(logit.mul_(share), hhat)
            assert anchors is not None  # there is at least one target
            h_anchor = batch.targets(anchors.target)
            mass, mean, slope = mass / total, mean / total[:, None], slope / (total * scale)[:, None]
            v = mean - mass[:, None] * h_anchor
            u = slope - (v * ghat).sum(dim=1, keepdim=True) * (h_anchor + v)  # C_i ghat_i
            sums.columns.index_add_(0, anchors.target, -(weight * mass).double())
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
        for ghat, weight in batch.row_tiles():
            u = torch.zeros_like(ghat)
            for columns, hhat, cosine in batch.column_tiles(ghat):
                # sigma(a) sigma(-a) = 1 / (4 cosh^2(a/2)): no digit lost at either end; the 1/4 waits for the end
                spread = torch.mul(cosine, scale / 2, out=batch.second_tile(cosine.shape)).add_(bias / 2)
                spread.cosh_().reciprocal_().square_()
                sums.columns[columns] += (weight @ spread).double()
                u += batch.product(cosine.mul_(spread), hhat)
            sums.add_projection(weight, ghat, u)
    curvature = sums.curvature(scale / 2)
    return curvature / len(target) if normalise == "paper" else curvature


class _Anchors(NamedTuple):
    """Each row's most probable target, taken out of its sums (see the module's docstring)."""

    logit: Tensor  # [n]
    target: Tensor  # [n]
    rest: Tensor | None = None  # [n] sum_{k != a} pi_k / pi_a, where it is known beforehand


def _online_anchors(batch: _ContrastBatch, ghat: Tensor, scale: float) -> _Anchors:
    """The anchors when the targets do not fit one tile: a pass of its own, the sum rescaled as the anchor moves."""
    best = ghat.new_full((len(ghat),), -math.inf)
    index = torch.zeros(len(ghat), dtype=torch.long, device=ghat.device)
    rest = torch.zeros_like(best)
    for columns, _, logit in batch.column_tiles(ghat * scale):
        tile_best, where = logit.max(dim=1)
        share = torch.exp(logit.sub_(tile_best[:, None]), out=batch.second_tile(logit.shape))
        share.scatter_(1, where[:, None], 0)
        tile_rest = share.sum(dim=1)
        wins = tile_best > best
        ratio = torch.exp(-(tile_best - best).abs())  # pi of the losing anchor over pi of the winning one
        rest = torch.where(wins, tile_rest + ratio * (1 + rest), rest + ratio * (1 + tile_rest))
        index = torch.where(wins, where + columns.start, index)
        best = torch.maximum(best, tile_best)
    return _Anchors(best, index, rest)


def _take_out(index: Tensor, share: Tensor, columns: slice) -> None:
    """Zero each row's anchor in a tile of shares [n, k], where it lies among the tile's columns."""
    inside = (index >= columns.start) & (index < columns.stop)
    local = (index - columns.start).clamp(0, share.shape[1] - 1)[:, None]
    share.scatter_(1, local, share.gather(1, local).masked_fill(inside[:, None], 0))


class _Sums:
    """The float64 sums: `curvature = H^T diag(columns) H - X - X^T`."""

    def __init__(self, batch: _ContrastBatch) -> None:
        width, device = batch.width, batch.device
        self.batch = batch
        self.columns = torch.zeros(batch.target_count, dtype=torch.float64, device=device)
        self.cross = torch.zeros(width, width, dtype=torch.float64, device=device)

    def add_cross(self, weight: Tensor, left: Tensor, right: Tensor) -> None:
        """X += sum_i w_i left_i right_i^T, in float64."""
        self.cross += (left.double() * weight.double()[:, None]).T @ right.double()

    def add_projection(self, weight: Tensor, ghat: Tensor, u: Tensor) -> None:
        """What M_i = I - ghat ghat^T takes away: X += sum_i w_i ghat_i (u_i - q_i ghat_i / 2)^T, q_i = ghat_i . u_i."""
        q = (ghat * u).sum(dim=1)
        self.add_cross(weight, ghat, u - q[:, None] / 2 * ghat)

    def curvature(self, scale: float) -> Tensor:  # [d, d]
        total = -self.cross
        for columns in self.batch.spans(self.batch.target_count, self.batch.block):
            hhat = self.batch.targets(columns).double()
            total += (hhat * self.columns[columns, None] / 2).T @ hhat
        return (total + total.T) * scale**2


class _ContrastBatch:
    """Unit sources and (shifted) unit targets, in tiles that fit the memory allowed."""

    def __init__(
        self, source: Tensor, target: Tensor, precision: Precision | None, memory: int, *, centred: bool
    ) -> None:
        _check_embeddings(source, "source")
        _check_embeddings(target, "target")
        if source.shape[1] != target.shape[1] or source.device != target.device:
            raise BayesVLMError(
                f"source is {list(source.shape)} on {source.device} and target {list(target.shape)} on "
                f"{target.device}; both must be [rows, d] with the same d, on one device."
            )
        self.precision = _resolve_precision(precision, source, target)
        self.dtype = torch.float64 if self.precision == "float64" else torch.float32
        self.source, self.target = source, target
        self.device, self.width, self.target_count = source.device, int(source.shape[1]), len(target)
        itemsize = 8 if self.dtype == torch.float64 else 4
        # A quarter of the memory for unit targets (and their float64 form while normalising), half for the two
        # [n, k] tiles, the rest for everything of size [n, d].
        self.block = max(1, min(len(target), memory // 4 // (self.width * (itemsize + 16))))
        kept = len(target) * self.width * itemsize <= memory // 4
        self.column_tile = len(target) if kept else self.block
        per_row = 2 * self.column_tile * itemsize + 8 * self.width * 8
        if self.precision == "bf16":
            per_row += 2 * self.column_tile
        self.row_tile = max(1, min(len(source), memory // 2 // per_row))
        self.workspace = torch.empty(2, self.row_tile * self.column_tile, dtype=self.dtype, device=self.device)
        self.shift = self._mean_target() if centred else None
        self.kept = self._unit_targets() if kept else None

    @property
    def single_tile(self) -> bool:
        return self.column_tile == self.target_count

    @staticmethod
    def spans(count: int, size: int) -> Iterator[slice]:
        for start in range(0, count, size):
            yield slice(start, min(start + size, count))

    def row_tiles(self) -> Iterator[tuple[Tensor, Tensor]]:
        """(ghat [n, d], weights 1/|g|^2 [n])."""
        for span in self.spans(len(self.source), self.row_tile):
            ghat, norm = _unit(self.source[span])
            yield ghat.to(self.dtype), norm.pow(-2).to(self.dtype)

    def column_tiles(self, ghat: Tensor) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """(columns, hhat [k, d], ghat hhat^T [n, k]); the last is a reused tile, the caller's to overwrite."""
        for columns in self.spans(self.target_count, self.column_tile):
            hhat = self.targets(columns)
            tile = self._tile(0, (len(ghat), len(hhat)))
            if self.precision == "bf16":
                tile.copy_(self.product(ghat, hhat.T))
            else:
                torch.mm(ghat, hhat.T, out=tile)
            yield columns, hhat, tile

    def second_tile(self, shape: tuple[int, ...]) -> Tensor:
        """The other reused [n, k] tile: allocating afresh would cost as much as the arithmetic."""
        return self._tile(1, shape)

    def _tile(self, which: int, shape: tuple[int, ...]) -> Tensor:
        return self.workspace[which, : shape[0] * shape[1]].view(shape)

    def targets(self, rows: slice | Tensor) -> Tensor:  # [k, d]
        """Unit targets, shifted; from the kept copy where there is one."""
        if self.kept is not None:
            return self.kept[rows]
        hhat, _ = _unit(self.target[rows])
        return (hhat if self.shift is None else hhat - self.shift).to(self.dtype)

    def product(self, left: Tensor, right: Tensor) -> Tensor:
        if self.precision == "bf16":
            return (left.bfloat16() @ right.bfloat16()).to(self.dtype)
        return left @ right

    @contextmanager
    def products(self) -> Iterator[None]:
        """CUDA products in exactly the precision asked for, whatever the caller's global setting is."""
        if self.device.type != "cuda":
            yield
            return
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = self.precision == "tf32"
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    def _mean_target(self) -> Tensor:  # [d]
        total = torch.zeros(self.width, dtype=torch.float64, device=self.device)
        for rows in self.spans(self.target_count, self.block):
            total += _unit(self.target[rows])[0].sum(dim=0)
        return total / self.target_count

    def _unit_targets(self) -> Tensor:  # [K, d]
        kept = torch.empty(self.target_count, self.width, dtype=self.dtype, device=self.device)
        for rows in self.spans(self.target_count, self.block):
            hhat, _ = _unit(self.target[rows])
            kept[rows] = hhat if self.shift is None else hhat - self.shift
        return kept


def _unit(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors [n, d] and norms [n], in float64."""
    rows = rows.double()
    norm = torch.linalg.vector_norm(rows, dim=1)
    return rows / norm[:, None], norm


def _resolve_precision(precision: Precision | None, source: Tensor, target: Tensor) -> Precision:
    if precision is None:
        return "float64" if torch.float64 in (source.dtype, target.dtype) else "float32"
    check_choice("precision", precision, ("float32", "float64", "tf32", "bf16"))
    if precision == "tf32" and source.device.type != "cuda":
        raise BayesVLMError(
            f"precision='tf32' needs a CUDA device, the embeddings are on {source.device}; use 'float32'."
        )
    return precision


def _check_embeddings(rows: Tensor, name: str) -> None:
    if rows.ndim != 2 or not rows.is_floating_point() or rows.numel() == 0:
        raise BayesVLMError(
            f"{name} must be a non-empty floating-point matrix [rows, d], got {rows.dtype} of shape {list(rows.shape)}."
        )
    norm = torch.linalg.vector_norm(rows.double() if rows.dtype == torch.float16 else rows, dim=1)
    bad = torch.nonzero(~(torch.isfinite(norm) & (norm > 0))).flatten().tolist()
    if bad:
        raise BayesVLMError(
            f"{name} rows {bad[:10]}{' and more' if len(bad) > 10 else ''} are zero, NaN or Inf; "
            "an embedding needs a direction to be normalised."
        )


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
