"""Retrieval metrics by brute force and against torchmetrics; areas and their bootstrap; queries without an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import sklearn.metrics
import torch
from torch import Tensor
from torchmetrics.retrieval import RetrievalHitRate, RetrievalRPrecision

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.evaluation import (
    Detection,
    Doubted,
    Ranked,
    Relevance,
    aurc,
    compare_areas,
    detection,
    flat_cut_off,
    hold_out,
    risk_coverage_area,
)
from bayesvlm.evaluation.retrieval import other_half_cut_offs

from .references import generator


def searched(queries: int = 40, items: int = 60, seed: int = 0) -> tuple[Tensor, Relevance]:
    """Scores without ties, and one to six items that answer each query, which score a little higher."""
    draws = generator(seed)
    lists = [torch.randperm(items, generator=draws)[: 1 + query % 6].tolist() for query in range(queries)]
    scores = torch.randn(queries, items, generator=draws, dtype=torch.float64)
    for query, rows in enumerate(lists):
        scores[query, rows] += 1.5
    return scores, Relevance.of(lists, items)


def ranked(scores: Tensor, relevant: Relevance) -> Ranked:
    return Ranked.of(scores, relevant.padded(slice(None)))


def by_hand(scores: Tensor, rows: Sequence[int]) -> dict[str, float]:
    """Of one query, item after item down the list; what does not answer goes before its equals."""
    order = sorted(range(len(scores)), key=lambda item: (-float(scores[item]), item in rows))
    hits = [item in rows for item in order]
    size = len(rows)
    precisions = [sum(hits[: k + 1]) / (k + 1) for k in range(size) if hits[k]]
    return {
        "recall@1": float(hits[0]),
        "recall@5": float(any(hits[:5])),
        "r": sum(hits[:size]) / size,
        "map": sum(precisions) / size,
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("ties", [False, True])
def test_every_metric_by_hand(dtype: torch.dtype, ties: bool) -> None:
    scores, relevant = searched()
    scores = (scores.round() if ties else scores).to(dtype)
    found = ranked(scores, relevant)
    expected = [by_hand(*pair) for pair in zip(scores, relevant.lists(), strict=True)]
    metrics = {
        "recall@1": found.recall(1),
        "recall@5": found.recall(5),
        "r": found.r_precision(),
        "map": found.map_at_r(),
    }
    for name, estimate in metrics.items():
        values = torch.tensor([each[name] for each in expected], dtype=torch.float64)
        assert estimate.value == pytest.approx(float(values.mean()), abs=1e-12)
        assert estimate.standard_error == pytest.approx(float(values.std()) / len(values) ** 0.5, abs=1e-12)


def test_against_torchmetrics() -> None:
    scores, relevant = searched(seed=1)
    target = torch.zeros(scores.shape, dtype=torch.bool)
    for query, rows in enumerate(relevant.lists()):
        target[query, rows] = True
    indexes = torch.arange(len(scores))[:, None].expand_as(scores).reshape(-1)
    asked: tuple[Any, ...] = (scores.float().reshape(-1), target.reshape(-1))
    found = ranked(scores.float(), relevant)
    for k in (1, 5, 10):
        assert found.recall(k).value == pytest.approx(float(RetrievalHitRate(top_k=k)(*asked, indexes=indexes)))
    assert found.r_precision().value == pytest.approx(float(RetrievalRPrecision()(*asked, indexes=indexes)))


def test_a_score_that_makes_everything_equal_earns_nothing() -> None:
    found = Ranked.of(torch.zeros(2, 5), torch.tensor([[1, 3], [0, -1]]))
    assert found.ranks.tolist() == [[4, 5], [5, float("inf")]]
    assert found.recall(1).value == found.r_precision().value == found.map_at_r().value == 0


def test_blocks_of_queries_are_as_all_at_once() -> None:
    scores, relevant = searched()
    parts = [Ranked.of(scores[rows], relevant.padded(rows)) for rows in (slice(0, 1), slice(1, 17), slice(17, 40))]
    whole, joined = ranked(scores, relevant), Ranked.concatenate(parts)
    assert joined.ranks.equal(whole.ranks)
    assert joined.scores.equal(whole.scores)
    assert joined.counts.equal(relevant.counts)


def test_queries_that_nothing_answers_are_not_counted() -> None:
    scores, relevant = searched()
    some = ranked(scores[:10], Relevance.of(relevant.lists()[:10], 60))
    more = ranked(scores[:12], Relevance.of([*relevant.lists()[:10], [], []], 60))
    assert more.map_at_r() == some.map_at_r()
    with pytest.raises(BayesVLMError, match="Nothing answers any of the 3 queries"):
        ranked(scores[:3], Relevance.of([[], [], []], 60)).recall(1)
    with pytest.raises(BayesVLMError, match="hold NaN"):
        ranked(scores * torch.nan, relevant)


def test_items_below_a_cut_off_are_not_found_but_count() -> None:
    scores, relevant = searched()
    found, cut_off = ranked(scores, relevant), torch.full((40,), 1.0)
    cut = found.above(cut_off)
    own = relevant.padded(slice(None))
    shown = (scores.gather(1, own.clamp(min=0)) >= 1) & (own >= 0)
    assert (cut.ranks < torch.inf).sum(dim=1).equal(shown.sum(dim=1))
    assert cut.counts.equal(found.counts)
    assert cut.recall(60).value < found.recall(60).value == 1


# ----------------------------------------------------------------------------------------------------------- relevance


def test_relevance_both_ways() -> None:
    lists = [[4, 0, 4], [], [0], [2, 3]]
    relevant = Relevance.of(lists, 6)
    assert relevant.lists() == [[0, 4], [], [0], [2, 3]]
    assert relevant.padded(slice(0, 3)).tolist() == [[0, 4], [-1, -1], [0, -1]]
    assert relevant.padded(slice(1, 2)).shape == (1, 0)
    back = relevant.transposed()
    assert back.lists() == [[0, 2], [], [3], [3], [0], []]
    assert back.transposed().lists() == relevant.lists()
    assert relevant.among([2, 0], [4, 5, 0]).lists() == [[2], [0, 2]]
    groups = relevant.groups().tolist()
    assert groups[0] == groups[2]
    assert len(set(groups)) == 3
    with pytest.raises(BayesVLMError, match="Item 6 answers query 1; the 6 items"):
        Relevance.of([[0], [6]], 6)


@pytest.mark.parametrize("seed", range(5))
def test_who_loses_an_item_loses_all(seed: int) -> None:
    draws = generator(seed)
    lists = [torch.randint(90, (1 + query % 2,), generator=draws).tolist() for query in range(60)] + [[]]
    relevant = Relevance.of(lists, 100)
    found = hold_out(relevant, 0.5, seed)
    for rows, answerable in zip(relevant.lists(), found.answerable.tolist(), strict=True):
        assert found.kept[rows].all() if answerable else not rows or not found.kept[rows].any()
    assert found.kept[90:].all()
    assert not found.answerable[-1]
    assert 0 < int(found.answerable.sum()) < 60


def test_how_many_are_held_out() -> None:
    found = hold_out(Relevance.of([[row] for row in range(100)], 100), 0.3)
    assert int(found.answerable.sum()) == int(found.kept.sum()) == 70
    with pytest.raises(BayesVLMError, match="All 3 queries share items"):
        hold_out(Relevance.of([[0, 1], [1, 2], [2]], 3))


# ---------------------------------------------------------------------------------------------------- risk and coverage


def answers(queries: int, seed: int, ties: bool) -> Doubted:
    draws = generator(seed)
    correct = torch.rand(queries, generator=draws) < 0.6
    doubt = torch.randn(queries, generator=draws, dtype=torch.float64) - correct.double()
    return Doubted(doubt.round() if ties else doubt, correct)


@pytest.mark.parametrize("ties", [False, True])
def test_areas_of_resamples_by_repeating_the_queries(ties: bool) -> None:
    found = answers(50, 3, ties)
    estimate = risk_coverage_area(found, resamples=40, seed=7)
    assert estimate.value == pytest.approx(aurc(*found), abs=1e-12)
    rows = torch.randint(50, (40, 50), generator=generator(7))
    areas = torch.tensor([aurc(found.doubt[drawn], found.correct[drawn]) for drawn in rows])
    assert estimate.standard_error == pytest.approx(float(areas.std()), rel=1e-6)


def test_the_standard_error_is_that_of_fresh_queries() -> None:
    """Against the spread of areas over 300 sets of fresh queries, which is itself known to about 4 %."""
    fresh = torch.tensor([aurc(*answers(400, seed, ties=False)) for seed in range(300)])
    told = torch.tensor([risk_coverage_area(answers(400, seed, False), 200).standard_error for seed in range(20)])
    assert float(told.mean()) == pytest.approx(float(fresh.std()), rel=0.2)


def test_the_difference_of_two_areas() -> None:
    good = answers(300, 0, ties=False)
    noise = Doubted(torch.randn(300, generator=generator(1)), good.correct)
    found = compare_areas(good, noise)
    assert found.difference == pytest.approx(aurc(*good) - aurc(*noise))
    assert found.low < found.difference < found.high < 0
    assert found.p < 0.05
    assert found.standard_error > 0
    same = compare_areas(good, good)
    assert (same.difference, same.standard_error, same.p) == (0, 0, 1)
    with pytest.raises(BayesVLMError, match="300 answers and 200"):
        compare_areas(good, Doubted(good.doubt[:200], good.correct[:200]))


# -------------------------------------------------------------------------------------- queries that nothing answers


def test_detection_against_scikit_learn() -> None:
    draws = generator(0)
    answerable = torch.rand(2000, generator=draws) < 0.5
    scores = torch.randn(2000, generator=draws, dtype=torch.float64) + 1.5 * answerable
    found = detection(scores, answerable)
    assert isinstance(found, Detection)
    assert found.auroc == pytest.approx(sklearn.metrics.roc_auc_score(answerable, scores))
    false, true, _ = sklearn.metrics.roc_curve(answerable, scores, drop_intermediate=False)
    assert found.false_answers == pytest.approx(min(f for f, t in zip(false, true, strict=True) if t >= 0.95))
    assert found.auroc_interval[0] < found.auroc < found.auroc_interval[1]
    assert found.false_answers_interval[0] <= found.false_answers <= found.false_answers_interval[1]
    # a cut-off from 500 queries keeps 95 % of others within four standard errors of both halves
    assert found.kept.value == pytest.approx(0.95, abs=4 * (0.95 * 0.05 / 250) ** 0.5)
    assert found.falsely_answered.value == pytest.approx(found.false_answers, abs=0.15)


def test_cut_offs_come_from_the_other_half() -> None:
    draws = generator(2)
    scores = torch.randn(41, generator=draws, dtype=torch.float64)
    answerable = torch.arange(41) % 3 > 0
    found = other_half_cut_offs(scores, answerable)
    sides = found.unique()
    assert len(sides) == 2
    for value in sides:
        other = scores[answerable & (found != value)]
        assert float(value) == flat_cut_off(other)


def test_a_flat_cut_off_keeps_what_it_should() -> None:
    scores = torch.arange(100.0)
    for kept in (0.5, 0.95, 1.0):
        cut_off = flat_cut_off(scores, kept)
        assert float((scores >= cut_off).double().mean()) >= kept
        assert float((scores >= cut_off + 1).double().mean()) < kept
    assert flat_cut_off(torch.arange(19.0)) == 0
    with pytest.raises(BayesVLMError, match=r"kept=1\.5"):
        flat_cut_off(scores, 1.5)
    with pytest.raises(BayesVLMError, match="1 queries have a match"):
        other_half_cut_offs(torch.arange(3.0), torch.tensor([True, False, False]))
