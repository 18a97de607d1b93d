"""The index of vectors: it is built where there are many rows, and misses almost nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bayesvlm import BayesVLM
from bayesvlm.retrieval import Hits, Index
from bayesvlm.retrieval import index as settings
from retrieval.conftest import P_TEXT, P, draw

ROWS = 4000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, vlm: BayesVLM) -> Index:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "ANN_ROWS", 3000)
        index = Index.create(tmp_path_factory.mktemp("large") / "index", vlm)
        index.add(draw(2500, P, 1), [f"item {place}" for place in range(2500)], columns={"even": [1, 0] * 1250})
        index.compact()
        assert index.info()["vector_index"] is None, "so few rows need none"
        index.add(draw(ROWS - 2500, P, 2), [f"item {place}" for place in range(2500, ROWS)])
        index.compact()
        assert index.info()["vector_index"] == {"kind": "IVF_RQ", "unindexed_rows": 0}
    return index


def recall(found: list[Hits], exact: list[Hits]) -> float:
    return sum(len(set(one.ids) & set(other.ids)) for one, other in zip(found, exact, strict=True)) / sum(
        map(len, exact)
    )


def test_it_finds_what_looking_at_every_row_finds(large: Index) -> None:
    asked = draw(60, P_TEXT, 3)
    found, exact = large.search(asked), large.search(asked, exact=True)
    assert recall(found, exact) >= 0.98, "16 coordinates of 5 bits each: fewer than any model has"
    for one, other in zip(found, exact, strict=True):
        both = [(one.ids.index(each), other.ids.index(each)) for each in one.ids if each in other.ids]
        here, there = (torch.tensor(places) for places in zip(*both, strict=True))
        torch.testing.assert_close(one.mean[here], other.mean[there], atol=1e-6, rtol=0)
        torch.testing.assert_close(one.std[here], other.std[there], atol=1e-6, rtol=0)


def test_embeddings_of_any_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes of some bits per coordinate are made of widths that 8 divides; others have an index of another kind."""
    monkeypatch.setattr(settings, "ANN_ROWS", 3000)
    generator = torch.Generator().manual_seed(0)
    image, text = (torch.randn(20, width, generator=generator) / width**0.5 for width in (P, P_TEXT))
    vlm = BayesVLM.from_projections(image, text, 3.0)
    vlm.fit([(draw(64, P, 1), draw(64, P_TEXT, 2))], negatives=64, progress=False)
    index = Index.create(tmp_path / "index", vlm)
    index.add(draw(ROWS - 1, P, 1), [f"item {place}" for place in range(ROWS - 1)])
    index.compact()
    index.add(draw(1, P, 99), ["fresh"])
    index.compact()
    assert index.info()["vector_index"] == {"kind": "IVF_SQ", "unindexed_rows": 0}
    asked = draw(60, P_TEXT, 3)
    assert recall(index.search(asked), index.search(asked, exact=True)) >= 0.98
    assert index.search(draw(1, P, 99), k=1, tower="image")[0].ids == ("fresh",)


def test_exact_is_brute_force(large: Index, vlm: BayesVLM) -> None:
    asked = draw(20, P_TEXT, 5)
    items = [vlm.posterior["image"].embed(part) for part in (draw(2500, P, 1), draw(ROWS - 2500, P, 2))]
    scaled = torch.cat([each.mean / each.expected_norm[:, None] for each in items])
    texts = vlm.posterior["text"].embed(asked)
    cosines = (texts.mean / texts.expected_norm[:, None]) @ scaled.T
    for row, hits in enumerate(large.search(asked, exact=True)):
        torch.testing.assert_close(hits.mean, cosines[row].topk(10).values.double(), atol=1e-5, rtol=0)


def test_conditions_and_fewer_parts(large: Index) -> None:
    asked = draw(30, P_TEXT, 4)
    found, exact = (large.search(asked, where={"even": 1}, exact=exact) for exact in (False, True))
    assert all(value == 1 for hits in found for value in hits.columns["even"])
    assert recall(found, exact) >= 0.98
    assert len(large.search(asked[:1], where={"id": "item 17"})[0]) == 1, "one row in 4,000 is found"
    assert len(large.search(asked[:1], probes=1)[0]) == 10


def test_rows_that_came_later_are_found_before_and_after_they_are_indexed(
    tmp_path: Path, vlm: BayesVLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "ANN_ROWS", 500)
    index = Index.create(tmp_path / "index", vlm)
    index.add(draw(600, P, 1), [f"item {place}" for place in range(600)])
    index.compact()
    fresh = draw(1, P, 99)
    index.add(fresh, ["fresh"])
    assert index.info()["vector_index"]["unindexed_rows"] == 1
    for _ in range(2):
        hits = index.search(fresh, k=3, tower="image")[0]
        assert hits.ids[0] == "fresh"
        index.compact()
        assert index.info()["vector_index"]["unindexed_rows"] == 0
    index.add(draw(1, P, 98), ["fresh"], existing="replace")
    hits = index.search(fresh, k=601, tower="image")[0]
    assert hits.ids.count("fresh") == 1
    assert float(hits.mean[hits.ids.index("fresh")]) < 0.999
    assert index.delete("fresh") == 1
    assert "fresh" not in index.search(fresh, k=600, tower="image")[0].ids
