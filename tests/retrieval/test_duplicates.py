"""Near-duplicates of a list of items and of an index: against a double loop over `vlm.similarity`."""

from __future__ import annotations

import pickle
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from scipy.stats import norm

from bayesvlm import BayesVLM, BayesVLMError, Features, world
from bayesvlm.retrieval import Duplicates, Index, near_duplicates

N, COPIES = 40, 4


@pytest.fixture(scope="module")
def vlm() -> BayesVLM:
    generator = torch.Generator().manual_seed(0)
    made = BayesVLM.from_projections(
        torch.randn(8, 12, generator=generator), torch.randn(8, 10, generator=generator), 2.0
    )
    pairs = Features(torch.randn(60, 12, generator=generator)), Features(torch.randn(60, 10, generator=generator))
    return made.fit([pairs], progress=False).replace(lam={"image": 500.0, "text": 500.0})


@pytest.fixture(scope="module")
def items() -> Features:
    """Ten things with four versions each, some near and some not so near."""
    generator = torch.Generator().manual_seed(1)
    things = torch.randn(N // COPIES, 12, generator=generator).repeat_interleave(COPIES, dim=0)
    far = torch.rand(N, 1, generator=generator) * torch.randn(N, 12, generator=generator)
    order = torch.randperm(N, generator=generator)
    return Features((things + 0.5 * far)[order])


def by_loops(vlm: BayesVLM, items: Features, order: list[int], similarity: float, half: float, tower: Any) -> dict:
    """Of each place what is kept in its stead, by the rule in words."""
    moments = vlm.similarity(items, items, towers=(tower, tower))
    end = moments.mean + half * moments.std
    kept: dict[int, int] = {}
    for place in order:
        if place not in kept:
            kept[place] = place
            for other in order[order.index(place) + 1 :]:
                if other not in kept and end[place, other] >= similarity:
                    kept[other] = place
    return kept


def as_kept(found: Duplicates, count: int) -> dict[int, int]:
    kept = {place: place for place in range(count)}
    for group in found:
        for copy in group.copies:
            kept[int(copy.id)] = int(group.id)
    return kept


HALVES = [("upper", 1.0), ("mean", 0.0), ("lower", -1.0)]


@pytest.mark.parametrize(("by", "sign"), HALVES)
@pytest.mark.parametrize("level", [0.5, 0.99])
def test_groups_are_those_of_a_double_loop(vlm: BayesVLM, items: Features, by: Any, sign: float, level: float) -> None:
    half = sign * float(norm.ppf(0.5 + level / 2))
    found = near_duplicates(vlm, items, similarity=0.9, level=level, by=by)
    assert as_kept(found, N) == by_loops(vlm, items, list(range(N)), 0.9, half, "image")
    assert found.items == N
    assert 0 < found.copies == sum(len(group) - 1 for group in found) < N
    sizes = [len(group) for group in found]
    assert sizes == sorted(sizes, reverse=True)


def test_what_is_said_of_a_copy(vlm: BayesVLM, items: Features) -> None:
    moments = vlm.similarity(items, items, towers=("image", "image"))
    found = near_duplicates(vlm, items, similarity=0.9)
    for group in found:
        assert [copy.mean for copy in group.copies] == sorted((copy.mean for copy in group.copies), reverse=True)
        for copy in group.copies:
            kept, own = int(group.id), int(copy.id)
            mean, std = float(moments.mean[kept, own]), float(moments.std[kept, own])
            assert copy.mean == pytest.approx(mean, abs=1e-6)
            assert copy.std == pytest.approx(std, rel=2e-3), "whitened activations are kept in half precision"
            assert copy.p_similar == pytest.approx(norm.sf(0.9, copy.mean, copy.std), abs=1e-9)
            assert copy.interval[1] >= 0.9
            assert copy.path is None


def test_texts_are_compared_with_texts(vlm: BayesVLM) -> None:
    texts = Features(torch.randn(6, 10, generator=torch.Generator().manual_seed(4)).repeat(2, 1))
    found = near_duplicates(vlm, texts, [f"text {place}" for place in range(12)], similarity=0.99, tower="text")
    assert {(group.id, *(copy.id for copy in group.copies)) for group in found} == {
        (f"text {place}", f"text {place + 6}") for place in range(6)
    }


def test_what_is_preferred_is_kept(vlm: BayesVLM, items: Features) -> None:
    generator = torch.Generator().manual_seed(7)
    numbers = torch.randint(0, 5, (N,), generator=generator).tolist()
    order = sorted(range(N), key=lambda place: (-numbers[place], place))
    found = near_duplicates(vlm, items, similarity=0.9, by="mean", prefer=numbers)
    assert as_kept(found, N) == by_loops(vlm, items, order, 0.9, 0.0, "image")
    assert all(numbers[int(group.id)] >= numbers[int(copy.id)] for group in found for copy in group.copies)


def test_an_index_says_what_its_items_do(vlm: BayesVLM, items: Features, tmp_path: Path) -> None:
    pytest.importorskip("lancedb", reason="the extra `retrieval` is not installed")
    index = Index.create(tmp_path / "index", vlm)
    names = [f"{place:02d}" for place in range(N)]
    shuffled = torch.randperm(N, generator=torch.Generator().manual_seed(3)).tolist()
    size = [place % 7 for place in range(N)]
    for part in (shuffled[:25], shuffled[25:]):
        index.add(
            items[part],
            [names[place] for place in part],
            paths=[f"photos/{names[place]}.jpg" for place in part],
            columns={"size": [size[place] for place in part]},
        )
    direct = near_duplicates(vlm, items, names, similarity=0.9)
    found = near_duplicates(index, similarity=0.9)
    assert _ids(found) == _ids(direct)
    assert found[0].path == f"photos/{found[0].id}.jpg"
    assert found[0].copies[0].path == f"photos/{found[0].copies[0].id}.jpg"
    assert _ids(near_duplicates(index, similarity=0.9, prefer="size")) == _ids(
        near_duplicates(vlm, items, names, similarity=0.9, prefer=size)
    )
    some = near_duplicates(index, similarity=0.9, where={"size": ("<", 3)})
    assert some.items == sum(number < 3 for number in size)
    assert near_duplicates(index, where={"size": 99}).items == 0
    for asked, sentence in (
        ({"prefer": "weight"}, "no column 'weight'; the index has .*size"),
        ({"prefer": "path"}, "prefer='path' holds 'photos/.*must be a column of numbers"),
        ({"prefer": [1.0]}, "of an index it is the name of a column"),
        ({"items": items}, "An index is given and items beside it"),
    ):
        with pytest.raises(BayesVLMError, match=sentence):
            near_duplicates(index, **asked)  # type: ignore[call-overload]


def _ids(found: Duplicates) -> set[tuple[str, ...]]:
    return {(group.id, *sorted(copy.id for copy in group.copies)) for group in found}


def test_images_by_their_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without LanceDB: nothing is kept."""
    monkeypatch.setitem(sys.modules, "lancedb", None)
    vlm = BayesVLM.from_pretrained("emoji-clip", device="cpu")
    paths = []
    for place, image in enumerate(world.load("openmoji-black").images[:6]):
        paths.append(tmp_path / f"{place}.png")
        paths[-1].write_bytes(image)
    for place, name in ((2, "again.png"), (4, "squeezed.jpg")):
        Image.open(paths[place]).convert("RGB").save(tmp_path / name, quality=90)
        paths.append(tmp_path / name)
    found = near_duplicates(vlm, paths, similarity=0.98)
    groups = {(Path(group.id).name, *(Path(copy.path or "").name for copy in group.copies)) for group in found}
    assert groups == {("2.png", "again.png"), ("4.png", "squeezed.jpg")}
    exact = next(group for group in found if group.id == str(paths[2])).copies[0]
    assert exact.mean == pytest.approx(1, abs=1e-6)
    assert exact.std < 1e-6
    assert exact.p_similar == 1
    opened = [Image.open(BytesIO(path.read_bytes())) for path in paths]
    again = near_duplicates(vlm, iter(opened), similarity=0.98)
    assert {(group.id, *(copy.id for copy in group.copies)) for group in again} == {("2", "6"), ("4", "7")}


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"similarity": 1.0}, "similarity=1.0; a cosine that near-copies reach lies between -1 and 1"),
        ({"similarity": float("nan")}, "similarity=nan"),
        ({"similarity": "high"}, "similarity=high"),
        ({"level": 1.5}, "level=1.5; a credible level"),
        ({"by": "middle"}, "by='middle' is not known; use 'mean', 'lower' or 'upper'"),
        ({"ids": ["a"]}, "There are 1 ids for 40 items"),
        ({"prefer": [1.0]}, "a number for each of the 40 items"),
        ({"prefer": "size"}, "a number for each of the 40 items"),
        ({"tower": "image", "items": None}, "There is nothing to compare"),
    ],
)
def test_what_is_refused(vlm: BayesVLM, items: Features, asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        near_duplicates(vlm, asked.pop("items", items), **asked)


def test_an_exact_posterior_has_no_shape_to_share(vlm: BayesVLM, items: Features) -> None:
    with pytest.raises(BayesVLMError, match="use structure='damped'"):
        near_duplicates(vlm.replace(structure="exact"), items)


def test_they_print_and_pickle(vlm: BayesVLM, items: Features) -> None:
    found = near_duplicates(vlm, items, similarity=0.9)
    assert pickle.loads(pickle.dumps(found)) == found
    assert f"{found.copies} near-copies in {len(found)} groups, of 40 items" in repr(found)
    assert found[0].id in found._repr_html_()
    none = near_duplicates(vlm, items[:1])
    assert len(none) == none.copies == 0
    assert "0 groups" in none._repr_html_()
    assert found[:2] == (found[0], found[1])
