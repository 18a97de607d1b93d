r"""The element-wise passes over a tile of logits, between the products: the plain form, and the choice of the form.

Probabilities are kept relative to each row's anchor, `share_k = m_k exp(logit_k) / (m_a exp(logit_a))`, so that no pass
is spent on normalising: sums over k are divided by `total = 1 + rest`, a number per row, when they are small.
"""

from __future__ import annotations

import importlib.util
import logging
from functools import cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

_LOG = logging.getLogger(__name__)


def round_to_tf32(values: Tensor) -> Tensor:
    """float32 numbers rounded to nearest at ten bits of mantissa."""
    return (values.view(torch.int32) + (1 << 12)).bitwise_and_(-(1 << 13)).view(torch.float32)


def projected(ghat: Tensor, u: Tensor) -> Tensor:  # [n, d], [n, d] -> [n, d]
    """`u - q/2 ghat`, q = ghat . u: what M_i = I - ghat ghat^T takes away is w_i ghat_i times this, and its mirror."""
    return u - (ghat * u).sum(dim=1, keepdim=True) / 2 * ghat


class Tile(NamedTuple):
    """Logits of some rows and columns, and the memory of what is multiplied next; the one may lie in the other."""

    logit: Tensor  # [n, k]
    operand: Tensor  # [2, n, k]


class Anchors(NamedTuple):
    """Each row's most probable target, which is taken out of its sums, and what the row is without it."""

    logit: Tensor  # [n]
    target: Tensor  # [n]
    copies: Tensor  # [n] log m_a: how many equal targets the anchor stands for
    rest: Tensor  # [n] sum over k != a of share_k

    @property
    def mass(self) -> Tensor:  # [n]
        """e_i, the probability of everything else."""
        return self.rest / (1 + self.rest)

    def merge(self, other: Anchors) -> Anchors:
        """Of the same rows over other columns as well."""
        gap = (self.logit - other.logit) + (self.copies - other.copies)
        ahead = gap >= 0
        lesser = (-gap.abs()).exp()  # the lesser anchor's share in the greater
        return Anchors(
            torch.where(ahead, self.logit, other.logit),
            torch.where(ahead, self.target, other.target),
            torch.where(ahead, self.copies, other.copies),
            torch.where(ahead, self.rest + (1 + other.rest) * lesser, other.rest + (1 + self.rest) * lesser),
        )


class Passes(Protocol):
    """Element-wise passes over tiles of one contrast batch, which also add up its column sums."""

    operand: torch.dtype  # of what is multiplied next
    entry_bytes: int  # that an entry of a tile takes

    def anchors(self, tile: Tile, columns: slice) -> Anchors:
        """Of the tile's rows over its columns. The tile's contents are lost."""

    def softmax(self, tile: Tile, columns: slice, weight: Tensor, anchors: Anchors | None) -> tuple[Anchors, Tensor]:
        """The operand [2, n, k] of the moments, without the anchors: `share * (logit - logit_a)` and `share`.

        Adds `sum_i w_i pi_ik` to the column sums. Anchors are None where the tile holds all columns.
        """

    def crossed(
        self, ghat: Tensor, h_anchor: Tensor, anchors: Anchors, weight: Tensor, moments: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        r"""What is taken off the column sums' part: two operands [2n, d] of one product `left^T right`, rounded for it.

        The moments [2, n, d] are those of `softmax`'s operand; over the total they are `drift` and `mean`. Then
        v = mean - e h_a, C_i ghat_i = u = drift/t - (v . ghat) (h_a + v), q = ghat . u, and the sum is
        `sum_i w_i v (h_a + v/2)^T + sum_i w_i ghat (u - q/2 ghat)^T`.
        """

    def sigmoid(self, tile: Tile, columns: slice, weight: Tensor, slope: float, offset: float) -> Tensor:
        """The operand [n, k] of the moment of the sigmoid loss: `cosine * s`, s = 1 / cosh^2(slope cosine + offset).

        Adds `sum_i w_i s_ik` to the column sums.
        """

    def column_sums(self) -> Tensor:
        """[K] in float64."""


def passes_for(
    columns: int,
    dtype: torch.dtype,
    device: torch.device,
    precision: str,
    log_copies: Tensor | None,
    halves: bool = False,
) -> Passes:
    """Fused in kernels of Triton where that can be (a GPU, float32 arithmetic), the plain form elsewhere.

    Args:
        columns, dtype, device, precision, log_copies: of the contrast batch.
        halves: what is multiplied stays within the range of half precision, which then may carry tf32's ten bits.
    """
    if device.type == "cuda" and dtype == torch.float32 and _fusable(device):
        from bayesvlm.core.kernels import FusedPasses

        return FusedPasses(columns, device, precision, log_copies, halves)
    return PlainPasses(columns, dtype, device, precision, log_copies)


@cache
def _fusable(device: torch.device) -> bool:
    """Whether kernels can be had on this device; said once if not."""
    if importlib.util.find_spec("triton") is None:
        _LOG.info("Triton is not installed: the curvature's passes run unfused on %s.", device)
        return False
    try:  # Triton compiles for the device, and its launcher with the machine's C compiler
        from bayesvlm.core.kernels import FusedPasses

        tile = torch.zeros(2, 1, 16, device=device)
        everything, weight = slice(0, 16), torch.ones(1, device=device)
        FusedPasses(16, device, "float32", None).softmax(Tile(tile[0], tile), everything, weight, None)
        torch.cuda.synchronize(device)
    except Exception as error:  # whatever a compiler may raise, the plain form needs none
        _LOG.warning("Triton cannot be used on %s (%s): the curvature's passes run unfused.", device, error)
        return False
    return True


class PlainPasses:
    """Passes written in torch: the reference, and what runs where there is no GPU or no Triton."""

    def __init__(
        self,
        columns: int,
        dtype: torch.dtype,
        device: torch.device,
        precision: str,
        log_copies: Tensor | None,
        halves: bool = False,  # not used: operands stay as wide as the arithmetic
    ) -> None:
        self.operand = dtype
        self.precision = precision
        self.entry_bytes = 2 * dtype.itemsize + (4 if precision == "bf16" else 0)  # converted for the product
        self.log_copies = log_copies
        self._sums = torch.zeros(columns, dtype=torch.float64, device=device)

    def anchors(self, tile: Tile, columns: slice) -> Anchors:
        logit, share = tile.operand
        copies = None if self.log_copies is None else self.log_copies[columns]
        best, local = (logit if copies is None else torch.add(logit, copies, out=share)).max(dim=1)
        known = Anchors(best, local + columns.start, torch.zeros_like(best), best)
        if copies is not None:
            known = known._replace(logit=logit.gather(1, local[:, None])[:, 0], copies=copies[local])
        self._shares(tile, columns, known)
        return known._replace(rest=share.sum(dim=1))

    def softmax(self, tile: Tile, columns: slice, weight: Tensor, anchors: Anchors | None) -> tuple[Anchors, Tensor]:
        if anchors is None:
            anchors = self.anchors(tile, columns)
        else:
            self._shares(tile, columns, anchors)
        logit, share = tile.operand
        self._sums[columns] += ((weight / (1 + anchors.rest)) @ share).double()
        logit.mul_(share)
        return anchors, tile.operand

    def crossed(
        self, ghat: Tensor, h_anchor: Tensor, anchors: Anchors, weight: Tensor, moments: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        drift, mean = moments / (1 + anchors.rest)[:, None]
        v = mean - anchors.mass[:, None] * h_anchor
        u = drift / scale - (v * ghat).sum(dim=1, keepdim=True) * (h_anchor + v)
        left, right = torch.cat([v, ghat]), torch.cat([h_anchor + v / 2, projected(ghat, u)])
        left *= weight.repeat(2)[:, None]
        return (round_to_tf32(left), round_to_tf32(right)) if self.precision == "tf32" else (left, right)

    def sigmoid(self, tile: Tile, columns: slice, weight: Tensor, slope: float, offset: float) -> Tensor:
        cosine, spread = tile.operand[0], tile.operand[1]
        # sigma(a) sigma(-a) = 1 / (4 cosh^2(a/2)): no digit lost at either end; the 1/4 waits for the end
        torch.mul(cosine, slope, out=spread).add_(offset).cosh_().reciprocal_().square_()
        self._sums[columns] += (weight @ spread).double()
        return cosine.mul_(spread)

    def column_sums(self) -> Tensor:
        return self._sums

    def _shares(self, tile: Tile, columns: slice, anchors: Anchors) -> None:
        """Logits become differences from the anchor's, the other half of the tile shares, zero at the anchors."""
        logit, share = tile.operand
        logit.sub_(anchors.logit[:, None])
        if self.log_copies is None:
            torch.exp(logit, out=share)
        else:
            torch.add(logit, self.log_copies[columns], out=share).sub_(anchors.copies[:, None]).exp_()
        local = anchors.target - columns.start
        inside = (local >= 0) & (local < share.shape[1])
        local = local.clamp(0, share.shape[1] - 1)[:, None]
        share.scatter_(1, local, share.gather(1, local).masked_fill(inside[:, None], 0))
