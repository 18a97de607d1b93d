"""Whatever somebody asks: what it is taken for, and what is refused."""

from __future__ import annotations

import io
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bayesvlm import BayesVLM, Features
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.retrieval import Hits, Index
from retrieval.conftest import P_TEXT, P, draw

pytestmark = pytest.mark.filterwarnings("ignore:k is")


@pytest.fixture(scope="module")
def drawings(tmp_path_factory: pytest.TempPathFactory, emoji: BayesVLM) -> Index:
    from bayesvlm import world

    index = Index.create(tmp_path_factory.mktemp("drawings") / "index", emoji)
    index.add(world.load("openmoji-black").images[:40], [f"drawing {place}" for place in range(40)])
    return index


def picture() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))


def as_bytes() -> bytes:
    file = io.BytesIO()
    picture().save(file, "png")
    return file.getvalue()


def test_one_picture_in_every_form(drawings: Index, tmp_path: Path) -> None:
    path = tmp_path / "it's.png"
    path.write_bytes(as_bytes())
    one = drawings.search(picture(), k=3)
    assert isinstance(one, Hits)
    forms = [path, as_bytes(), io.BytesIO(as_bytes()), np.asarray(picture()), torch.from_numpy(np.array(picture()))]
    for form in forms:
        found = drawings.search(form, k=3)
        assert found.ids == one.ids, type(form)
        torch.testing.assert_close(found.mean, one.mean, atol=1e-5, rtol=0)
    assert drawings.search(str(path), k=3, tower="image").ids == one.ids
    for several in ([picture(), path], np.stack([np.asarray(picture())] * 2), (picture() for _ in range(2))):
        assert [found.ids for found in drawings.search(several, k=3)] == [one.ids] * 2
    assert drawings.search(path, k=1).query == str(path)


def test_texts_one_and_many(drawings: Index) -> None:
    one = drawings.search("grinning face", k=3)
    assert one.query == "grinning face"
    for several in (["grinning face"], ("grinning face",), np.array(["grinning face"]), iter(["grinning face"])):
        (found,) = drawings.search(several, k=3)
        assert found.ids == one.ids
        assert found.query == "grinning face"
        assert type(found.query) is str


def test_vectors_in_every_form(make: Callable[..., Index]) -> None:
    index = make()
    vector = np.linspace(-1, 1, 16)
    one = index.search(vector, k=4)
    assert isinstance(one, Hits)
    for form in (vector.tolist(), tuple(vector), torch.from_numpy(vector), vector.astype(np.float16), 7 * vector):
        found = index.search(form, k=4)
        assert found.ids == one.ids
        torch.testing.assert_close(found.mean, one.mean, atol=2e-3, rtol=0)
    for several in ([vector, vector], [torch.from_numpy(vector)] * 2, np.stack([vector, vector])):
        assert [found.ids for found in index.search(several, k=4)] == [one.ids] * 2
    assert len(index.search(np.arange(1, 17), k=4)) == 4


@pytest.mark.parametrize(
    "form",
    [
        lambda numbers: [np.float32(number) for number in numbers],
        lambda numbers: tuple(np.longdouble(number) for number in numbers),
        lambda numbers: [Fraction(number) for number in numbers],
        lambda numbers: [Decimal(number) for number in numbers],
        lambda numbers: list(torch.tensor(numbers, dtype=torch.float64)),
        lambda numbers: [np.asarray(number) for number in numbers],
        lambda numbers: np.asarray(numbers, dtype=np.longdouble),
        lambda numbers: np.asarray(numbers, dtype=object),
        lambda numbers: np.asarray(numbers)[::-1][::-1],
        lambda numbers: torch.tensor(numbers, requires_grad=True),
    ],
)
def test_vectors_as_people_have_them(form: Callable[[list[float]], Any], make: Callable[..., Index]) -> None:
    index, numbers = make(), np.linspace(-1, 1, 16).tolist()
    one, found = index.search(np.asarray(numbers), k=4), index.search(form(numbers), k=4)
    assert found.ids == one.ids
    torch.testing.assert_close(found.mean, one.mean, atol=1e-6, rtol=0)
    for several in ([form(numbers)] * 2, (form(numbers), numbers), [tuple(form(numbers)), np.asarray(numbers)]):
        assert [hits.ids for hits in index.search(several, k=4)] == [one.ids] * 2


def test_integers_are_a_vector(make: Callable[..., Index]) -> None:
    index = make()
    one = index.search(np.arange(1.0, 17.0), k=4)
    for kind in (np.int8, np.uint16, np.uint32, np.uint64, np.int64):
        assert index.search(np.arange(1, 17, dtype=kind), k=4).ids == one.ids
    assert index.search(list(range(1, 17)), k=4).ids == one.ids


@pytest.mark.parametrize("size", [1e-320, 1e-50, 1e-20, 1e-13, 1.0, 1e30, 1e300])
def test_a_vector_of_any_length(size: float, make: Callable[..., Index]) -> None:
    index, vector = make(), np.linspace(-1, 1, 16)
    one, found = index.search(vector, k=4), index.search(vector * size, k=4)
    assert found.ids == one.ids
    torch.testing.assert_close(found.mean, one.mean, atol=1e-3 if size < 1e-300 else 1e-6, rtol=0)


def test_features_are_of_the_other_tower_unless_told(make: Callable[..., Index]) -> None:
    index = make()
    assert [hits.query for hits in index.search(draw(2, P_TEXT, 1), k=1)] == ["text 0", "text 1"]
    assert [hits.query for hits in index.search(draw(2, P, 1), k=1, tower="image")] == ["image 0", "image 1"]
    with pytest.raises(BayesVLMError, match="takes 20"):
        index.search(draw(2, P, 1), k=1)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("", "Query 0 is ''"),
        (["a cat", " \n"], "Query 1 is"),
        ([], "the list is empty"),
        (["a cat", Path("x.jpg")], "Query 1 is PosixPath"),
        (Path("missing.jpg"), "does not exist"),
        (b"no image", "not an image that Pillow can read"),
        ({"a": 1}, "is a dict"),
        (None, "None"),
        (np.ones(17), "17 wide, and the embeddings of this index 128"),
        ([np.ones(128), np.ones(4)], "The vectors are 4 to 128 wide"),
        ([[1.0] * 128, [1.0] * 127], "The vectors are 127 to 128 wide"),
        ([1j] * 128, "float64 does not, such as complex"),
        ([[1.0] * 127 + [1j]], "float64 does not, such as complex"),
        (np.ones(128, dtype=np.complex64), "float64 does not, such as complex"),
        (torch.ones(2, 128, dtype=torch.complex64), "float64 does not, such as complex"),
        ([torch.ones(128, dtype=torch.complex64)], "float64 does not, such as complex"),
        ([10**400] * 128, "numbers that float64 does not"),
        ([float("nan")] * 128, "NaN"),
        ([[]], "is a list of 0"),
        (np.array(["2020-01-01"] * 128, dtype="datetime64[s]"), "is a datetime64"),
        (np.zeros(128), "zero"),
        (np.full(128, np.nan), "NaN"),
        (np.zeros((0, 128)), "there is none"),
        (Features(torch.zeros(0, 256)), "have no rows"),
    ],
)
def test_what_is_no_query(query: Any, said: str, drawings: Index) -> None:
    with pytest.raises(BayesVLMError, match=said):
        drawings.search(query)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"k": 0}, "k is 0"),
        ({"k": 2.5}, "k is 2.5"),
        ({"rank": "best"}, "rank='best'"),
        ({"level": 1}, "level=1"),
        ({"tower": "sound"}, "tower='sound'"),
        ({"probes": 0}, "probes is 0"),
    ],
)
def test_what_is_no_way_to_search(arguments: Any, said: str, make: Callable[..., Index]) -> None:
    with pytest.raises(BayesVLMError, match=said):
        make(count=3).search(draw(1, P_TEXT, 1), **arguments)


# Prompts --------------------------------------------------------------------------------------------------------------


def test_templates_make_one_query_of_a_text(drawings: Index, emoji: BayesVLM) -> None:
    """As `class_features` averages them; "{c}" is the text itself."""
    asked = ["a drawing of a {c}.", lambda name: f"my {name}"]
    found = drawings.search(["pizza", "pizza", "cat"], k=4, templates=asked)
    features = emoji.class_features(["pizza", "cat"], asked)
    wanted = drawings.search(features, k=4)
    assert [hits.ids for hits in found] == [wanted[0].ids, wanted[0].ids, wanted[1].ids]
    torch.testing.assert_close(found[2].mean, wanted[1].mean, atol=1e-6, rtol=0)
    torch.testing.assert_close(found[2].std, wanted[1].std, atol=1e-6, rtol=1e-4)
    moments = emoji.similarity(drawings_of(emoji, found[2].ids), features)
    torch.testing.assert_close(found[2].mean.float(), moments.mean[:, 1], atol=1e-5, rtol=0)
    plain, itself = drawings.search("pizza", k=4), drawings.search("pizza", k=4, templates="{c}")
    assert plain.ids == itself.ids
    torch.testing.assert_close(plain.mean, itself.mean)
    assert not torch.allclose(plain.mean, found[0].mean)


def drawings_of(vlm: BayesVLM, ids: tuple[str, ...]) -> Features:
    from bayesvlm import world

    images = world.load("openmoji-black").images
    return vlm.image_features([images[int(name.removeprefix("drawing "))] for name in ids])


@pytest.mark.parametrize("query", [picture(), draw(1, P_TEXT, 0), np.ones(32, dtype=np.float32)])
def test_templates_are_for_words(drawings: Index, make: Callable[..., Index], query: Any) -> None:
    with pytest.raises(BayesVLMError, match="templates are for queries in words"):
        (make() if isinstance(query, Features) else drawings).search(
            np.ones(drawings.info()["d"]) if isinstance(query, np.ndarray) else query, templates="a {c}"
        )


@pytest.mark.parametrize(("templates", "said"), [("a photo", "no place"), ([], "empty list"), (["{c}", "{}"], "once")])
def test_templates_that_are_none(drawings: Index, templates: Any, said: str) -> None:
    with pytest.raises(BayesVLMError, match=said):
        drawings.search("pizza", templates=templates)


def test_an_index_asks_as_it_was_calibrated_and_says_nothing_of_other_prompts(
    drawings: Index, emoji: BayesVLM, tmp_path: Path
) -> None:
    from bayesvlm import world

    split = world.load("openmoji-black")
    index = Index.create(tmp_path / "index", emoji)
    index.add(split.images[:40], split.keys[:40])
    names = [split.classes[label] for label in split.labels[:40]]
    index.calibrate(names, split.keys[:40], error=0.1, templates=["{c}, drawn", "a {c}"], progress=False)
    kept = Index.open(tmp_path / "index", emoji)
    for each in (index, kept):
        assert each.calibration is not None
        assert each.calibration.prompts == ("a {c}", "{c}, drawn")
        found = each.search(names[3], k=3)
        assert found.matches is not None
        torch.testing.assert_close(found.mean, each.search(names[3], k=3, templates=["a {}", "{}, drawn"]).mean)
        plain = each.search(names[3], k=3, templates="{c}")
        assert (plain.matches, plain.p_match) == (None, None)
        assert not torch.allclose(plain.mean, found.mean)
        features = emoji.class_features([names[3]], ["a {c}", "{c}, drawn"])  # nobody knows in which prompts
        assert each.search(features, k=3)[0].matches is not None


# Like an item that is here --------------------------------------------------------------------------------------------


def test_like_an_item_is_what_its_own_features_find_without_itself(make: Callable[..., Index], vlm: BayesVLM) -> None:
    index, items = make(), draw(60, P, 1)
    for place in (0, 31, 59):
        found = index.like(f"item {place}", k=5)
        assert isinstance(found, Hits)
        searched = index.search(items[place : place + 1], k=6, tower="image")[0]
        assert searched.ids[0] == f"item {place}" == found.query
        assert found.ids == searched.ids[1:]
        torch.testing.assert_close(found.mean, searched.mean[1:], atol=1e-6, rtol=0)
        torch.testing.assert_close(found.std, searched.std[1:], atol=1e-5, rtol=2e-3)  # directions in half precision
        assert found.matches is None
    several = index.like(["item 3", "item 1", "item 3"], k=2)
    assert [hits.query for hits in several] == ["item 3", "item 1", "item 3"]
    assert several[0].ids == several[2].ids == index.like("item 3", k=2).ids
    assert all(len(hits) == 59 for hits in index.like(["item 3", "item 1"], k=100, rank="lower"))


def test_a_copy_is_like_the_item_for_certain(make: Callable[..., Index]) -> None:
    index = make()
    index.add(draw(60, P, 1)[7:8], ["copy of 7"])
    first = index.like("item 7", k=3)[0]
    assert (first.id, first.mean) == ("copy of 7", pytest.approx(1.0, abs=1e-6))
    assert first.std < 1e-6
    assert index.like("item 7", k=3, where={"id": ["item 7", "item 8"]}).ids == ("item 8",)


@pytest.mark.parametrize(
    ("ids", "said"),
    [("nobody", "no item 'nobody'"), (["item 1", "x", "y"], "no item 'x', 'y'"), ([], "give at least one"), ("", "id")],
)
def test_like_what_is_not_there(make: Callable[..., Index], ids: Any, said: str) -> None:
    with pytest.raises(BayesVLMError, match=said):
        make().like(ids)
