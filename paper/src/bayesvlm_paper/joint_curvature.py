r"""Curvature of a contrastive loss in both projections at once: norms of its blocks, none of which is ever formed.

The posterior takes the image projection P and the text projection Q as independent, so nothing else here looks at the
block between them. P and Q of CLIP-Base have 655,360 parameters and a joint curvature of 1.6 TiB; norms need far less.
A logit `z_ij = t ghat_i . hhat_j` moves with the towers by

    dz_ij = t hhat_j^T M_i dP phi_i + t ghat_i^T N_j dQ psi_j,    M_i = (I - ghat_i ghat_i^T) / |g_i|, N_j likewise,

and every curvature is a mean `H = E_b[J_b^T Lambda_b J_b]` over contrast batches b. The squared Frobenius norm of a
block is a mean over pairs of batches, and each term of it a trace of small matrices:

    |H_PQ|^2 = E_bb' tr(Lambda_b K_P[b, b'] Lambda_b' K_Q[b', b]),    K_P[b, b'] = J_P,b J_P,b'^T.

Terms with b = b' make the norm from a few batches too large: it is that of the curvature of these batches, not of the
expected one. The mean over b != b' alone is an unbiased estimate of the latter, and may come out negative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bayesvlm.core.estimation import Loss
from bayesvlm.core.features import Features
from bayesvlm.vlm import BayesVLM

NEGLIGIBLE = 1e-12
"""Logits whose curvature is this much smaller than the largest of their batch are left out of Gram matrices."""
_TILE = 2**17  # numbers of a Gram matrix at a time: as many as a cache holds


@dataclass(frozen=True)
class Norms:
    """Squared Frobenius norms of the blocks of a curvature, or estimates of them."""

    pp: float
    qq: float
    pq: float

    @property
    def known(self) -> bool:
        """Whether these can be norms: an unbiased estimate may be negative."""
        return self.pp > 0 and self.qq > 0 and self.pq >= 0

    @property
    def ratio(self) -> float:
        """The paper's R = |H_PQ| / (1/2 (|H_PP| + |H_QQ|)); at most `bound`, and so at most 1, for a true curvature."""
        return math.sqrt(self.pq) / (0.5 * (math.sqrt(self.pp) + math.sqrt(self.qq)))

    @property
    def bound(self) -> float:
        """The largest R there can be with these |H_PP| and |H_QQ|: their geometric mean by their arithmetic mean."""
        return math.sqrt(math.sqrt(self.pp) * math.sqrt(self.qq)) / (0.5 * (math.sqrt(self.pp) + math.sqrt(self.qq)))

    @property
    def coupling(self) -> float:
        """|H_PQ| / sqrt(|H_PP| |H_QQ|): R without what the scales of the two towers' activations do to it."""
        return self.ratio / self.bound

    @property
    def kept(self) -> float:
        """The share of the joint curvature's squared norm that is in the blocks of one tower."""
        return (self.pp + self.qq) / (self.pp + self.qq + 2 * self.pq)

    def rescaled(self, p: float, q: float) -> Norms:
        """With |H_PP| p times, |H_QQ| q times and |H_PQ| sqrt(pq) times as large.

        With q = c^2 that is the same model whose text activations are c times as large, its Q smaller by as much.
        """
        return Norms(self.pp * p**2, self.qq * q**2, self.pq * p * q)

    def text_scale(self, ratio: float) -> float:
        """c: how much larger the text activations of the same model must be for R to fall to `ratio`."""
        share = ratio / self.coupling
        return (1 + math.sqrt(1 - share**2)) / share * math.sqrt(math.sqrt(self.pp / self.qq))

    @staticmethod
    def mean(each: Sequence[Norms]) -> Norms:
        """Of the squares."""
        return Norms(*(sum(part) / len(each) for part in zip(*map(astuple, each), strict=True)))


@dataclass(frozen=True)
class Curvature:
    """What two batches contribute to the squared norms, on average.

    Args:
        within: a batch with itself.
        expected: a batch with another one, which is an unbiased estimate of the norms of the expected curvature.
        batches: how many there are, at least two.
    """

    within: Norms
    expected: Norms
    batches: int

    @property
    def these(self) -> Norms:
        """Of the mean curvature of these batches."""
        return Norms.mean([self.within, *[self.expected] * (self.batches - 1)])

    @classmethod
    def of_sums(cls, same: Tensor, everything: Tensor, batches: int) -> Curvature:  # [3], [3]
        """From sums over b = b' and over all (b, b') of the terms of pp, qq, pq."""
        others = (everything - same) / (batches * (batches - 1))
        return cls(Norms(*(same / batches).tolist()), Norms(*others.tolist()), batches)


@dataclass(frozen=True, eq=False)
class PairBatch:
    """Pairs that are contrasted with one another, as the loss sees them.

    Args:
        phi, psi: what enters the projections, [K, p] and [K, q].
        g, h: the embeddings, [K, d].
        scale, bias: of the logits.
    """

    phi: Tensor
    psi: Tensor
    g: Tensor
    h: Tensor
    scale: float
    bias: float
    loss: Loss

    @classmethod
    def of(cls, vlm: BayesVLM, images: Features, texts: Features) -> PairBatch:
        """These pairs, through the projections of a model."""
        phi, psi = vlm.image.inputs(images), vlm.text.inputs(texts)
        g, h = vlm.image.embed(images), vlm.text.embed(texts)
        return cls(phi, psi, g, h, vlm.scale, vlm.logit_bias or 0.0, vlm.loss)

    def __len__(self) -> int:
        return len(self.g)

    def __getitem__(self, rows: Tensor) -> PairBatch:
        return self._each(lambda tensor: tensor[rows])

    def double(self) -> PairBatch:
        """In float64."""
        return self._each(torch.Tensor.double)

    def _each(self, change: Callable[[Tensor], Tensor]) -> PairBatch:
        changed: dict[str, Any] = {name: change(getattr(self, name)) for name in ("phi", "psi", "g", "h")}
        return replace(self, **changed)

    @cached_property
    def ghat(self) -> Tensor:  # [K, d]
        return torch.nn.functional.normalize(self.g, dim=1)

    @cached_property
    def hhat(self) -> Tensor:  # [K, d]
        return torch.nn.functional.normalize(self.h, dim=1)

    @cached_property
    def logits(self) -> Tensor:  # [K, K]
        return self.scale * self.ghat @ self.hhat.T + self.bias

    @cached_property
    def rows(self) -> Tensor:  # [K, K]
        """Each image's distribution over the texts."""
        return self.logits.softmax(dim=1)

    @cached_property
    def columns(self) -> Tensor:  # [K, K]
        """Each text's distribution over the images."""
        return self.logits.softmax(dim=0)

    @cached_property
    def spread(self) -> Tensor:  # [K, K]
        """The variance of the answer whether an image and a text belong together."""
        return self.logits.sigmoid() * (-self.logits).sigmoid()

    def slope(self) -> Tensor:  # [K, K]
        """The derivative of the loss, a mean over pairs, in its logits."""
        match = torch.eye(len(self)).to(self.logits)
        if self.loss == "sigmoid":
            return (self.logits.sigmoid() - match) / len(self)
        return (self.rows + self.columns - 2 * match) / (2 * len(self))

    def curved(self, change: Tensor) -> Tensor:  # [K, K]
        """Lambda times a change of the logits, Lambda the Hessian of the loss in its logits."""
        if self.loss == "sigmoid":
            return self.spread * change / len(self)
        by_row = self.rows * (change - (self.rows * change).sum(dim=1, keepdim=True))
        by_column = self.columns * (change - (self.columns * change).sum(dim=0, keepdim=True))
        return (by_row + by_column) / (2 * len(self))

    def pushed(self, dP: Tensor, dQ: Tensor) -> tuple[Tensor, Tensor]:  # [d, p], [d, q] -> [K, K], [K, K]
        """J_P dP and J_Q dQ: how the logits change with either projection."""
        dg, dh = _tangent(self.phi @ dP.T, self.g, self.ghat), _tangent(self.psi @ dQ.T, self.h, self.hhat)
        return self.scale * dg @ self.hhat.T, self.scale * self.ghat @ dh.T

    def pulled(self, y: Tensor) -> tuple[Tensor, Tensor]:  # [K, K] -> [d, p], [d, q]
        """J_P^T y and J_Q^T y: with y the slope, the gradients of the loss."""
        dg, dh = self.scale * y @ self.hhat, self.scale * y.T @ self.ghat
        return _tangent(dg, self.g, self.ghat).T @ self.phi, _tangent(dh, self.h, self.hhat).T @ self.psi


def batches_of(pairs: PairBatch, size: int, count: int, seed: int) -> list[PairBatch]:
    """`count` batches of `size` pairs, no pair twice."""
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(seed))[: size * count]
    return [pairs[rows.to(pairs.g.device)] for rows in torch.split(order, size)]


# The empirical Fisher: the outer product of a batch's gradient -------------------------------------------------------


def gradients(batches: Sequence[PairBatch]) -> tuple[Tensor, Tensor]:  # [nb, |P|], [nb, |Q|]
    """The gradients of every batch's loss."""
    found = []
    for kept in batches:
        batch = replace(kept)  # whose logits go with it: a large batch has many
        found.append([gradient.flatten() for gradient in batch.pulled(batch.slope())])
    P, Q = zip(*found, strict=True)
    return torch.stack(P), torch.stack(Q)


def fisher(P: Tensor, Q: Tensor) -> Curvature:  # [nb, |P|], [nb, |Q|]
    """H = E_b[g_b g_b^T] exactly: the norms are those of nb x nb Gram matrices."""
    gram_p, gram_q = (P @ P.T).double(), (Q @ Q.T).double()
    terms = torch.stack([gram_p.square(), gram_q.square(), gram_p * gram_q])  # [3, nb, nb]
    same = terms.diagonal(dim1=1, dim2=2).sum(dim=1)
    return Curvature.of_sums(same, terms.sum(dim=(1, 2)), len(P))


def sampled_fisher(P: Tensor, Q: Tensor, entries: int, seed: int, diagonal: bool = False) -> Norms:
    """Mean squares of randomly chosen entries of every block of E_b[g_b g_b^T], as the paper has them.

    Times the sizes of the blocks, `.rescaled(|P|, |Q|)`, they estimate squared norms.

    Args:
        diagonal: of H_PP and H_QQ take entries of the diagonal only: squares of single components of a gradient.
    """
    generator = torch.Generator().manual_seed(seed)

    def drawn(gradient: Tensor) -> Tensor:  # [nb, entries]
        return gradient[:, torch.randint(gradient.shape[1], (entries,), generator=generator).to(gradient.device)]

    def mean_square(left: Tensor, right: Tensor) -> float:
        return float((left * right).mean(dim=0).double().square().mean())

    p, q = drawn(P), drawn(Q)
    pq = mean_square(drawn(P), drawn(Q))
    return Norms(mean_square(p, p if diagonal else drawn(P)), mean_square(q, q if diagonal else drawn(Q)), pq)


# The generalised Gauss-Newton curvature ------------------------------------------------------------------------------


def gauss_newton(batches: Sequence[PairBatch]) -> Curvature:
    """H = E_b[J_b^T Lambda_b J_b] exactly, by Gram matrices of the logits: K^4 numbers for every pair of batches."""
    logits = [_Logits.of(batch) for batch in batches]
    same, others = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for b, left in enumerate(logits):
        same += _terms(left, left)
        for right in logits[:b]:
            others += _terms(left, right)
    return Curvature.of_sums(same, same + 2 * others, len(batches))


@dataclass(frozen=True, eq=False)
class _Logits:
    """The S logits of a batch that have curvature, in float64: Lambda = diag(weight) - take take^T.

    Args:
        image, text: i and j of each, [S].
        a, b: J_P is a (x) phi_i and J_Q is b (x) psi_j, [S, d].
        weight: [S].
        take: what either softmax takes off, for each image and each text, [S, 2K]; [S, 0] for the sigmoid loss.
    """

    batch: PairBatch
    image: Tensor
    text: Tensor
    a: Tensor
    b: Tensor
    weight: Tensor
    take: Tensor

    @classmethod
    def of(cls, batch: PairBatch) -> _Logits:
        batch = batch.double()
        size = len(batch)
        p, q = (batch.rows, batch.columns) if batch.loss == "infonce" else (batch.spread, batch.spread)
        weight = (p + q) / (2 * size)
        image, text = torch.nonzero(weight > NEGLIGIBLE * weight.max(), as_tuple=True)
        take = p.new_zeros(len(image), 2 * size if batch.loss == "infonce" else 0)
        if batch.loss == "infonce":
            logit = torch.arange(len(image), device=p.device)
            take[logit, image] = p[image, text] / (2 * size) ** 0.5
            take[logit, size + text] = q[image, text] / (2 * size) ** 0.5
        cosine = (batch.ghat[image] * batch.hhat[text]).sum(dim=1, keepdim=True)
        a = (batch.hhat[text] - cosine * batch.ghat[image]) * batch.scale / batch.g.norm(dim=1)[image, None]
        b = (batch.ghat[image] - cosine * batch.hhat[text]) * batch.scale / batch.h.norm(dim=1)[text, None]
        return cls(batch, image, text, a, b, weight[image, text], take)


def _terms(left: _Logits, right: _Logits) -> Tensor:  # [3]
    r"""tr(Lambda X Lambda' Y^T) for (X, Y) = (K_P, K_P), (K_Q, K_Q), (K_P, K_Q), some rows of either at a time.

    With Lambda = diag(w) - U U^T that is, in inner products,

        <w X w', Y> - <U^T X w', U^T Y> - <w X U', Y U'> + <U^T X U', U^T Y U'>.
    """
    products = left.batch.phi @ right.batch.phi.T, left.batch.psi @ right.batch.psi.T
    count, others = len(left.weight), len(right.weight)
    once = left.a.new_zeros(3)
    before = [left.a.new_zeros(left.take.shape[1], others) for _ in "PQ"]  # U^T X
    after = [left.a.new_empty(count, right.take.shape[1]) for _ in "PQ"]  # X U'
    for rows in torch.split(torch.arange(count, device=left.a.device), max(1, _TILE // others)):
        P = (left.a[rows] @ right.a.T).mul_(products[0][left.image[rows]][:, right.image])
        Q = (left.b[rows] @ right.b.T).mul_(products[1][left.text[rows]][:, right.text])
        for k, (X, Y) in enumerate(((P, P), (Q, Q), (P, Q))):
            once[k] += left.weight[rows] @ ((X * Y) @ right.weight)
        for k, X in enumerate((P, Q)):
            before[k].addmm_(left.take[rows].T, X)
            after[k][rows] = X @ right.take
    both = [each @ right.take for each in before]
    found = []
    for k, (x, y) in enumerate(((0, 0), (1, 1), (0, 1))):
        taken = (before[x] * before[y] @ right.weight).sum() + (left.weight @ (after[x] * after[y])).sum()
        found.append(once[k] - taken + (both[x] * both[y]).sum())
    return torch.stack(found).cpu()


def probed_gauss_newton(batches: Sequence[PairBatch], seed: int, probes: int) -> Curvature:
    """The same estimated by random vectors v, |H|^2 = E|H v|^2: for batches too large for Gram matrices."""
    generator = torch.Generator().manual_seed(seed)
    same, everything = torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    first = batches[0]
    shapes = [(first.g.shape[1], entering.shape[1]) for entering in (first.phi, first.psi)]
    for _ in range(probes):
        dP, dQ = (torch.randn(shape, generator=generator).to(first.g) for shape in shapes)
        total = [torch.zeros_like(each) for each in (dP, dQ, dP, dQ)]
        for batch in batches:
            by_p, by_q = batch.pushed(dP, dQ)
            (pp, qp), (pq, qq) = batch.pulled(batch.curved(by_p)), batch.pulled(batch.curved(by_q))
            same += _squares(pp, qq, pq, qp)
            for summed, one in zip(total, (pp, qq, pq, qp), strict=True):
                summed += one
        everything += _squares(*total)
    return Curvature.of_sums(same / probes, everything / probes, len(batches))


def _squares(*products: Tensor) -> Tensor:  # [3]
    pp, qq, pq, qp = (float(each.double().square().sum()) for each in products)
    return torch.tensor([pp, qq, (pq + qp) / 2], dtype=torch.float64)


def _tangent(change: Tensor, g: Tensor, ghat: Tensor) -> Tensor:  # [K, d]
    """M_i times each row."""
    tangent: Tensor = (change - (change * ghat).sum(dim=1, keepdim=True) * ghat) / g.norm(dim=1, keepdim=True)
    return tangent
