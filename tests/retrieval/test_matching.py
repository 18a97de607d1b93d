"""Whether anything matches: the guarantee by simulation, the probability of a match, what an index does with both."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from scipy.stats import betabinom, chisquare
from torch import Tensor

from bayesvlm import BayesVLM, BayesVLMError, Features
from bayesvlm.core.errors import BayesVLMWarning

from .conftest import P_TEXT, P, draw, model

if TYPE_CHECKING:
    from bayesvlm.retrieval import Calibration, Index

pytest.importorskip("lancedb", reason="an index is kept in LanceDB (extra retrieval), which is not installed")
Make = Callable[..., "Index"]
ITEMS = 60


def best_cosines(vlm: BayesVLM, queries: Features, items: Features) -> Tensor:  # [Q] float64
    """The highest expected cosine, of all pairs."""
    text, image = vlm.embed_texts(queries), vlm.embed_images(items)
    g, h = text.mean.double() / text.expected_norm[:, None], image.mean.double() / image.expected_norm[:, None]
    return (g @ h.T).amax(dim=1)


def own_variance(vlm: BayesVLM, queries: Features) -> Tensor:  # [Q] float64
    """The share of the expected squared length that is variance."""
    embedded = vlm.embed_texts(queries)
    return 1 - (embedded.mean.double().norm(dim=1) / embedded.expected_norm.double()).square()


def calibration(scores: Tensor, variances: Tensor, error: float) -> Calibration:
    from bayesvlm.retrieval import Calibration
    from bayesvlm.retrieval.matching import Asked, MatchModel

    of, none = Asked(scores, variances), Asked.of([], [])
    return Calibration(error, of, none, none, MatchModel(0.0, 1.0, 0.0, 2, 1), "text", ITEMS)


def turned_away(scores: Tensor, variances: Tensor, n: int, error: float) -> int:
    """Of queries beyond the first n, which calibrate."""
    of = calibration(scores[:n], variances[:n], error)
    new = zip(scores[n:].tolist(), variances[n:].tolist(), strict=True)
    return sum(not of.judged(score, variance).matches for score, variance in new)


def rank_p_value(scores: list[float], variances: list[float]) -> float:
    """Of the last query, by counting."""
    signs = []
    for score, variance in zip(scores, variances, strict=True):
        low, uncertain = sum(other <= score for other in scores), sum(other >= variance for other in variances)
        signs.append(min(low, 4 * uncertain))
    return sum(sign <= signs[-1] for sign in signs) / len(signs)


# The guarantee --------------------------------------------------------------------------------------------------------


def test_the_p_value_is_a_count_of_ranks() -> None:
    generator = torch.Generator().manual_seed(0)
    for n, values in ((5, 4), (19, 8), (60, 1000)):  # many ties, some, hardly any
        scores, variances = (torch.randint(values, (2, n + 30), generator=generator) / values).double()
        found = calibration(scores[:n], variances[:n], 0.2)
        for score, variance in zip(scores[n:].tolist(), variances[n:].tolist(), strict=True):
            judged = found.judged(score, variance)
            expected = rank_p_value([*scores[:n].tolist(), score], [*variances[:n].tolist(), variance])
            assert judged.p_value == pytest.approx(expected, abs=1e-12)
            assert judged.matches == (expected > 0.2 + 1e-12)
            rarer = (1 + sum(other >= variance for other in variances[:n].tolist())) / (n + 1)
            assert judged.query_p_value == pytest.approx(rarer, abs=1e-12)


@pytest.mark.parametrize(("n", "error"), [(19, 0.05), (59, 0.05), (47, 0.1)])
def test_queries_with_a_match_are_turned_away_as_often_as_is_known_exactly(
    vlm: BayesVLM, images: Features, n: int, error: float
) -> None:
    """Queries of equal variance, drawn anew for 300 calibrations: of 40 fresh ones a beta-binomial number is."""
    trials, fresh = 300, 40
    generator = torch.Generator().manual_seed(n)
    queries = Features(torch.randn(trials * (n + fresh), P_TEXT, generator=generator) + 0.2)
    scores = best_cosines(vlm, queries, images).reshape(trials, n + fresh)
    counts = torch.tensor([turned_away(of, torch.ones(n + fresh), n, error) for of in scores])
    place = math.floor((n + 1) * error + 1e-9)
    law = betabinom(fresh, place, n + 1 - place)
    assert abs(float(counts.double().mean()) - law.mean()) < 5 * law.std() / trials**0.5
    assert law.mean() / fresh <= error
    edges = [0, 1, 2, 4, 8, fresh + 1]  # counts from each up to the next
    expected = np.diff(law.cdf(np.array(edges) - 1)) * trials
    found = [int(((counts >= low) & (counts < high)).sum()) for low, high in pairwise(edges)]
    assert chisquare(found, expected).pvalue > 1e-4, f"{found} for {expected.round(1)}"


@pytest.mark.parametrize(("n", "error"), [(39, 0.05), (99, 0.1)])
def test_no_more_are_turned_away_where_variances_differ(vlm: BayesVLM, images: Features, n: int, error: float) -> None:
    """Both signs at once, however they depend on each other. The mean of 300 calibrations with 40 fresh queries each
    has a standard deviation of at most that of the beta-binomial law."""
    trials, fresh = 300, 40
    generator = torch.Generator().manual_seed(n)
    size = 0.2 + 2 * torch.rand(trials * (n + fresh), 1, generator=generator)
    queries = Features(size * torch.randn(trials * (n + fresh), P_TEXT, generator=generator) + 0.2)
    variances = own_variance(vlm, queries)
    assert float(variances.max() / variances.min()) > 1.5
    both = best_cosines(vlm, queries, images), variances
    scores, variances = (of.reshape(trials, n + fresh) for of in both)
    rate = sum(turned_away(*of, n, error) for of in zip(scores, variances, strict=True)) / (trials * fresh)
    place = math.floor((n + 1) * error + 1e-9)
    spread = betabinom(fresh, place, n + 1 - place).std() / fresh / trials**0.5
    assert error / 2 < rate < error + 5 * spread


def test_ties_are_no_excuse() -> None:
    """Scores and variances of three values: no more than the error rate, on average over 400 calibrations."""
    generator, error, n, fresh = torch.Generator().manual_seed(1), 0.2, 24, 50
    rates = []
    for _ in range(400):
        shares = torch.tensor([0.15, 0.35, 0.5])
        scores, variances = (torch.multinomial(shares, n + fresh, True, generator=generator).double() for _ in "sv")
        rates.append(turned_away(scores, -variances, n, error) / fresh)
    assert 0.02 < sum(rates) / len(rates) < error, "something is turned away, and not too much"
    assert turned_away(torch.ones(n + fresh).double(), torch.ones(n + fresh), n, error) == 0


def test_a_query_in_unknown_words_is_turned_away_whatever_it_finds() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, variances = torch.rand(2, 200, generator=generator, dtype=torch.float64)
    found = calibration(scores, variances, 0.05)
    assert found.judged(1.0, 0.5).matches
    assert not found.judged(1.0, 2.0).matches
    assert not found.judged(-1.0, 0.5).matches
    assert found.judged(1.0, 2.0).query_p_value == pytest.approx(1 / 201)


def test_another_error_rate_searches_nothing_again() -> None:
    values = torch.linspace(0, 1, 99, dtype=torch.float64)
    of = calibration(values, values, 0.05)
    assert of.with_error(0.1).error == 0.1
    assert of.with_error(0.1).matched is of.matched
    with pytest.raises(BayesVLMError, match=r"99 queries .* an error of 0.001 needs 999"):
        of.with_error(0.001)


# The probability of a match -------------------------------------------------------------------------------------------


def test_the_model_is_that_of_scikit_learn() -> None:
    from sklearn.linear_model import LogisticRegression

    from bayesvlm.retrieval.matching import MatchModel

    generator = torch.Generator().manual_seed(0)
    cosine = torch.rand(400, generator=generator, dtype=torch.float64)
    std = 0.02 + 0.03 * torch.rand(400, generator=generator, dtype=torch.float64)
    relevant = torch.rand(400, generator=generator) < torch.sigmoid(12 * cosine - 60 * std - 5)
    features = torch.stack([cosine, std], dim=1).numpy()
    scaled = (features - features.mean(axis=0)) / features.std(axis=0)
    oracle = LogisticRegression(C=1.0, tol=1e-10, max_iter=1000).fit(scaled, relevant.numpy())
    mine = MatchModel.fit(cosine, std, relevant)
    np.testing.assert_allclose(mine(cosine, std).numpy(), oracle.predict_proba(scaled)[:, 1], atol=1e-5)
    assert (mine.hits, mine.relevant) == (400, int(relevant.sum()))


@pytest.mark.parametrize("kind", ["apart", "no spread", "one"])
def test_the_model_is_finite_where_the_data_are_extreme(kind: str) -> None:
    from bayesvlm.retrieval.matching import MatchModel

    cosine = torch.cat([torch.full((30,), 0.1), torch.full((30,), 0.9)]).double()
    std = torch.full((60,), 0.03).double() if kind != "apart" else cosine / 10
    relevant = cosine > 0.5 if kind != "one" else torch.arange(60) == 59
    found = MatchModel.fit(cosine, std, relevant)
    p = found(cosine, std)
    assert all(map(math.isfinite, (found.intercept, found.by_cosine, found.by_std)))
    assert bool(((p > 0) & (p < 1)).all())
    assert float(p.mean()) == pytest.approx(float(relevant.double().mean()), abs=1e-6)  # as the likelihood has it


# In an index ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def asked() -> tuple[Features, list[list[str]]]:
    """Sixty queries: a third has nothing relevant, a third one item, the rest two."""
    queries = Features(torch.randn(60, P_TEXT, generator=torch.Generator().manual_seed(3)))
    relevant = [[f"item {place % 30}", f"item {place % 7 + 31}"][: place % 3] for place in range(60)]
    return queries, relevant


def test_what_is_kept_is_what_brute_force_finds(
    make: Make, vlm: BayesVLM, images: Features, asked: tuple[Features, list[list[str]]]
) -> None:
    queries, relevant = asked
    index = make()
    assert index.calibration is None
    assert index.calibrate(queries, relevant, error=0.1) is index
    found = index.calibration
    assert found is not None
    scores, variances = best_cosines(vlm, queries, images), own_variance(vlm, queries)
    matched = torch.tensor([bool(own) for own in relevant])
    for asked_of, rows in ((found.matched, matched), (found.nothing, ~matched)):
        torch.testing.assert_close(asked_of.score, scores[rows], atol=1e-6, rtol=0)
        torch.testing.assert_close(asked_of.variance, variances[rows], atol=1e-6, rtol=0)
    without = []
    for place, own in enumerate(relevant):
        rest = [row for row in range(ITEMS) if f"item {row}" not in own]
        if own:
            without.append(best_cosines(vlm, queries[place : place + 1], images[rest])[0])
    torch.testing.assert_close(found.without.score, torch.stack(without), atol=1e-6, rtol=0)
    torch.testing.assert_close(found.without.variance, variances[matched], atol=1e-6, rtol=0)
    assert found.rows == ITEMS
    assert found.model is not None
    assert found.model.hits == 60 * 20
    for made, of in ((False, found.nothing), (True, found.without)):
        p = [
            rank_p_value([*found.matched.score.tolist(), score], [*found.matched.variance.tolist(), variance])
            for score, variance in zip(of.score.tolist(), of.variance.tolist(), strict=True)
        ]
        np.testing.assert_allclose(found.p_values(of).numpy(), p, atol=1e-12)
        assert found.false_answers(made) == pytest.approx(sum(each > 0.1 + 1e-12 for each in p) / len(p))
    from bayesvlm.retrieval.matching import COUNTED

    assert len(found.nothing) >= COUNTED
    assert found.false_answers() == found.false_answers(False)
    assert (found.counted, found.counted_made) == (len(found.nothing), False)


def test_a_few_queries_without_a_match_are_not_counted_on(make: Make) -> None:
    """Of two of them that are turned away nobody can say that none is answered."""
    queries = Features(torch.randn(42, P_TEXT, generator=torch.Generator().manual_seed(3)))
    relevant = [*(f"item {place}" for place in range(40)), [], []]
    found = make().calibrate(queries, relevant, error=0.1).calibration
    assert found is not None
    assert len(found.nothing) == 2
    assert found.false_answers() == found.false_answers(True) != found.false_answers(False)
    assert (found.summary()["false_answers_of"], found.summary()["false_answers_made"]) == (40, True)
    assert "of 40 queries without one, made by taking the matches of these away" in repr(found)
    assert "of 2 without a match" in found._repr_html_()
    assert "of 40 whose matches were taken away" in found._repr_html_()


def test_items_that_are_others_now(make: Make, asked: tuple[Features, list[list[str]]]) -> None:
    """As many as there were, and most of them others: what was promised was of those that have gone."""
    from bayesvlm.retrieval import Index

    index = make().calibrate(*asked, error=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        index.add(draw(ITEMS, P, 1), [f"item {place}" for place in range(ITEMS)], existing="replace")  # the same
        index.search(asked[0][:1])
    index.delete([f"item {place}" for place in range(20)])
    index.add(draw(20, P, 5), [f"new {place}" for place in range(20)])
    said = "has about 67% of the 60 items that it was calibrated on as they were"
    for opened in (index, Index.open(index.place)):
        with pytest.warns(BayesVLMWarning, match=said):
            opened.search(asked[0][:1])
    index.add(draw(40, P, 6), [f"item {place}" for place in range(20, 60)], existing="replace")
    with pytest.warns(BayesVLMWarning, match="has about 0%"):
        index.search(asked[0][:1])


def test_items_are_looked_for_once_in_each_state(
    make: Make, asked: tuple[Features, list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from bayesvlm.retrieval import remaining

    index, looked, share = make().calibrate(*asked, error=0.1), [], remaining._share
    monkeypatch.setattr(remaining, "SAMPLE", 10)
    monkeypatch.setattr(remaining, "_share", lambda *of: looked.append(of) or share(*of))
    assert len(remaining.sample(index._store)) == 10
    for _ in range(3):
        index.search(asked[0][:2])
    assert len(looked) == 1
    index.delete("item 1")
    index.search(asked[0][:2])
    assert len(looked) == 2


def test_a_calibration_that_was_made_elsewhere(make: Make, asked: tuple[Features, list[list[str]]]) -> None:
    from bayesvlm.retrieval import Index

    index = make()
    other = Index.open(index.place).calibrate(*asked, error=0.1)
    assert index.search(asked[0][:1])[0].matches is None
    assert index.refresh() is index
    assert index.search(asked[0][:1])[0].p_value == other.search(asked[0][:1])[0].p_value
    other.calibrate(*asked, error=0.2)
    assert index.refresh().calibration is not None
    assert index.calibration.error == 0.2  # type: ignore[union-attr]
    Index.create(index.place, index.vlm, overwrite=True)
    with pytest.raises(BayesVLMError, match="made anew since it was opened"):
        index.refresh()


def test_searches_say_so_and_again_after_opening(
    make: Make, vlm: BayesVLM, images: Features, asked: tuple[Features, list[list[str]]]
) -> None:
    queries, relevant = asked
    index = make().calibrate(queries, relevant, error=0.1)
    new = Features(torch.randn(25, P_TEXT, generator=torch.Generator().manual_seed(9)))
    rows = [bool(own) for own in relevant]
    then = best_cosines(vlm, queries, images)[rows].tolist(), own_variance(vlm, queries)[rows].tolist()
    now = best_cosines(vlm, new, images).tolist(), own_variance(vlm, new).tolist()
    expected = [rank_p_value([*then[0], score], [*then[1], variance]) for score, variance in zip(*now, strict=True)]
    from bayesvlm.retrieval import Index

    for opened in (index, Index.open(index.place, vlm)):
        for k in (1, 5, 30):  # the decision does not depend on how many are asked for
            for place, hits in enumerate(opened.search(new, k=k)):
                assert hits.p_value == pytest.approx(expected[place], abs=1e-12)
                assert hits.matches == (expected[place] > 0.1 + 1e-12)
                rarer = (1 + sum(other >= now[1][place] for other in then[1])) / 41
                assert hits.query_p_value == pytest.approx(rarer, abs=1e-12)
                assert hits.p_match is not None
                assert hits.p_match.shape == (k,)
                assert bool(((hits.p_match > 0) & (hits.p_match < 1)).all())
    for rank in ("lower", "upper"):
        again = [hits.p_value for hits in index.search(new, k=2, rank=rank)]
        assert again == pytest.approx(expected, abs=1e-12)


def test_what_it_says_nothing_of(make: Make, vlm: BayesVLM, asked: tuple[Features, list[list[str]]]) -> None:
    """Other kinds of queries, and parts of the collection."""
    queries, relevant = asked
    index = make(columns={"kind": ["a", "b"] * (ITEMS // 2)}).calibrate(queries, relevant, error=0.1)
    hits = index.search(draw(2, P, 5), tower="image")[0]
    assert (hits.matches, hits.p_value, hits.p_match, hits.query_p_value) == (None,) * 4
    vector = index.search(torch.ones(16))
    assert (vector.matches, vector.p_match) == (None, None)
    part = index.search(queries[:1], where={"kind": "a"})[0]
    assert (part.matches, part.p_value) == (None, None)
    assert part.p_match is not None, "of a hit it is known all the same"
    fewer = index.search(queries[:1], probes=1)[0]
    assert (fewer.matches, fewer.p_value) == (None, None), "looking into fewer parts finds worse than was calibrated on"


def test_images_and_vectors_calibrate_as_texts_do(make: Make) -> None:
    index, ids = make(), [f"item {place}" for place in range(30)]
    near = draw(ITEMS, P, 1)[:30].activations + 0.05 * torch.randn(30, P, generator=torch.Generator().manual_seed(2))
    index.calibrate(Features(near), ids, error=0.1, tower="image")
    assert index.calibration is not None
    assert index.calibration.tower == "image"
    assert index.search(Features(near), tower="image")[0].matches is not None
    vectors = index.vlm.embed_images(Features(near)).mean
    index.calibrate(vectors, ids, error=0.1)
    assert index.calibration.tower is None
    assert index.search(vectors[0]).matches is not None


def test_nothing_is_there_to_match_once_all_is_deleted(make: Make, asked: tuple[Features, list[list[str]]]) -> None:
    index = make().calibrate(*asked, error=0.1)
    index.delete([f"item {place}" for place in range(5)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        index.search(asked[0][:1])
    index.delete([f"item {place}" for place in range(5, ITEMS - 1)])
    with pytest.warns(BayesVLMWarning, match="has 1 of the 60 items that it was calibrated on"):
        index.search(asked[0][:1], k=1)
    index.delete([f"item {ITEMS - 1}"])
    with pytest.warns(BayesVLMWarning, match="has 0 of the 60 items"):
        hits = index.search(asked[0][:1])[0]
    assert (len(hits), hits.matches) == (0, False)
    assert hits.p_value == pytest.approx(1 / 41)


def test_items_that_are_added_turn_nobody_away(make: Make, asked: tuple[Features, list[list[str]]]) -> None:
    """Also such that are sure and no better: ten of them push what was best out of the first ten."""
    new = Features(torch.randn(25, P_TEXT, generator=torch.Generator().manual_seed(9)))
    index = make().calibrate(*asked, error=0.1)
    before = [hits.p_value for hits in index.search(new)]
    index.add(draw(ITEMS, P, 77), ids=[f"more {place}" for place in range(ITEMS)])
    after = [hits.p_value for hits in index.search(new)]
    assert all(now >= then for now, then in zip(after, before, strict=True))
    assert after != before


def test_memory_grows_with_the_answers_and_not_with_their_pairs(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    from bayesvlm.retrieval import searching

    together, joint = [], searching.query_cosines
    monkeypatch.setattr(searching, "query_cosines", lambda *of: together.append(len(of[2].mean)) or joint(*of))
    monkeypatch.setattr(searching, "JOINT", 25)
    queries = Features(torch.randn(40, P_TEXT, generator=torch.Generator().manual_seed(3)))
    index, relevant = make(), [[f"item {row}" for row in range(place % 2, ITEMS, 2)] for place in range(40)]
    index.calibrate(queries, relevant, error=0.1)
    assert not together, "with labels nothing is drawn"
    hits = index.search(queries[:1], k=50)[0]
    assert together == [25]
    assert hits.joint_covariance.shape == (25, 25)
    assert hits.p_best.shape == (50,)
    assert float(hits.p_best.sum()) == pytest.approx(1)
    assert not hits.p_best[25:].any()


def test_without_labels_the_least_consistent_are_flagged(make: Make, asked: tuple[Features, list[list[str]]]) -> None:
    queries, _ = asked
    index = make().calibrate(queries, None, error=0.25)
    found = index.calibration
    assert found is not None
    assert not found.labelled
    assert "without any guarantee" in repr(found)
    assert "no guarantee" in found._repr_html_()
    hits = index.search(queries, k=10)
    consistent = torch.tensor([each.self_consistency for each in hits], dtype=torch.float64)
    torch.testing.assert_close(consistent, found.matched.score, atol=5 / 512, rtol=0)  # of 512 draws, rounded
    assert 5 <= sum(not each.matches for each in hits) <= 15  # a quarter of these very queries, at most
    flagged = torch.tensor([not each.matches for each in hits])
    assert float(consistent[flagged].mean()) < float(consistent[~flagged].mean())
    assert hits[0].p_match is None
    assert found.false_answers() is None


def test_it_prints_what_it_promises(make: Make, asked: tuple[Features, list[list[str]]]) -> None:
    index = make().calibrate(*asked, error=0.1)
    said = repr(index.calibration)
    assert "at most 0.1 of queries that have a match" in said
    assert "40 queries on 60 items" in said
    assert index.calibration is not None
    assert "taken away" in index.calibration._repr_html_()
    assert index.info()["calibration"]["queries"] == 40
    assert json.loads(json.dumps(index.search(asked[0][:1])[0].to_json()))["matches"] in (True, False)


# What it refuses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda r: r[:-1], "59 entries of relevant for 60 queries"),
        (lambda r: "item 1", "relevant is 'item 1'; give an id"),
        (lambda r: [None, *r[1:]], r"relevant\[0\] is 'None'; give an id"),
        (lambda r: [[3], *r[1:]], r"relevant\[0\] is '\[3\]'"),
        (lambda r: [["nobody", "no one"], *r[1:]], "2 ids that the index does not have: 'no one', 'nobody'"),
        (lambda r: [own if place < 15 else [] for place, own in enumerate(r)], "There are 10 queries with something"),
        (lambda r: [[f"item {n}" for n in range(ITEMS)]] * 60, "Every hit of every query is relevant"),
    ],
)
def test_labels_that_do_not_fit(
    make: Make, asked: tuple[Features, list[list[str]]], change: Callable[..., object], sentence: str
) -> None:
    index = make()
    with pytest.raises(BayesVLMError, match=sentence):
        index.calibrate(asked[0], change(asked[1]), error=0.05)
    assert index.calibration is None


def test_too_few_queries_an_error_that_is_none_and_an_empty_index(
    make: Make, asked: tuple[Features, list[list[str]]]
) -> None:
    index, (queries, relevant) = make(), asked
    with pytest.raises(BayesVLMError, match=r"There are 40 queries .* an error of 0.01 needs 99 at least"):
        index.calibrate(queries, relevant, error=0.01)
    with pytest.raises(BayesVLMError, match=r"There are 60 queries to compare with, .* needs 99"):
        index.calibrate(queries, None, error=0.01)
    for error in (0, 1, -0.1, math.nan, "x", True):
        with pytest.raises(BayesVLMError, match="error"):
            index.calibrate(queries, relevant, error=error)  # type: ignore[arg-type]
    with pytest.raises(BayesVLMError, match="is empty, so there is nothing to calibrate"):
        make("other", count=0).calibrate(queries, None)
    first = index.search(queries[:1])[0].ids[0]
    with pytest.raises(BayesVLMError, match="All 30 queries score the same"):
        index.calibrate(Features(queries.activations[:1].repeat(30, 1)), [first] * 30)


def test_relevant_items_that_are_never_found_teach_nothing(make: Make, images: Features) -> None:
    index = make()
    queries = Features(torch.randn(30, P_TEXT, generator=torch.Generator().manual_seed(3)))
    last = [hits.ids[-1] for hits in index.search(queries, k=ITEMS)]
    with pytest.raises(BayesVLMError, match="None of the first 20 hits of any query is among what is relevant"):
        index.calibrate(queries, last)


def test_a_damaged_calibration_is_named(make: Make, vlm: BayesVLM, asked: tuple[Features, list[list[str]]]) -> None:
    from bayesvlm.retrieval import Index
    from bayesvlm.retrieval.matching import FILE

    index = make().calibrate(*asked, error=0.1)
    for content, sentence in ((b"{", "is damaged; calibrate again"), (b'{"schema": 9}', "schema 9")):
        index._store.put_files({FILE: content})
        with pytest.raises(BayesVLMError, match=sentence):
            Index.open(Path(index.place), vlm)


def test_an_index_made_anew_has_forgotten(make: Make, vlm: BayesVLM, asked: tuple[Features, list[list[str]]]) -> None:
    from bayesvlm.retrieval import Index

    index = make().calibrate(*asked, error=0.1)
    assert Index.create(index.place, model(), overwrite=True).calibration is None
    assert Index.open(index.place, vlm).calibration is None
