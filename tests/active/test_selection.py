"""Choosing by every strategy: what is chosen, in which order, and what is refused."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from core.references import assert_close, normal

from bayesvlm import BayesVLM, BayesVLMError, Features
from bayesvlm.active import STRATEGIES, Epig, OnlineLaplace, rank, select
from bayesvlm.active import selection as module
from bayesvlm.active.acquisition import epig
from bayesvlm.active.contrast import ClassContrast
from bayesvlm.active.drawing import drawn_probabilities
from bayesvlm.active.targeting import nearest_distinct
from bayesvlm.core.draws import Held
from bayesvlm.core.errors import BayesVLMWarning
from bayesvlm.core.predict import entropy

POOL, TARGET, CLASSES, BUDGET = 30, 12, 4, 6
SMALL = Epig(gamma=1e-2, beta=5.0, targets=8, candidates=20)


@pytest.fixture(scope="module")
def vlm() -> BayesVLM:
    made = BayesVLM.from_projections(normal(5, 8, seed=0), normal(5, 7, seed=1), logit_scale=1.5)
    return made.fit([(Features(normal(60, 8, seed=2)), Features(normal(60, 7, seed=3)))]).replace(tau=0.5)


@pytest.fixture
def pool() -> Features:
    return Features(normal(POOL, 8, seed=4))


@pytest.fixture
def target() -> Features:
    return Features(normal(TARGET, 8, seed=5) + 0.5)


@pytest.fixture
def classes() -> Features:
    return Features(normal(CLASSES, 7, seed=6))


@pytest.fixture
def labels() -> torch.Tensor:
    return torch.randint(CLASSES, (POOL,), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_budget_of_different_items(vlm, pool, target, classes, labels, strategy) -> None:  # type: ignore[no-untyped-def]
    chosen = rank(vlm, pool, target, classes, strategy, BUDGET, labels, options=SMALL)
    assert chosen.indices.shape == chosen.scores.shape == (BUDGET,)
    assert len(set(chosen.indices.tolist())) == BUDGET
    again = select(vlm, pool, target, classes, strategy, BUDGET, labels, options=SMALL)
    assert torch.equal(chosen.indices, again), "the same seed chooses the same"
    everything = select(vlm, pool, target, classes, strategy, POOL, labels, options=SMALL)
    assert sorted(everything.tolist()) == list(range(POOL)), "a budget of the whole pool"


@pytest.mark.parametrize("strategy", ["random", "targeted-random", "epig"])
def test_another_seed_chooses_otherwise(vlm, pool, target, classes, labels, strategy) -> None:  # type: ignore[no-untyped-def]
    for options in (SMALL, Epig(targets=TARGET, candidates=POOL)):
        first, second = (
            select(vlm, pool, target, classes, strategy, 15, labels, seed, options=options) for seed in (0, 1)
        )
        assert not torch.equal(first, second)


def test_entropy_and_bald_rank_the_pool(vlm, pool, target, classes) -> None:  # type: ignore[no-untyped-def]
    by_entropy = rank(vlm, pool, target, classes, "entropy", POOL)
    expected = entropy(vlm.plain(pool, classes))
    assert_close(by_entropy.scores, expected.sort(descending=True).values, 1e-6)
    assert_close(by_entropy.scores, expected[by_entropy.indices], 1e-6)
    by_bald = rank(vlm, pool, target, classes, "bald", POOL, draws=200)
    assert_close(by_bald.scores, vlm.classify(pool, classes, draws=200).monte_carlo.epistemic[by_bald.indices], 1e-6)
    assert (by_bald.scores[:-1] >= by_bald.scores[1:]).all()


def test_targeted_ones_take_the_neighbours_of_the_target(vlm, pool, target, classes) -> None:  # type: ignore[no-untyped-def]
    for metric in ("cosine", "wasserstein"):
        order = entropy(vlm.plain(target, classes)).argsort(descending=True)
        near = nearest_distinct(vlm.embed_images(pool), vlm.embed_images(target), order, 20, metric)
        found = rank(vlm, pool, target, classes, "targeted-entropy", 20, metric=metric)
        assert torch.equal(found.indices, near)
        assert_close(found.scores[:TARGET], entropy(vlm.plain(target, classes))[order], 1e-6)
        assert torch.equal(found.scores[TARGET:], found.scores[: 20 - TARGET]), "they go round again"


@pytest.mark.parametrize("how", ["held", "drawn"])
def test_epig_is_the_greedy_loop_written_out(vlm, pool, target, classes, labels, how) -> None:  # type: ignore[no-untyped-def]
    options = Epig(gamma=1e-2, beta=5.0, targets=TARGET, candidates=POOL, text=how)
    found = rank(vlm, pool, target, classes, "epig", 5, labels, draws=50, options=options)
    online = OnlineLaplace.begin(vlm.posterior["image"], ClassContrast.of(vlm, classes), 5.0)
    generator, left = torch.Generator().manual_seed(0), list(range(POOL))
    for step in range(5):
        looked_at = torch.randperm(TARGET, generator=generator)
        seed = int(torch.randint(2**31, (), generator=generator))
        text = vlm.posterior["text"] if how == "drawn" else Held(vlm.text)
        both = Features.concatenate([pool[left], target[looked_at]])
        probs = drawn_probabilities(online, both, text, classes, vlm.scale, 50, seed)
        score = epig(probs[:, : len(left)], probs[:, len(left) :])
        item = left.pop(int(score.argmax()))
        assert item == int(found.indices[step])
        assert float(score.max()) == pytest.approx(float(found.scores[step]), rel=1e-4)
        online = online.step(pool[item], int(labels[item]), 1e-2)


def test_chunks_of_the_pool_and_its_order_change_nothing(  # type: ignore[no-untyped-def]
    vlm, pool, target, classes, labels, monkeypatch
) -> None:
    options = Epig(gamma=1e-2, beta=5.0, targets=8, candidates=POOL)
    whole = rank(vlm, pool, target, classes, "epig", BUDGET, labels, options=options)
    monkeypatch.setattr(module, "BLOCK", 100 * CLASSES * 7)
    parts = rank(vlm, pool, target, classes, "epig", BUDGET, labels, options=options)
    assert torch.equal(parts.indices, whole.indices)
    assert_close(parts.scores, whole.scores, 1e-5)
    shuffle = torch.randperm(POOL, generator=torch.Generator().manual_seed(8))
    shuffled = rank(vlm, pool[shuffle], target, classes, "epig", BUDGET, labels[shuffle], options=options)
    assert torch.equal(shuffle[shuffled.indices], whole.indices)
    for strategy in ("entropy", "targeted-entropy", "bald", "targeted-bald"):
        one = select(vlm, pool, target, classes, strategy, BUDGET)
        monkeypatch.setattr(module, "BLOCK", CLASSES * 7)
        assert torch.equal(select(vlm, pool, target, classes, strategy, BUDGET), one)
        other = select(vlm, pool[shuffle], target, classes, strategy, BUDGET)
        assert torch.equal(shuffle[other], one)


def test_doubt_about_the_text_projection_is_not_what_epig_asks_about(  # type: ignore[no-untyped-def]
    vlm, pool, target, classes, labels
) -> None:
    """No label teaches it: where the text projection is far surer, EPIG chooses the same, with the same scores."""
    surer = vlm.replace(lam={"image": vlm.lam["image"], "text": 1e6 * vlm.lam["text"]})
    chosen, other = (rank(each, pool, target, classes, "epig", BUDGET, labels, options=SMALL) for each in (vlm, surer))
    assert torch.equal(chosen.indices, other.indices)
    assert_close(other.scores, chosen.scores, 1e-9)
    drawn = replace(SMALL, text="drawn")
    chosen, other = (rank(each, pool, target, classes, "epig", BUDGET, labels, options=drawn) for each in (vlm, surer))
    assert float((other.scores - chosen.scores).abs().max()) > 0.1 * float(chosen.scores.max())


def test_epig_considers_as_many_items_as_there_are_targets(vlm, pool, target, classes) -> None:  # type: ignore[no-untyped-def]
    """Its candidates are then the targets' nearest, which all of a budget of half as many come from."""
    order = torch.randperm(TARGET, generator=torch.Generator().manual_seed(0))
    near = nearest_distinct(vlm.embed_images(pool), vlm.embed_images(target), order, TARGET)
    chosen = select(vlm, pool, target, classes, "epig", TARGET // 2, options=Epig(targets=8))
    assert set(chosen.tolist()) <= set(near.tolist())
    more = select(vlm, pool, target, classes, "epig", 15, options=Epig(targets=8))
    assert not set(more.tolist()) <= set(near.tolist())


def test_select_says_when_something_simpler_does_as_well(vlm, pool, target, classes) -> None:  # type: ignore[no-untyped-def]
    with pytest.warns(BayesVLMWarning, match="The budget of 12 reaches the target's 12 images"):
        select(vlm, pool, target, classes, "epig", TARGET, options=SMALL)
    with warnings.catch_warnings(action="error"):
        select(vlm, pool, target, classes, "epig", TARGET - 1, options=SMALL)
        select(vlm, pool, target, classes, "targeted-random", TARGET)


def test_labels_steer_epig(vlm, pool, target, classes, labels) -> None:  # type: ignore[no-untyped-def]
    options = Epig(gamma=1.0, beta=1.0, targets=8)
    told = select(vlm, pool, target, classes, "epig", 15, labels, options=options)
    blind = select(vlm, pool, target, classes, "epig", 15, options=options)
    assert told[0] == blind[0], "the first choice knows no label yet"
    assert not torch.equal(told, blind)


def test_one_target_and_copies_in_the_pool(vlm, pool, target, classes, labels) -> None:  # type: ignore[no-untyped-def]
    copies = Features.concatenate([pool, pool])
    for strategy in STRATEGIES:
        chosen = select(vlm, copies, target[0], classes, strategy, 40, labels.repeat(2), options=SMALL)
        assert len(set(chosen.tolist())) == 40


def test_a_caller_s_model_stays_as_it_is(vlm, pool, target, classes, labels) -> None:  # type: ignore[no-untyped-def]
    before = vlm.image.weight.clone(), vlm.factors["image"].A_sum.clone(), vlm.lam
    select(vlm, pool, target, classes, "epig", BUDGET, labels, options=SMALL)
    assert torch.equal(vlm.image.weight, before[0])
    assert torch.equal(vlm.factors["image"].A_sum, before[1])
    assert vlm.lam == before[2]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"budget": 31}, "The budget is 31 and the pool has 30 items; choose at most 30"),
        ({"budget": 0}, "budget is 0; expected a whole number"),
        ({"draws": 0}, "draws is 0; expected a whole number"),
        ({"strategy": "epik"}, "strategy='epik' is not known; use 'random', 'targeted-random', "),
        ({"metric": "euclid"}, "metric='euclid' is not known"),
        ({"pool_labels": [0, 1]}, "There are 30 inputs and 2 labels"),
        ({"pool_labels": [9] * 30}, "Labels run from 9 to 9, but there are 4 classes"),
    ],
)
def test_what_is_refused(vlm, pool, target, classes, change, sentence) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BayesVLMError, match=sentence):
        rank(vlm, pool, target, classes, **{"budget": BUDGET, **change})


def test_one_class_tells_nothing(vlm, pool, target, classes) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BayesVLMError, match="one class only, so epig scores every image zero"):
        select(vlm, pool, target, classes[0], "epig", 2)
    assert len(select(vlm, pool, target, classes[0], "targeted-random", 2)) == 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"gamma": float("nan")}, "gamma=nan; it must be a finite number of at least 0"),
        ({"beta": -1.0}, "it must be a finite number of at least 0"),
        ({"targets": 0}, "targets is 0; expected a whole number"),
        ({"candidates": -5}, "candidates is -5; expected a whole number"),
        ({"candidates": 0}, "candidates is 0; expected a whole number"),
        ({"text": "fixed"}, "text='fixed' is not known; use 'held' or 'drawn'"),
    ],
)
def test_options_of_epig_that_make_no_sense(change: dict, sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        Epig(**change)
