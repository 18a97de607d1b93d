"""The world's styles as domains: what is in the pool, the target and the validation set, and what they share."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from experiments.thinned import GROUP, thinned

from bayesvlm import BayesVLM, BayesVLMError, world
from bayesvlm.data.cache import FeatureCache
from bayesvlm.experiments.feature_store import FeatureStore
from bayesvlm_world import FOLDER
from bayesvlm_world import domains as styles
from bayesvlm_world.domains import STYLES, world_task


@pytest.fixture(scope="module")
def vlm() -> BayesVLM:
    return BayesVLM.from_pretrained("emoji-clip", device="cpu")


def test_a_task_of_the_world_in_small(vlm: BayesVLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(styles, "load", thinned)
    task = world_task(FeatureStore(vlm, FeatureCache(tmp_path)), "openmoji-black", GROUP)
    aimed = thinned("openmoji-black").half("target")
    assert task.name == f"openmoji-black/{GROUP}"
    assert task.target.labels.tolist() == list(aimed.labels)
    expected = vlm.image_features(list(aimed.images)).activations
    assert torch.allclose(task.target.features.activations, expected, atol=1e-4)
    assert len(task.classes) == len(aimed.classes)
    pools = [thinned(style) for style in STYLES if not style.startswith("openmoji")]
    pools += [thinned(style).half("pool") for style in ("openmoji-colour", "openmoji-black")]
    assert len(task.pool) + len(task.validation) == sum(map(len, pools)) + len(thinned("train"))
    assert set(task.domains) == {*STYLES, "train"}
    assert len(task.domains) == len(task.pool)
    held, kept = set(task.validation.labels.tolist()), task.pool.labels
    new = [label for label, domain in zip(kept.tolist(), task.domains, strict=True) if domain != "train"]
    assert not held & set(new), "a concept is in one of them only, but for its training drawings"


def test_kinds_are_groups_of_concepts(vlm: BayesVLM, monkeypatch: pytest.MonkeyPatch) -> None:
    split = world.load("openmoji-black").half("target")
    kinds = split.kinds()
    assert kinds.classes == world.GROUPS
    assert kinds.images == split.images
    for group in world.GROUPS:
        inside = set(split.group(group).keys)
        named = {key for key, label in zip(kinds.keys, kinds.labels, strict=True) if kinds.classes[label] == group}
        assert named == inside
    texts = styles._kinds(FeatureStore(vlm), None)
    names = world.load("train").group("food-drink").classes
    expected = vlm.text.embed(vlm.text_features(list(names))).mean(dim=0)
    found = vlm.text.embed(texts)[world.GROUPS.index("food-drink")]
    assert torch.allclose(found, expected, atol=1e-4), "the embedding of the mean is the mean of the embeddings"
    with pytest.raises(BayesVLMError, match="There is no concept 'unicorn horn'"):
        world.group_of("unicorn horn")


def test_kinds_of_a_group_are_its_subgroups(vlm: BayesVLM) -> None:
    with (FOLDER / "data/emoji/concepts.csv").open(encoding="utf-8", newline="") as file:
        of = {row["label"]: row["subgroup"] for row in csv.DictReader(file)}
    split = world.load("openmoji-black").half("target")
    inside, kinds = split.group("food-drink"), split.kinds("food-drink")
    assert kinds.name == "openmoji-black/target/food-drink/kinds"
    assert kinds.classes == world.subgroups("food-drink")
    assert kinds.classes[:3] == ("food-fruit", "food-vegetable", "food-prepared")
    assert kinds.keys == inside.keys
    expected = [of[inside.classes[label]] for label in inside.labels]
    assert [kinds.classes[label] for label in kinds.labels] == expected
    names = [name for name in world.load("train").classes if of[name] == "drink"]
    mean = vlm.text.embed(vlm.text_features(names)).mean(dim=0)
    texts = styles._kinds(FeatureStore(vlm), "food-drink")
    assert len(texts) == len(kinds.classes)
    assert torch.allclose(vlm.text.embed(texts)[kinds.classes.index("drink")], mean, atol=1e-4)
    with pytest.raises(BayesVLMError, match="group='food' is not known"):
        split.kinds("food")


def test_the_whole_world_s_halves_share_no_concept() -> None:
    for style in STYLES:
        split = world.load(style)
        pool, target = (set(split.half(half).labels) for half in ("pool", "target"))
        assert not pool & target
        held = {styles._held_back(key) for key in split.half("pool").keys}
        assert held == {True, False}


def test_a_style_that_was_trained_on_is_no_target(vlm: BayesVLM) -> None:
    with pytest.raises(BayesVLMError, match="target='noto' is not known; use 'emojione-colour', "):
        world_task(FeatureStore(vlm), "noto", GROUP)
