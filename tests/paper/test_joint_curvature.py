"""Norms of the joint curvature, against blocks formed densely by autograd."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from bayesvlm.core.estimation import Loss
from bayesvlm.core.features import Features
from bayesvlm.core.projection import Projection
from bayesvlm.vlm import BayesVLM
from bayesvlm_paper import joint_curvature
from bayesvlm_paper.joint_curvature import (
    Curvature,
    Norms,
    PairBatch,
    batches_of,
    fisher,
    gauss_newton,
    gradients,
    probed_gauss_newton,
    sampled_fisher,
)

SIZE, BATCHES = 4, 3


@dataclass(frozen=True)
class Tiny:
    """A model with a bias and a residual in its image tower, and pairs for it, in float64."""

    vlm: BayesVLM
    images: Features
    texts: Features

    @classmethod
    def make(cls, loss: Loss = "infonce", pairs: int = SIZE * BATCHES, scale: float = 1.5) -> Tiny:
        generator = torch.Generator().manual_seed(0)

        def draw(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        bias = -1.0 if loss == "sigmoid" else None
        vlm = BayesVLM(Projection(draw(3, 4), draw(3), True), Projection(draw(3, 2)), scale, bias, loss)
        return cls(vlm, Features(draw(pairs, 4), draw(pairs, 3)), Features(draw(pairs, 2)))

    @property
    def pairs(self) -> PairBatch:
        return PairBatch.of(self.vlm, self.images, self.texts)

    @property
    def batches(self) -> list[PairBatch]:
        return list(map(self.pairs.__getitem__, torch.arange(len(self.images)).split(SIZE)))

    @property
    def weights(self) -> tuple[Tensor, Tensor]:
        return self.vlm.image.augmented, self.vlm.text.augmented

    def logits(self, P: Tensor, Q: Tensor, rows: slice) -> Tensor:
        """From the parameters, by themselves."""
        phi = torch.cat([self.images.activations[rows], torch.ones(SIZE, 1, dtype=P.dtype)], dim=1)
        residual = self.images.residual
        assert residual is not None
        g, h = phi @ P.T + residual[rows], self.texts.activations[rows] @ Q.T
        return self.vlm.scale * functional.cosine_similarity(g[:, None], h[None], dim=2) + (self.vlm.logit_bias or 0.0)

    def loss(self, logits: Tensor) -> Tensor:
        """The mean over the pairs of a batch."""
        match = torch.arange(len(logits))
        if self.vlm.loss == "infonce":
            return (functional.cross_entropy(logits, match) + functional.cross_entropy(logits.T, match)) / 2
        sign = 2 * torch.eye(len(logits), dtype=logits.dtype) - 1
        return -functional.logsigmoid(sign * logits).sum() / len(logits)

    def dense_gradients(self) -> tuple[Tensor, Tensor]:  # [nb, |P|], [nb, |Q|]
        found = []
        for b in range(BATCHES):
            rows = slice(b * SIZE, (b + 1) * SIZE)
            P, Q = (each.clone().requires_grad_() for each in self.weights)
            found.append(torch.autograd.grad(self.loss(self.logits(P, Q, rows)), [P, Q]))
        return torch.stack([g[0].flatten() for g in found]), torch.stack([g[1].flatten() for g in found])

    def dense_gauss_newton(self) -> list[Tensor]:  # [|P| + |Q|, |P| + |Q|] each
        found = []
        for b in range(BATCHES):
            rows = slice(b * SIZE, (b + 1) * SIZE)
            P, Q = self.weights
            by = torch.func.jacrev(lambda P, Q, rows=rows: self.logits(P, Q, rows).flatten(), (0, 1))(P, Q)
            jacobian = torch.cat([each.flatten(1) for each in by], dim=1)
            hessian = torch.func.hessian(lambda z: self.loss(z.view(SIZE, SIZE)))(self.logits(P, Q, rows).flatten())
            found.append(jacobian.T @ hessian @ jacobian)
        return found


def norms(left: Tensor, right: Tensor, size: int) -> Norms:
    """Inner products of the blocks of two dense curvatures: squared norms where both are one."""
    product = left * right
    pp, qq = product[:size, :size].sum(), product[size:, size:].sum()
    return Norms(pp.item(), qq.item(), product[:size, size:].sum().item())


def brute_force(each: list[Tensor], size: int) -> tuple[Norms, Norms]:
    """Norms of the mean; and the mean over pairs of different batches."""
    mean = sum(each) / len(each)
    others = [norms(a, b, size) for i, a in enumerate(each) for j, b in enumerate(each) if i != j]
    return norms(mean, mean, size), Norms.mean(others)


def same(found: Norms, expected: Norms, rel: float = 1e-8) -> bool:
    return (found.pp, found.qq, found.pq) == pytest.approx((expected.pp, expected.qq, expected.pq), rel=rel)


def check(found: Curvature, each: list[Tensor], size: int) -> None:
    these, expected = brute_force(each, size)
    assert same(found.these, these)
    assert same(found.expected, expected)


@pytest.mark.parametrize("loss", ["infonce", "sigmoid"])
class TestAgainstDense:
    def test_gradients(self, loss: Loss) -> None:
        tiny = Tiny.make(loss)
        for found, expected in zip(gradients(tiny.batches), tiny.dense_gradients(), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)

    def test_fisher(self, loss: Loss) -> None:
        tiny = Tiny.make(loss)
        P, Q = tiny.dense_gradients()
        each = [torch.outer(g, g) for g in torch.cat([P, Q], dim=1)]
        check(fisher(*gradients(tiny.batches)), each, P.shape[1])

    def test_gauss_newton(self, loss: Loss) -> None:
        tiny = Tiny.make(loss)
        check(gauss_newton(tiny.batches), tiny.dense_gauss_newton(), tiny.weights[0].numel())

    def test_gauss_newton_products(self, loss: Loss) -> None:
        tiny = Tiny.make(loss)
        batch, dense = tiny.batches[0], tiny.dense_gauss_newton()[0]
        dP, dQ = (torch.randn_like(each) for each in tiny.weights)
        zero = torch.zeros_like
        for vector, logits in (
            (torch.cat([dP.flatten(), zero(dQ).flatten()]), batch.pushed(dP, dQ)[0]),
            (torch.cat([zero(dP).flatten(), dQ.flatten()]), batch.pushed(dP, dQ)[1]),
        ):
            found = torch.cat([each.flatten() for each in batch.pulled(batch.curved(logits))])
            torch.testing.assert_close(found, dense @ vector, rtol=1e-9, atol=1e-12)

    def test_random_vectors_converge(self, loss: Loss) -> None:
        tiny = Tiny.make(loss)
        exact, found = gauss_newton(tiny.batches), probed_gauss_newton(tiny.batches, seed=0, probes=600)
        assert same(found.these, exact.these, rel=0.15)
        assert found.expected.ratio == pytest.approx(exact.expected.ratio, rel=0.1)


def test_gram_matrices_in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = Tiny.make().batches
    whole = gauss_newton(batches)
    monkeypatch.setattr(joint_curvature, "_TILE", 3 * SIZE**2)
    assert same(gauss_newton(batches).these, whole.these, rel=1e-12)


def test_saturated_softmaxes_leave_nothing_out() -> None:
    tiny = Tiny.make(scale=3.5)
    assert min(batch.rows.min().item() for batch in tiny.batches) < 1e-12
    check(gauss_newton(tiny.batches), tiny.dense_gauss_newton(), tiny.weights[0].numel())


class TestSampledEntries:
    def test_converge_to_the_exact_fisher(self) -> None:
        P, Q = gradients(Tiny.make().batches)
        found = sampled_fisher(P, Q, 400_000, seed=0).rescaled(P.shape[1], Q.shape[1])
        assert P.shape[1] != Q.shape[1]
        assert same(found, fisher(P, Q).these, rel=0.02)

    def test_of_the_diagonals(self) -> None:
        P, Q = gradients(Tiny.make().batches)
        found = sampled_fisher(P, Q, 400_000, seed=0, diagonal=True)
        assert found.pp == pytest.approx(P.square().mean(dim=0).square().mean().item(), rel=0.02)
        assert found.qq == pytest.approx(Q.square().mean(dim=0).square().mean().item(), rel=0.02)

    def test_depend_on_the_seed_alone(self) -> None:
        P, Q = gradients(Tiny.make().batches)
        assert sampled_fisher(P, Q, 50, 1) == sampled_fisher(P, Q, 50, 1) != sampled_fisher(P, Q, 50, 2)


class TestRatio:
    def test_of_known_blocks(self) -> None:
        found = Norms(pp=16.0, qq=4.0, pq=2.25)
        assert found.ratio == pytest.approx(1.5 / 3)
        assert found.coupling == pytest.approx(1.5 / 8**0.5)
        assert found.bound == pytest.approx(8**0.5 / 3)
        assert found.kept == pytest.approx(20 / 24.5)

    @pytest.mark.parametrize("loss", ["infonce", "sigmoid"])
    def test_never_above_its_bound(self, loss: Loss) -> None:
        batches = Tiny.make(loss).batches
        for found in (fisher(*gradients(batches)), gauss_newton(batches)):
            assert 0 < found.these.ratio <= found.these.bound <= 1

    def test_larger_text_activations_rescale_it(self) -> None:
        tiny, c = Tiny.make(), 3.0
        pairs = tiny.pairs
        larger = replace(pairs, psi=c * pairs.psi)  # and Q / c: the embeddings stay
        found, expected = (gauss_newton(batches_of(each, SIZE, BATCHES, seed=0)).these for each in (larger, pairs))
        assert same(found, expected.rescaled(1, c**2))
        assert found.coupling == pytest.approx(expected.coupling)
        wanted = 0.5 * expected.coupling
        assert expected.rescaled(1, expected.text_scale(wanted) ** 2).ratio == pytest.approx(wanted)

    def test_independent_gradients_couple_in_a_few_batches_only(self) -> None:
        generator = torch.Generator().manual_seed(0)
        P, Q = (torch.randn(20, 5000, generator=generator, dtype=torch.float64) for _ in "PQ")
        found = fisher(P, Q)
        assert found.these.ratio > 0.95
        assert abs(found.expected.pq) < 1e-3 * found.within.pq / 20

    def test_negative_estimates_are_unknown(self) -> None:
        assert not Norms(1.0, 1.0, -0.1).known
        assert Norms(1.0, 1.0, 0.1).known


def test_a_rotation_of_both_towers_changes_no_logit() -> None:
    pairs = replace(Tiny.make().pairs)
    P, Q = (torch.randn(3, each.shape[1], dtype=torch.float64) for each in (pairs.phi, pairs.psi))
    pairs = replace(pairs, g=pairs.phi @ P.T, h=pairs.psi @ Q.T)
    raw = torch.randn(3, 3, dtype=torch.float64)
    turn = raw - raw.T
    by_p, by_q = pairs.pushed(turn @ P, turn @ Q)
    assert by_p.abs().max() > 0.1
    torch.testing.assert_close(by_p + by_q, torch.zeros_like(by_p), rtol=0, atol=1e-10)


def test_batches_share_no_pair() -> None:
    pairs = Tiny.make(pairs=20).pairs
    batches = batches_of(pairs, 4, 5, seed=1)
    assert [len(batch) for batch in batches] == [4] * 5
    assert len(torch.unique(torch.cat([batch.g for batch in batches]), dim=0)) == 20
    torch.testing.assert_close(batches[0].g, batches_of(pairs, 4, 5, seed=1)[0].g)
    assert not torch.equal(batches[0].g, batches_of(pairs, 4, 5, seed=2)[0].g)
