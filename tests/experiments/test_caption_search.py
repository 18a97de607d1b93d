"""Searches against brute force: every ranking, every doubt, held-out items; blocks; models that can do less."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bayesvlm import BayesVLM, BayesVLMError, Features
from bayesvlm.evaluation import HeldOut, Relevance, hold_out
from bayesvlm.experiments import caption_search
from bayesvlm.experiments.caption_search import CUT_OFF, DOUBTS, RANKINGS, Searched, search, shares_draws

D, P, TEXTS, IMAGES = 8, 12, 30, 70


def draw(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


@pytest.fixture(scope="module")
def vlm() -> BayesVLM:
    generator = torch.Generator().manual_seed(5)
    weight = draw(generator, D, P)
    made = BayesVLM.from_projections(weight, weight, 2.3)
    pairs = [(Features(draw(generator, 200, P)), Features(draw(generator, 200, P)))]
    return made.fit(pairs, progress=False).replace(tau=1.0, lam={"image": 30.0, "text": 30.0}, covariance="full")


def sides() -> tuple[Features, Features, Relevance]:
    """Texts, images that are like one of them, and which that is."""
    generator = torch.Generator().manual_seed(6)
    texts = draw(generator, TEXTS, P)
    labels = torch.arange(IMAGES) % TEXTS
    images = texts[labels] + 1.5 * draw(generator, IMAGES, P)
    return Features(texts), Features(images), Relevance.of([[i] for i in labels.tolist()], TEXTS).transposed()


def asked(vlm: BayesVLM, held: HeldOut | None = None) -> Searched:
    texts, images, relevant = sides()
    return search(vlm, texts, images, relevant, "text", held)


def first_ranks(scores: Tensor, relevant: Relevance) -> list[float]:
    """The rank of the best item that answers each query, from a sorted list."""
    order = scores.argsort(dim=1, descending=True).tolist()
    found = zip(order, relevant.lists(), strict=True)
    return [1 + min(place for place, item in enumerate(row) if item in rows) for row, rows in found]


# Rankings -------------------------------------------------------------------------------------------------------------


def test_every_ranking_in_order(vlm: BayesVLM) -> None:
    found = asked(vlm)
    texts, images, relevant = sides()
    assert tuple(found.ranked) == RANKINGS
    moments = vlm.similarity(images, texts)
    lower = moments.interval(0.95)[0]
    plain = vlm.logits(images, texts)
    for name, scores in (("cosine", plain.T), ("expected cosine", moments.mean.T), ("lower bound", lower.T)):
        assert found.ranked[name].ranks[:, 0].tolist() == first_ranks(scores, relevant), name
    assert found.items == IMAGES
    assert found.ranked["cosine"].counts.equal(relevant.counts)


def test_the_other_way_round(vlm: BayesVLM) -> None:
    texts, images, relevant = sides()
    found = search(vlm, images, texts, relevant.transposed(), "image")
    expected = first_ranks(vlm.similarity(images, texts).mean, relevant.transposed())
    assert found.ranked["expected cosine"].ranks[:, 0].tolist() == expected
    probs = vlm.classify(images, texts).probs  # in this direction `probit` is to classify
    assert found.ranked["probit"].ranks[:, 0].tolist() == first_ranks(probs, relevant.transposed())
    torch.testing.assert_close(-found.doubts["probit"], probs.amax(dim=1), atol=1e-9, rtol=0)
    assert found.items == TEXTS


def test_p_best_against_draws_of_both_projections(vlm: BayesVLM) -> None:
    """512 draws of linearised cosines against 6,000 of the projections themselves, five standard errors apart."""
    texts, images, relevant = sides()
    found = asked(vlm)
    generator = torch.Generator().manual_seed(1)
    drawn = {
        tower: torch.nn.functional.normalize(vlm.posterior[tower].drawn_embeddings(side, 6000, generator), dim=2)
        for tower, side in (("text", texts), ("image", images))
    }
    mean = vlm.similarity(images, texts).mean.T
    surest = []
    for query in range(TEXTS):
        first = mean[query].topk(caption_search.BEST_OF).indices
        best = torch.einsum("sd,snd->sn", drawn["text"][:, query], drawn["image"][:, first]).argmax(dim=1)
        share = torch.bincount(best, minlength=len(first)).double() / 6000
        assert float(-found.doubts["p_best"][query]) == pytest.approx(float(share.max()), abs=0.11)
        surest.append(float(share.max()))
        if float(share.sort(descending=True).values.diff().abs()[0]) > 0.2:  # far from a tie
            answer = int(first[share.argmax()]) in relevant.lists()[query]
            assert bool(found.ranked["p_best"].found(1)[query]) == answer
    assert min(surest) < 0.6 < 0.9 < max(surest)  # it has something to say


def test_p_best_is_that_of_an_index(vlm: BayesVLM, tmp_path: Path) -> None:
    """Whose rows keep whitened activations in half precision, so that a few draws may fall on the other side."""
    pytest.importorskip("lancedb", reason="the index needs LanceDB")
    from bayesvlm.retrieval import Index

    texts, images, _ = sides()
    index = Index.create(tmp_path / "index", vlm)
    index.add(images, [str(row) for row in range(IMAGES)])
    told = torch.stack([hits.p_best.max() for hits in index.search(texts, k=caption_search.BEST_OF)])
    torch.testing.assert_close(-asked(vlm).doubts["p_best"], told, atol=0.02, rtol=0)


def test_p_best_reorders_the_first_ten_and_leaves_the_others(vlm: BayesVLM) -> None:
    found = asked(vlm)
    best, mean = (found.ranked[name].ranks for name in ("p_best", "expected cosine"))
    assert (best > 10).equal(mean > 10)
    assert best[mean > 10].equal(mean[mean > 10])
    assert not best.equal(mean)


def test_below_the_other_halfs_cut_off_nothing_is_shown(vlm: BayesVLM) -> None:
    found = asked(vlm)
    cut, plain = found.ranked[CUT_OFF], found.ranked["cosine"]
    hidden = cut.ranks == torch.inf
    assert int(hidden.sum()) > int((plain.ranks == torch.inf).sum())
    assert cut.ranks[~hidden].equal(plain.ranks[~hidden])
    assert float(plain.scores[hidden & (plain.ranks < torch.inf)].max()) < float(plain.scores[~hidden].max())


# Doubts ---------------------------------------------------------------------------------------------------------------


def by_hand(vlm: BayesVLM, kept: Tensor) -> dict[str, Tensor]:
    """Every doubt that takes no draws, query by query."""
    texts, images, _ = sides()
    images = images[kept]
    cosine, moments = vlm.logits(images, texts).T / vlm.scale, vlm.similarity(images, texts)
    mean, std = moments.mean.T, moments.std.T
    embedded = vlm.embed_texts(texts)
    rows = range(TEXTS)
    ordered = cosine.sort(dim=1, descending=True).values
    return {
        "cosine": -ordered[:, 0],
        "margin": -(ordered[:, 0] - ordered[:, 1]),
        "standardised": torch.stack([-(cosine[row].max() - cosine[row].mean()) / cosine[row].std() for row in rows]),
        "softmax": -torch.softmax(vlm.scale * cosine, dim=1).amax(dim=1),
        "expected cosine": -mean.amax(dim=1),
        "lower bound": -(mean - 1.96 * std).amax(dim=1),
        "probit": -torch.softmax(mean / (vlm.scale**-2 + torch.pi / 8 * std**2).sqrt(), dim=1).amax(dim=1),
        "deviation": torch.stack([std[row, int(mean[row].argmax())] for row in rows]),
        "query variance": embedded.covariance.trace()
        / (embedded.mean.square().sum(dim=1) + embedded.covariance.trace()),
    }


def test_every_doubt_with_and_without_what_was_held_out(vlm: BayesVLM) -> None:
    held = hold_out(sides()[2])
    found = asked(vlm, held)
    assert tuple(found.doubts) == tuple(DOUBTS) == tuple(found.held)
    for doubts, kept in ((found.doubts, torch.ones(IMAGES, dtype=torch.bool)), (found.held, held.kept)):
        for name, values in by_hand(vlm, kept).items():
            torch.testing.assert_close(doubts[name], values, atol=1e-6, rtol=1e-6, msg=name)
    assert found.answerable is held.answerable
    answers = found.answers("p_best")
    assert answers.correct.equal(found.ranked["p_best"].found(1))
    assert answers.doubt.equal(found.doubts["p_best"])


def test_p_best_among_what_is_left_is_that_of_a_smaller_collection(vlm: BayesVLM) -> None:
    texts, images, relevant = sides()
    held = hold_out(relevant)
    rows = held.kept.nonzero()[:, 0]
    smaller = search(vlm, texts, images[rows], relevant.among(range(TEXTS), rows), "text")
    torch.testing.assert_close(asked(vlm, held).held["p_best"], smaller.doubts["p_best"], atol=0.01, rtol=0)


def test_blocks_of_queries(vlm: BayesVLM, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, told = asked(vlm, hold_out(sides()[2])), []
    monkeypatch.setattr(caption_search, "_NUMBERS", 7 * 5120)
    texts, images, relevant = sides()
    parts = search(vlm, texts, images, relevant, "text", hold_out(relevant), told.append)
    assert told == [7, 7, 7, 7, 2]
    for name in RANKINGS[:-1]:  # in p_best a draw may fall on either side of a tie
        assert parts.ranked[name].ranks.equal(whole.ranked[name].ranks), name
    for name in DOUBTS:
        close = partial(torch.testing.assert_close, atol=1e-2 if name == "p_best" else 1e-9, rtol=0)
        close(parts.doubts[name], whole.doubts[name])
        close(parts.held[name], whole.held[name])


# Models that can do less ----------------------------------------------------------------------------------------------


def test_without_a_posterior_there_is_the_cosine(vlm: BayesVLM) -> None:
    plain = asked(vlm.without_posterior())
    assert tuple(plain.ranked) == ("cosine", CUT_OFF)
    assert tuple(plain.doubts) == ("cosine", "margin", "standardised", "softmax")
    assert plain.ranked["cosine"].ranks.equal(asked(vlm).ranked["cosine"].ranks)
    assert shares_draws(vlm.without_posterior()) == "there is no posterior"
    assert shares_draws(vlm) == ""


def test_an_exact_posterior_shares_no_draws(vlm: BayesVLM) -> None:
    exact = vlm.replace(structure="exact")
    found = asked(exact, hold_out(sides()[2]))
    assert shares_draws(exact)
    assert tuple(found.ranked) == RANKINGS[:-1]
    assert "p_best" not in found.held
    mean = exact.similarity(*sides()[1::-1]).mean.T
    assert found.ranked["expected cosine"].ranks[:, 0].tolist() == first_ranks(mean, sides()[2])


def test_a_collection_of_one(vlm: BayesVLM) -> None:
    texts, images, _ = sides()
    with pytest.raises(BayesVLMError, match="A collection of 1 items"):
        search(vlm, texts, images[:1], Relevance.of([[0]] * TEXTS, 1), "text")


def test_what_is_level_with_the_last_of_the_best_gains_nothing_from_their_new_order() -> None:
    """Items 1, 2 and 3 are copies, of which two are among the best few."""
    from bayesvlm.experiments.caption_search import _Best, _reordered

    scores = torch.tensor([[0.9, 0.5, 0.5, 0.5, 0.1]]).double()
    best = _Best(torch.tensor([[0, 1, 3]]), torch.tensor([[0.2, 0.5, 0.3]]).double())
    order = _reordered(scores, best)[0]
    assert order[1] > order[3] > order[0] > order[4]
    assert order[2] == order[1], "it could have been taken in the place of either, and the better counts against"
