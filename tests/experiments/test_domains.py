"""The world's styles as domains: what is in the pool, the target and the validation set, and what they share."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bayesvlm import BayesVLM, BayesVLMError, world
from bayesvlm.data.cache import FeatureCache
from bayesvlm.experiments import domains
from bayesvlm.experiments.domains import STYLES, world_task
from bayesvlm.experiments.encoding import Encoder
from experiments.thinned import GROUP, thinned


@pytest.fixture(scope="module")
def vlm() -> BayesVLM:
    return BayesVLM.from_pretrained("emoji-clip", device="cpu")


def test_a_task_of_the_world_in_small(vlm: BayesVLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(domains, "load", thinned)
    task = world_task(Encoder(vlm, FeatureCache(tmp_path)), "openmoji-black", GROUP)
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


def test_the_whole_world_s_halves_share_no_concept() -> None:
    for style in STYLES:
        split = world.load(style)
        pool, target = (set(split.half(half).labels) for half in ("pool", "target"))
        assert not pool & target
        held = {domains._held_back(key) for key in split.half("pool").keys}
        assert held == {True, False}


def test_a_style_that_was_trained_on_is_no_target(vlm: BayesVLM) -> None:
    with pytest.raises(BayesVLMError, match="target='noto' is not known; use 'emojione-colour' or"):
        world_task(Encoder(vlm), "noto", GROUP)
