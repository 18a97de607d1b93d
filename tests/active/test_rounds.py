"""A second round of choosing: it goes on where the first ended, learns its labels, and leaves out what it must."""

from __future__ import annotations

import pytest
import torch
from core.references import assert_close, normal

from active.test_selection import BUDGET, CLASSES, POOL, SMALL, TARGET, vlm
from bayesvlm import BayesVLM, BayesVLMError, Features
from bayesvlm.active import STRATEGIES, Epig, OnlineLaplace, rank, select
from bayesvlm.active.acquisition import epig
from bayesvlm.active.contrast import ClassContrast
from bayesvlm.active.drawing import drawn_probabilities
from bayesvlm.active.known import Known
from bayesvlm.core.draws import Held

__all__ = ["vlm"]  # a fixture of the module beside this one


@pytest.fixture
def asked() -> tuple[Features, Features, Features]:
    """Pool, target, classes."""
    return Features(normal(POOL, 8, seed=4)), Features(normal(TARGET, 8, seed=5) + 0.5), Features(normal(4, 7, seed=6))


@pytest.fixture
def labels() -> torch.Tensor:
    return torch.randint(CLASSES, (POOL,), generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "epig"])
def test_two_rounds_are_one(vlm: BayesVLM, asked: tuple, strategy: str) -> None:
    whole = rank(vlm, *asked, strategy, 4 * BUDGET)
    for first in (1, BUDGET, TARGET + 3):
        rest = 4 * BUDGET - first
        second = rank(vlm, *asked, strategy, rest, exclude=whole.indices[:first])
        assert torch.equal(second.indices, whole.indices[first:])
        assert_close(second.scores.nan_to_num(0), whole.scores[first:].nan_to_num(0), 1e-6)


@pytest.mark.parametrize("options", [SMALL, Epig(gamma=1e-2, beta=5.0, targets=8), Epig(gamma=0.0, solve_lam=True)])
def test_two_rounds_of_epig_are_one_that_asks_an_oracle(
    vlm: BayesVLM, asked: tuple, labels: torch.Tensor, options: Epig
) -> None:
    pool, target, classes = asked
    whole = rank(vlm, pool, target, classes, "epig", 2 * BUDGET, labels, options=options)
    first, second = whole.indices[:BUDGET], whole.indices[BUDGET:]
    seen = pool[first], labels[first]
    again = rank(vlm, pool, target, classes, "epig", BUDGET, labels, options=options, labelled=seen)
    assert torch.equal(again.indices, second), "and it left out what is labelled without being told"
    assert_close(again.scores, whole.scores[BUDGET:], 1e-6)
    named = rank(vlm, pool, target, classes, "epig", BUDGET, labels, options=options, labelled=seen, exclude=first)
    assert torch.equal(named.indices, second), "what is labelled may be excluded as well"
    others = rank(vlm, pool, target, classes, "epig", BUDGET, labels, options=options, exclude=first)
    assert not torch.equal(others.indices, second), "without the labels it has learnt nothing"


def test_a_label_takes_from_what_its_likes_would_tell(vlm: BayesVLM, asked: tuple, labels: torch.Tensor) -> None:
    pool, target, classes = asked
    online = OnlineLaplace.begin(vlm.posterior["image"], ClassContrast.of(vlm, classes), 5.0)
    item = int(rank(vlm, *asked, "epig", 1, options=Epig(candidates=POOL)).indices[0])
    likes = Features(pool[item].activations + 0.01 * normal(5, 8, seed=9))
    both = Features.concatenate([target, likes])

    def told(by: OnlineLaplace) -> torch.Tensor:
        probs = drawn_probabilities(by, both, Held(vlm.text), classes, vlm.scale, 4000, 0)
        return epig(probs[:, TARGET:], probs[:, :TARGET])

    before, after = told(online), told(online.step(pool[item], int(labels[item]), 1e-2))
    assert (after < 0.8 * before).all(), "draws leave some 0.02 of a score"


def test_labelled_images_from_elsewhere(vlm: BayesVLM, asked: tuple, labels: torch.Tensor) -> None:
    pool, target, classes = asked
    seed_set = Features(normal(5, 8, seed=11)), [0, 1, 2, 3, 0]
    everything = select(vlm, pool, target, classes, "epig", POOL, labels, labelled=seed_set, options=SMALL)
    assert sorted(everything.tolist()) == list(range(POOL)), "none of them is in the pool"
    plain = rank(vlm, pool, target, classes, "epig", BUDGET, labels, options=SMALL)
    learnt = rank(vlm, pool, target, classes, "epig", BUDGET, labels, options=SMALL, labelled=seed_set)
    assert not torch.allclose(plain.scores, learnt.scores, rtol=1e-3)
    nothing = rank(vlm, pool, target, classes, "epig", BUDGET, labels, options=SMALL, labelled=(pool[:0], []))
    assert torch.equal(nothing.scores, plain.scores)


def test_what_is_labelled_is_known_again_from_another_processor(vlm: BayesVLM, asked: tuple) -> None:
    pool, *others = asked
    first, noise = torch.arange(0, POOL, 3), normal(POOL, 8, seed=12)
    rest = [row for row in range(POOL) if row % 3]
    once = Features(pool.activations * (1 + 1e-5 * noise).to(pool.activations))[first], [0] * len(first)
    assert sorted(select(vlm, pool, *others, "random", len(rest), labelled=once).tolist()) == rest
    near = Features(pool.activations * (1 + 0.03 * noise).to(pool.activations))[first], [0] * len(first)
    assert len(select(vlm, pool, *others, "random", POOL, labelled=near)) == POOL, "others that are like them are not"


def test_features_in_bfloat16_are_known_again(vlm: BayesVLM, asked: tuple) -> None:
    pool, first = asked[0], torch.arange(5)
    half, labels = pool.to(torch.bfloat16), [0] * 5
    for one, other in ((half, half), (half, pool), (pool, half)):
        known = Known.of(vlm, one, (other[first], labels), None, None, CLASSES)
        assert known.labelled.tolist() == [row < 5 for row in range(POOL)]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_is_excluded_is_never_chosen(vlm: BayesVLM, asked: tuple, strategy: str) -> None:
    out = torch.arange(0, POOL, 3)
    for exclude in (out, out.tolist(), out.numpy()):
        found = select(vlm, *asked, strategy, POOL - len(out), exclude=exclude, options=SMALL)
        assert sorted(found.tolist()) == [row for row in range(POOL) if row % 3]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"exclude": [POOL]}, "exclude has rows from 30 to 30, and the pool has 30"),
        ({"exclude": [-1]}, "exclude has rows from -1 to -1"),
        ({"exclude": torch.ones(POOL, dtype=torch.bool)}, "exclude is torch.bool of shape"),
        ({"exclude": [0.5]}, "exclude is torch.float32"),
        ({"exclude": ["a"]}, r"exclude is \"\['a'\]\", a list; give a list of whole numbers"),
        ({"exclude": 3}, "exclude is '3', a int; give a list of whole numbers"),
        ({"exclude": range(POOL - 2)}, "the pool has 30 items, 28 of them labelled or excluded already; choose at mo"),
        ({"labelled": (Features(normal(2, 8, seed=1)), [0])}, "There are 2 inputs and 1 labels"),
        ({"labelled": (Features(normal(2, 8, seed=1)), [0, 4])}, "Labels run from 0 to 4, but there are 4 classes"),
    ],
)
def test_what_is_refused(vlm: BayesVLM, asked: tuple, given: dict, sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        rank(vlm, *asked, "random", BUDGET, **given)
