"""A fit of batches from any iterable: cut where contrast batches end, resumed to the same bits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from bayesvlm import BayesVLM, BayesVLMError, Features
from bayesvlm.core.estimation import TOWERS
from bayesvlm.data.pairs import PairFolder, PairPlan
from bayesvlm.locks import locked
from bayesvlm.testing import save_tiny_clip

from .made import caption, picture, write_folder

Batch = tuple[Any, Any]


@pytest.fixture(scope="module")
def vlm(tmp_path_factory: pytest.TempPathFactory) -> BayesVLM:
    return BayesVLM.from_pretrained(save_tiny_clip(tmp_path_factory.mktemp("model") / "clip"), device="cpu")


def batches(count: int = 40, size: int = 7) -> list[Batch]:
    numbers = range(count)
    cut = [numbers[start : start + size] for start in range(0, count, size)]
    return [([picture(number) for number in part], [caption(number) for number in part]) for part in cut]


def features(count: int = 40) -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    images, texts = (Features(torch.randn(count, width, generator=generator)) for width in (48, 32))
    return [(images[start : start + 9], texts[start : start + 9]) for start in range(0, count, 9)]


def same(one: Any, other: Any) -> bool:
    return all(
        one[tower].n == other[tower].n and torch.equal(getattr(one[tower], name), getattr(other[tower], name))
        for tower in TOWERS
        for name in ("A_sum", "B_sum")
    )


@pytest.mark.parametrize("pairs", [batches(), features()], ids=["images", "features"])
def test_an_interrupted_fit_goes_on_to_the_same_bits(vlm: BayesVLM, pairs: list[Batch], tmp_path: Path) -> None:
    """Contrast batches of 12 end within batches of 7 and of 9: what is encoded together must not depend on that."""
    whole = vlm.copy().fit(pairs, 12).factors
    for stop in range(2, len(pairs)):

        def cut_short(stop: int = stop) -> Iterator[Batch]:
            yield from pairs[:stop]
            raise KeyboardInterrupt

        checkpoint = tmp_path / f"{stop}.safetensors"
        with pytest.raises(KeyboardInterrupt):
            vlm.copy().fit(cut_short(), 12, checkpoint=checkpoint)
        assert checkpoint.exists()
        assert same(vlm.copy().fit(pairs, 12, checkpoint=checkpoint).factors, whole)


def test_a_limit_takes_the_first(vlm: BayesVLM) -> None:
    pairs = batches()
    assert same(vlm.copy().fit(pairs, 12, limit=19).factors, vlm.copy().fit([*cut(pairs, 19)], 12).factors)
    assert vlm.copy().fit(pairs, 12, limit=1000).factors["image"].n == 40
    assert vlm.copy().fit(iter(pairs), 12, limit=14).provenance["pairs"] == 14


def cut(pairs: list[Batch], count: int) -> Iterator[Batch]:
    for images, texts in pairs:
        if count > 0:
            yield images[:count], texts[:count]
        count -= len(texts)


def test_one_fit_at_a_time_with_a_checkpoint(vlm: BayesVLM, tmp_path: Path) -> None:
    checkpoint = tmp_path / "fit.safetensors"
    with (
        locked(tmp_path / ".fit.safetensors.lock", busy=pytest.fail),
        pytest.raises(BayesVLMError, match=r"Another fit is going on with the checkpoint .*fit\.safetensors"),
    ):
        vlm.copy().fit(batches(), 12, checkpoint=checkpoint)
    vlm.copy().fit(batches(), 12, checkpoint=checkpoint)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fit.safetensors"]


def test_what_chooses_nothing_is_refused(vlm: BayesVLM, tmp_path: Path) -> None:
    plan = PairPlan.of(PairFolder.open(write_folder(tmp_path, 10)), 5)
    for pairs, options, sentence in (
        (batches(), {"shuffle": True}, "pairs is a list, which is taken in its own order"),
        (batches(), {"seed": 3}, "pairs is a list, which is taken in its own order"),
        (batches(), {"limit": 1}, "limit is 1; expected a whole number of at least 2"),
        (plan, {}, "The pairs are a plan with negatives=5, limit=None"),
        (plan, {"negatives": 5, "limit": 7}, "no limit or shuffle beside it"),
        (plan.source, {"seed": 3}, "seed=3 needs shuffling"),
    ):
        with pytest.raises(BayesVLMError, match=sentence):
            vlm.copy().fit(pairs, **options)  # type: ignore[arg-type]


def test_a_checkpoint_of_another_kind_is_refused(vlm: BayesVLM, tmp_path: Path) -> None:
    checkpoint = tmp_path / "fit.safetensors"
    vlm.copy().fit(batches(), 12, checkpoint=checkpoint)
    for pairs, options, sentence in (
        (batches(), {"negatives": 11}, "belongs to another run: negatives is 12 there and 11 here"),
        (batches(), {"negatives": 12, "limit": 30}, "belongs to another run: limit is None there and 30 here"),
        (batches()[::-1], {"negatives": 12}, "The first 36 pairs are not those"),
        (batches(20), {"negatives": 12}, "holds 36 pairs, but only 20 were given now"),
    ):
        with pytest.raises(BayesVLMError, match=sentence):
            vlm.copy().fit(pairs, checkpoint=checkpoint, **options)  # type: ignore[arg-type]
    checkpoint.write_bytes(b"12345678{no checkpoint")
    with pytest.raises(BayesVLMError, match="not a readable safetensors file"):
        vlm.copy().fit(batches(), 12, checkpoint=checkpoint)
