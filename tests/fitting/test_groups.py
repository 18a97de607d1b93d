"""The pass over groups: pairs stay together, nothing is read twice, and whoever computes a group finds the same."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from bayesvlm import BayesVLM, BayesVLMError, Features
from bayesvlm.core.estimation import TOWERS
from bayesvlm.core.groups import GroupSums, OpenGroup
from bayesvlm.data.pairs import PairFolder, PairPlan, PairSet, PairShards
from bayesvlm.data.pairs.batches import Pair
from bayesvlm.fitting import FitSettings, factors_of_groups, group_factors
from bayesvlm.models import preprocessing
from bayesvlm.testing import save_tiny_clip

from .made import write_folder, write_shards

BROKEN = frozenset({0, 7, 20, 21, 22, 23, 24, 51})
COUNT = 70


@pytest.fixture(scope="module")
def vlm(tmp_path_factory: pytest.TempPathFactory) -> BayesVLM:
    return BayesVLM.from_pretrained(save_tiny_clip(tmp_path_factory.mktemp("model") / "clip"), device="cpu")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("pairs")
    return {
        "shards": write_shards(root / "shards", 20, 6, 24, 20, broken=BROKEN),
        "folder": write_folder(root / "folder", COUNT, broken=BROKEN),
    }


def opened(sources: dict[str, Path], kind: str) -> PairSet:
    return (
        PairShards.open(sources[kind], batch_size=5)
        if kind == "shards"
        else PairFolder.open(sources[kind], batch_size=5)
    )


@dataclass
class Seen:
    """What went through the encoders: the numbers that images show and that captions tell."""

    images: list[int] = field(default_factory=list)
    texts: list[int] = field(default_factory=list)


@contextmanager
def watched(vlm: BayesVLM) -> Iterator[Seen]:
    adapter, seen = vlm.encoder("images"), Seen()
    encode_pixels, encode_texts = adapter.encode_pixels, adapter.encode_texts
    processor = adapter.preprocessor.to_pixels

    def pixels(batch: dict[str, torch.Tensor]) -> Any:
        for image in batch["pixel_values"]:
            red, green = (image[:2, 4:12, 4:12].mean(dim=(1, 2)) * std[:2] + mean[:2]).mul(255).round().int().tolist()
            seen.images.append(red + 256 * green)
        return encode_pixels(batch)

    def texts(batch: list[str], *arguments: Any, **options: Any) -> Any:
        seen.texts += [int(text.rpartition(" ")[2]) for text in batch]
        return encode_texts(batch, *arguments, **options)

    from PIL import Image

    black, white = (
        processor([Image.new("RGB", (32, 32), colour)])["pixel_values"][0, :, 0, 0] for colour in ("black", "white")
    )
    std, mean = 1 / (white - black), -black / (white - black)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adapter, "encode_pixels", pixels)
        patch.setattr(adapter, "encode_texts", texts)
        yield seen


@pytest.mark.parametrize(("kind", "workers"), [("shards", 0), ("shards", 2), ("folder", 0), ("folder", 2)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_an_image_and_its_caption_never_come_apart(
    vlm: BayesVLM, sources: dict[str, Path], kind: str, workers: int, shuffle: bool
) -> None:
    plan = PairPlan.of(opened(sources, kind), 20, shuffle=shuffle)
    with watched(vlm) as seen:
        vlm.copy().fit(plan, 20, workers=workers)
    assert seen.images == seen.texts
    assert sorted(seen.images) == sorted(set(range(COUNT)) - BROKEN)
    assert (seen.images == sorted(seen.images)) != shuffle
    assert len(plan.source.skipped) == len(BROKEN)


def sums(vlm: BayesVLM, plan: PairPlan, **settings: Any) -> GroupSums:
    found = GroupSums()
    for group in plan.groups:
        found = found.add(group_factors(vlm, plan, group, FitSettings(workers=0, **settings)))
    return found


def assert_same_bits(one: GroupSums, other: GroupSums) -> None:
    assert one.factors is not None
    assert other.factors is not None
    for tower in TOWERS:
        assert one.factors[tower].n == other.factors[tower].n
        assert torch.equal(one.factors[tower].A_sum, other.factors[tower].A_sum)
        assert torch.equal(one.factors[tower].B_sum, other.factors[tower].B_sum)


@pytest.mark.parametrize("kind", ["shards", "folder"])
def test_groups_add_to_what_one_process_finds(vlm: BayesVLM, sources: dict[str, Path], kind: str) -> None:
    plan = PairPlan.of(opened(sources, kind), 20, shuffle=True, seed=3)
    sent = pickle.loads(pickle.dumps(plan))  # as to a worker on another machine
    assert len(plan.groups) == 3
    one = vlm.copy().fit(plan, 20, workers=0).factors
    assert_same_bits(GroupSums(factors=one), sums(vlm, sent))
    again = sums(vlm, sent)
    assert again.add(group_factors(vlm, sent, sent.groups[0])).pairs == COUNT - len(BROKEN), "a group counts once"
    for parts in (2, 3):
        shares = [sums(vlm, plan.share(part, parts)).factors for part in range(parts)]
        for tower in TOWERS:
            first, *others = [share[tower] for share in shares if share is not None]
            merged = first.merge(*others)
            torch.testing.assert_close(merged.A_sum, one[tower].A_sum, rtol=1e-12, atol=0)
            torch.testing.assert_close(merged.B_sum, one[tower].B_sum, rtol=1e-10, atol=1e-12)


def test_the_curvature_beside_the_encoder_is_the_same(vlm: BayesVLM, sources: dict[str, Path]) -> None:
    plan = PairPlan.of(opened(sources, "folder"), 20)
    assert_same_bits(sums(vlm, plan, beside=False), sums(vlm, plan, beside=True))


def test_an_error_beside_the_encoder_is_raised(
    vlm: BayesVLM, sources: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise BayesVLMError("no curvature today")

    monkeypatch.setattr("bayesvlm.core.estimation.infonce_curvature", fails)
    with pytest.raises(BayesVLMError, match="no curvature today"):
        sums(vlm, PairPlan.of(opened(sources, "folder"), 20), beside=True)


@pytest.mark.parametrize(("kind", "shuffle"), [("shards", False), ("shards", True), ("folder", False)])
@pytest.mark.parametrize("beside", [False, True])
def test_whoever_goes_on_decodes_nothing_twice_and_finds_the_same_bits(
    vlm: BayesVLM, sources: dict[str, Path], kind: str, shuffle: bool, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = PairPlan.of(opened(sources, kind), 12, limit=47, shuffle=shuffle)
    group = max(plan.groups, key=lambda group: group.size)
    settings = FitSettings(workers=0, beside=beside)
    states: list[OpenGroup] = []
    (whole,) = factors_of_groups(vlm, plan, [group], settings, keep=states.append)
    assert states
    decoded: Counter[str] = Counter()
    read = preprocessing.Preprocessor.read

    def counted(self: Any, image: Any, label: str = "the image") -> Any:
        decoded[label] += 1
        return read(self, image, label)

    monkeypatch.setattr(preprocessing.Preprocessor, "read", counted)
    for state in states:
        decoded.clear()
        (found,) = factors_of_groups(vlm, plan, [group], settings, opened=state)
        assert state.position % 12 == 0
        assert decoded.total() == whole.tally.read - state.position
        assert found.tally.read == whole.tally.read
        assert (found.tally.skipped, dict(found.tally.reasons)) == (whole.tally.skipped, dict(whole.tally.reasons))
        assert_same_bits(GroupSums().add(found), GroupSums().add(whole))


def test_contrast_batches_are_of_positions_and_short_by_what_cannot_be_read(
    vlm: BayesVLM, sources: dict[str, Path]
) -> None:
    """Against curvature of the very batches, the second of which borrows from the first."""
    from bayesvlm.core.estimation import FactorEstimator

    plan = PairPlan.of(opened(sources, "folder"), 12, limit=23)  # one group
    (group,) = plan.groups
    found = group_factors(vlm, plan, group, FitSettings(workers=0))
    pairs = [pair for pair in plan.stored(group) if int(Path(pair.name).stem) not in BROKEN]
    first = [pair for pair in pairs if int(Path(pair.name).stem) < 12]
    second = pairs[len(first) :]
    assert (len(first), len(second)) == (10, 8)
    estimator = FactorEstimator(vlm.image, vlm.text, vlm.scale, negatives=12)
    for batch in (first, second):
        estimator.add(*features(vlm, batch))
        estimator.close()
    expected = estimator.factors()
    assert found.factors is not None
    for tower in TOWERS:
        assert found.factors[tower].n == expected[tower].n == 18
        torch.testing.assert_close(found.factors[tower].A_sum, expected[tower].A_sum, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found.factors[tower].B_sum, expected[tower].B_sum, rtol=1e-3, atol=1e-3)


def features(vlm: BayesVLM, pairs: list[Pair]) -> tuple[Any, Any]:
    return vlm.image_features([pair.image for pair in pairs]), vlm.text_features([pair.text for pair in pairs])


def test_a_group_of_which_nothing_can_be_read_adds_nothing(vlm: BayesVLM, tmp_path: Path) -> None:
    """Nor does one of which a single pair is left; a batch of which one is left waits for the next."""
    broken = frozenset({*range(6), *range(7, 12), *range(18, 23)})
    plan = PairPlan.of(PairFolder.open(write_folder(tmp_path, 30, broken), batch_size=4), 6)
    groups = [group_factors(vlm, plan, group, FitSettings(workers=0)) for group in plan.groups]
    assert [group.pairs for group in groups] == [0, 0, 6, 0, 6]
    assert [group.tally.skipped for group in groups] == [6, 5, 0, 5, 0]
    lone = PairPlan.of(PairFolder.open(tmp_path, batch_size=4), 6).share(1, 5)
    with pytest.raises(BayesVLMError, match=r"given 1 pair\(s\)"):
        vlm.copy().fit(lone, 6, workers=0)


def test_a_checkpoint_of_other_pairs_or_of_another_model_is_refused(
    vlm: BayesVLM, sources: dict[str, Path], tmp_path: Path
) -> None:
    checkpoint = tmp_path / "fit.safetensors"
    vlm.copy().fit(opened(sources, "shards"), 20, checkpoint=checkpoint)
    other = BayesVLM.from_pretrained(save_tiny_clip(tmp_path / "other", seed=1), device="cpu")
    for model, pairs, options, sentence in (
        (vlm, opened(sources, "folder"), {}, "belongs to another run: the pairs are others, or their files were"),
        (other, opened(sources, "shards"), {}, "belongs to another run: the model is another"),
        (vlm, opened(sources, "shards"), {"limit": 60}, "belongs to another run: limit is None there and 60 here"),
        (
            vlm,
            opened(sources, "shards"),
            {"shuffle": True},
            "belongs to another run: shuffled is None there and 0 here",
        ),
    ):
        with pytest.raises(BayesVLMError, match=sentence):
            model.copy().fit(pairs, 20, checkpoint=checkpoint, **options)  # type: ignore[arg-type]
    again = vlm.copy().fit(opened(sources, "shards"), 20, checkpoint=checkpoint, workers=2)
    assert again.provenance["pairs"] == COUNT - len(BROKEN), "how they are decoded is no matter"


def test_strict_stops_at_the_first_that_cannot_be_read(vlm: BayesVLM, sources: dict[str, Path]) -> None:
    with pytest.raises(BayesVLMError, match=r"00000\.tar: 000000 is not an image"):
        vlm.copy().fit(PairShards.open(sources["shards"], strict=True), 20, workers=0)


def test_time_is_told_per_stage(vlm: BayesVLM, sources: dict[str, Path]) -> None:
    record = vlm.copy().fit(opened(sources, "shards"), 20, workers=0).provenance
    assert set(record["seconds"]) == {"waiting", "images", "texts", "curvature", "checkpoint"}
    assert min(record["seconds"][name] for name in ("images", "texts", "curvature")) > 0


def test_only_a_few_batches_are_read_ahead(vlm: BayesVLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that memory does not grow with the number of pairs, nor with what is skipped."""
    broken = frozenset(range(0, 240, 3))
    plan = PairPlan.of(PairFolder.open(write_folder(tmp_path, 240, broken), batch_size=4), 40)
    taken, ahead = [0], []
    pair = PairFolder.pair

    def counted(self: PairFolder, row: int) -> Pair:
        taken[0] += 1
        return pair(self, row)

    monkeypatch.setattr(PairFolder, "pair", counted)
    encoded = [0]
    for group in factors_of_groups(
        vlm,
        plan,
        plan.groups,
        FitSettings(workers=0),
        advance=lambda pairs: (encoded.append(encoded[-1] + pairs), ahead.append(taken[0] - encoded[-1])),  # type: ignore[func-returns-value]
    ):
        assert group.pairs == pytest.approx(40 * 2 / 3, abs=1)
    assert encoded[-1] == 240
    assert max(ahead) <= 8 * 4  # five that are read or made ready, and three that wait for their texts


def test_an_image_with_several_captions_is_counted_with_each(vlm: BayesVLM, tmp_path: Path) -> None:
    """By whoever reads it, and by whoever goes on."""
    write_folder(tmp_path / "pairs", 24, frozenset({1}))
    rows = (tmp_path / "pairs/captions.csv").read_text()
    (tmp_path / "pairs/captions.csv").write_text(rows + "000001.png,again\n000002.png,again\n")
    pairs = [PairFolder.open(tmp_path / "pairs", batch_size=5) for _ in range(2)]
    for source in pairs:
        vlm.copy().fit(source, 12, workers=0, checkpoint=tmp_path / "fit.safetensors")
        assert len(source.skipped) == 2
        assert list(source.skipped.reasons) == [str(tmp_path / "pairs/000001.png")]


def test_names_of_what_cannot_be_read_are_kept_up_to_a_number(
    vlm: BayesVLM, sources: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("bayesvlm.core.groups", "bayesvlm.fitting.groups", "bayesvlm.fitting.plans"):
        monkeypatch.setattr(f"{module}.NAMED", 3)
    plan = PairPlan.of(opened(sources, "shards"), 20)
    fitted = vlm.copy().fit(plan, 20, workers=0)
    assert fitted.provenance["pairs"] == COUNT - len(BROKEN)
    assert len(plan.source.skipped) == len(BROKEN)
    assert len(plan.source.skipped.reasons) == 3
    assert f"skipped {len(BROKEN)} that cannot be used" in str(plan.source.skipped)
    assert f"and {len(BROKEN) - 3} more" in str(plan.source.skipped)


@pytest.mark.parametrize("ahead", [False, True])
def test_texts_of_some_batches_are_encoded_together_and_none_across_a_contrast_batch(
    vlm: BayesVLM, tmp_path: Path, ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose images cannot be read have no texts; a contrast batch of 40 is what a run may begin with again."""
    broken = frozenset([5, *range(16, 20)])
    plan = PairPlan.of(PairFolder.open(write_folder(tmp_path, 96, broken), batch_size=4), 40)
    texts: list[int] = []
    encode = BayesVLM.text_features

    def counted(self: BayesVLM, inputs: list[str], **options: object) -> Features:
        texts.append(len(inputs))
        return encode(self, inputs, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(BayesVLM, "text_features", counted)
    for _ in factors_of_groups(vlm, plan, plan.groups, FitSettings(workers=0, beside=ahead)):
        pass
    assert texts == [15, 12, 8, 16, 16, 8, 16]
