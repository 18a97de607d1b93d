"""Shared draws with the text held: the same information as of whole embeddings, and as good a choice by it."""

from __future__ import annotations

import pytest
import torch
from core.references import assert_close, normal
from core.test_draws import degenerate, other_eigenvectors
from torch import Tensor

from bayesvlm import BayesVLM, Features, world
from bayesvlm.active import Epig, OnlineLaplace, rank, selection
from bayesvlm.active.acquisition import epig
from bayesvlm.active.contrast import ClassContrast
from bayesvlm.active.drawing import SharedDraws
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.core.held import HeldCosines
from bayesvlm.core.posterior import Posterior
from bayesvlm.core.projection import Projection

POOL, TARGET, NAMES, LABELLED = 200, 30, 20, 10


@pytest.fixture(scope="module")
def task() -> tuple[BayesVLM, Features, Features, OnlineLaplace]:
    """Images of activities and twenty of their names, after ten labels; the targets come first."""
    vlm = BayesVLM.from_pretrained("emoji-clip-colour", device="cpu")
    pool, target = (world.load("openmoji-black").half(side).group("activities") for side in ("pool", "target"))
    more = world.load("train").group("activities")
    pictures = [*target.images[:TARGET], *(pool.images + more.images)[: POOL + LABELLED]]
    images = vlm.image_features(pictures)
    texts = vlm.text_features(list(target.classes[:NAMES]))
    online = OnlineLaplace.begin(vlm.posterior["image"], ClassContrast.of(vlm, texts), 100.0)
    for row in range(LABELLED):
        online = online.step(images[TARGET + POOL + row], None, 0.0)
    return vlm, images[: TARGET + POOL], texts, online


def shared(task: tuple[BayesVLM, Features, Features, OnlineLaplace], *, whole: bool = False) -> SharedDraws:
    vlm, _, texts, online = task
    with pytest.MonkeyPatch.context() as patch:
        if whole:
            patch.setattr(HeldCosines, "pay", staticmethod(lambda directions, width: False))
        made = SharedDraws.of(online, vlm, texts, hold_text=True)
    assert (made.held is None) == whole
    return made


def scores(of: SharedDraws, images: Features, draws: int, seed: int) -> Tensor:  # [N]
    probs = of.probabilities(images, draws, seed)
    assert probs.shape == (draws, len(images), NAMES)
    return epig(probs[:, TARGET:], probs[:, :TARGET])


def test_the_same_scores_and_as_good_a_choice(task) -> None:  # type: ignore[no-untyped-def]
    """By a hundred draws, over eight seeds, against a reference of 3,000 whole draws.

    Mean scores differ by no more than seeds do; what the first twenty are worth by the reference, short of the best
    twenty, is not more than with whole embeddings beyond twice its standard error.
    """
    images, seeds = task[1], range(8)
    many = scores(shared(task, whole=True), images, 3000, 99)
    best, means, regrets = float(many.topk(20).values.sum()), {}, {}
    for whole in (True, False):
        found = torch.stack([scores(shared(task, whole=whole), images, 100, seed) for seed in seeds])
        means[whole] = found
        regrets[whole] = torch.tensor([1 - float(many[each.topk(20).indices].sum()) / best for each in found])
    gap = means[False].mean(dim=0) - means[True].mean(dim=0)
    error = ((means[False].var(dim=0) + means[True].var(dim=0)) / len(seeds)).sqrt()
    assert 0.7 <= float((gap / error).square().mean().sqrt()) <= 1.3, "standard errors apart, not more and not less"
    assert abs(float(means[False].mean() / means[True].mean()) - 1) <= 0.1, "the same bias of few draws"
    error = float((regrets[True].var() + regrets[False].var()).div(len(seeds)).sqrt())
    assert float(regrets[False].mean() - regrets[True].mean()) <= 2 * error
    assert 1 - float(many.mean()) * 20 / best > 0.5, "there is something to lose"
    assert float(regrets[False].mean()) < 0.25


def test_moments_of_logits_between_pool_and_target(task) -> None:  # type: ignore[no-untyped-def]
    """Log-odds among the names, whose covariance between images is what EPIG measures."""
    _, images, _, _ = task
    few = images[[0, 1, 2, TARGET, TARGET + 1, TARGET + 2]]
    found = []
    for whole, seed in ((True, 1), (True, 2), (False, 3)):
        logs = shared(task, whole=whole).probabilities(few, 8_000, seed)[..., :4].double().log()
        flat = (logs[..., 1:] - logs[..., :1]).flatten(1)
        found.append((flat.mean(dim=0), torch.cov(flat.T)))
    (mean, covariance), again, ours = found
    assert_close(ours[0], mean, 0.02, "means")
    noise = float((again[1] - covariance).norm() / covariance.norm())
    assert_close(ours[1], covariance, 2 * noise, "covariance")
    assert noise < 0.06


def test_rows_of_images_do_not_depend_on_what_is_beside_them(task) -> None:  # type: ignore[no-untyped-def]
    images = task[1]
    drawn = shared(task)
    assert_close(drawn.probabilities(images[7:9], 30, 1), drawn.probabilities(images, 30, 1)[:, 7:9], 1e-4)


def test_a_choice_is_the_greedy_loop_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the text held, in one chunk of the pool and in many: every item scored, the best one taken."""
    vlm = BayesVLM.from_projections(normal(24, 8, seed=0) / 3, normal(24, 7, seed=1), logit_scale=2.0)
    vlm = vlm.fit([(Features(normal(60, 8, seed=2)), Features(normal(60, 7, seed=3)))], progress=False)
    pool, target, classes = (Features(normal(n, p, seed=s)) for n, p, s in ((60, 8, 4), (12, 8, 5), (4, 7, 6)))
    labels = torch.arange(60) % 4
    options = Epig(gamma=1e-2, beta=5.0, targets=12, candidates=60)
    found = rank(vlm, pool, target, classes, "epig", 5, labels, draws=50, options=options)
    online = OnlineLaplace.begin(vlm.posterior["image"], ClassContrast.of(vlm, classes), 5.0)
    generator, left = torch.Generator().manual_seed(0), list(range(60))
    for step in range(5):
        looked_at = target[torch.randperm(12, generator=generator)]
        seed = int(torch.randint(2**31, (), generator=generator))
        drawn = SharedDraws.of(online, vlm, classes, hold_text=True)
        assert drawn.held is not None
        probs = drawn.probabilities(Features.concatenate([pool[left], looked_at]), 50, seed)
        score = epig(probs[:, : len(left)], probs[:, len(left) :])
        item = left.pop(int(score.argmax()))
        assert item == int(found.indices[step])
        assert float(score.max()) == pytest.approx(float(found.scores[step]), rel=1e-4)
        online = online.step(pool[item], int(labels[item]), 1e-2)
    monkeypatch.setattr(selection, "BLOCK", 50 * 4 * 7)
    parts = rank(vlm, pool, target, classes, "epig", 5, labels, draws=50, options=options)
    assert torch.equal(parts.indices, found.indices)
    assert_close(parts.scores, found.scores, 1e-5)


def test_signs_and_bases_of_eigenvectors_do_not_enter(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a class twice, and factors that have equal eigenvalues, after labelled images."""
    width, p = 24, 7
    weight = normal(width, p, seed=1)
    of_B = torch.block_diag(degenerate(7, 2), degenerate(7, 3), degenerate(5, 4), degenerate(5, 5))
    texts = Features(normal(3, p, seed=3)[[0, 1, 2, 2]])
    images = Features(normal(9, p, seed=4))

    def drawn() -> Tensor:
        posterior = Posterior(Projection(weight), KroneckerFactors(9 * degenerate(p, 6), 9 * of_B, 9), 2.0, 0.5)
        online = OnlineLaplace.begin(posterior, ClassContrast(normal(4, width, seed=5)[[0, 1, 2, 2]], 8.0), 20.0)
        for row in range(3):
            online = online.step(images[row], row, 1e-2)
        vlm = BayesVLM.from_projections(weight, weight, logit_scale=2.0)
        shared = SharedDraws.of(online, vlm, texts, hold_text=True)
        assert shared.held is not None
        return shared.probabilities(images, 10, 1)

    first = drawn()
    made = other_eigenvectors(monkeypatch)
    second = drawn()
    assert made, "the decomposition was taken again"
    assert float(first.std(dim=0).mean()) > 1e-3, "there is something to get wrong"
    assert_close(second, first, 1e-6)


def test_many_classes_and_a_drawn_text_take_whole_embeddings() -> None:
    vlm = BayesVLM.from_projections(normal(12, 8, seed=0), normal(12, 7, seed=1), logit_scale=1.5)
    vlm = vlm.fit([(Features(normal(60, 8, seed=2)), Features(normal(60, 7, seed=3)))], progress=False)
    for count, hold, whole in ((2, True, False), (3, True, True), (2, False, True)):
        texts = Features(normal(count, 7, seed=4))
        online = OnlineLaplace.begin(vlm.posterior["image"], ClassContrast.of(vlm, texts), 5.0)
        drawn = SharedDraws.of(online, vlm, texts, hold_text=hold)
        assert (drawn.held is None) == whole
        assert drawn.cost(10, 3) > 0
        probs = drawn.probabilities(Features(normal(5, 8, seed=5)), 30, 1)
        assert probs.shape == (30, 5, count)
        assert_close(probs.sum(dim=2), torch.ones(30, 5), 1e-6)
        assert float(probs.std(dim=0).min()) > 0
