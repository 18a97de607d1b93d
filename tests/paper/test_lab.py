"""The lab gives what the rest of the package gives, keeps it, and says what is missing."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from experiments.thinned import thinned

import bayesvlm_world
from bayesvlm import BayesVLM, BayesVLMError
from bayesvlm.data.cache import FeatureCache
from bayesvlm.experiments.earlier import Earlier
from bayesvlm_paper import inputs
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import Plan, column_of, same_model
from bayesvlm_world import FOLDER

PLAN = Plan(("emoji-clip",), ("openmoji-black",), "validation", ("train",), views=True)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> FeatureCache:
    return FeatureCache(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, cache: FeatureCache, tmp_path: Path) -> Lab:
    monkeypatch.setattr(bayesvlm_world, "load", thinned)
    return Lab(PLAN, tmp_path, cache, device="cpu", views=4)


@pytest.fixture
def unfitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """emoji-clip comes without its posterior."""
    load = BayesVLM.from_pretrained.__func__  # type: ignore[attr-defined]

    def bare(cls: type[BayesVLM], name: str, **options: object) -> BayesVLM:
        loaded: BayesVLM = load(cls, name, **options)
        return loaded.without_posterior() if name == "emoji-clip" else loaded

    monkeypatch.setattr(BayesVLM, "from_pretrained", classmethod(bare))


def test_bayes_is_what_the_table_says(lab: Lab) -> None:
    result = lab.zero_shot("emoji-clip", "openmoji-black")
    own = lab.bayes("emoji-clip", lab.vlm("emoji-clip"), "openmoji-black")
    assert set(result.scores) == {"plain", "temperature", "TTA", "Bayes", "Bayes + TTA"}
    torch.testing.assert_close(own.nll, result.scores["Bayes"].nll)


def test_results_are_kept_by_what_they_depend_on(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    first = lab.zero_shot("emoji-clip", "openmoji-black")
    fresh = replace(lab, _made={})
    monkeypatch.setattr("bayesvlm.experiments.zero_shot.ZeroShot.run", lambda *_: pytest.fail("measured again"))
    assert fresh.zero_shot("emoji-clip", "openmoji-black").numbers["methods"] == first.numbers["methods"]
    monkeypatch.undo()
    monkeypatch.setattr(bayesvlm_world, "load", thinned)
    without = replace(lab, views=0, _made={})
    assert set(without.zero_shot("emoji-clip", "openmoji-black").scores) == {"plain", "temperature", "Bayes"}


@pytest.mark.usefixtures("unfitted")
def test_a_model_without_a_posterior_is_fitted_once_and_kept(lab: Lab) -> None:
    said: list[str] = []
    room = replace(lab, say=said.append, _made={})
    made = room.vlm("emoji-clip")
    assert made.factors["image"].n == len(thinned("train"))
    again = replace(room, _made={}).vlm("emoji-clip")
    assert len(said) == 1
    assert again.tau == made.tau != 1.0
    torch.testing.assert_close(again.factors["text"].B, made.factors["text"].B)


@pytest.mark.usefixtures("unfitted")
def test_what_is_made_again_is_made_once(lab: Lab) -> None:
    said: list[str] = []
    room = replace(lab, say=said.append, _made={})
    room.vlm("emoji-clip")
    again = replace(room, earlier=Earlier.below(lab.out), _made={})
    again.vlm("emoji-clip")
    assert len(said) == 2
    replace(again, _made={}).vlm("emoji-clip")
    assert len(said) == 2, "the posterior of this run was not read"


def test_the_inputs_name_everything_a_finding_depends_on(lab: Lab) -> None:
    found = lab.inputs()
    assert set(found["models"]["emoji-clip"]) == {"model", "posterior"}
    assert found["data"]["openmoji-black"] == [thinned("openmoji-black").fingerprint(), "{c}"]
    assert set(found["pairs"]) == {"train"}
    assert found["views"] == 4
    assert set(found["versions"]) == {"bayesvlm", *inputs.PACKAGES}
    assert lab.on(replace(PLAN, views=False)).inputs()["views"] is None


def test_what_is_missing_is_said(lab: Lab) -> None:
    bare = lab.on(Plan(("emoji-clip",)))
    with pytest.raises(BayesVLMError, match="--validation"):
        bare.validation("emoji-clip")
    with pytest.raises(BayesVLMError, match="--pairs"):
        bare.pairs("emoji-clip")
    with pytest.raises(BayesVLMError, match="active learning"):
        bare.task("emoji-clip", "openmoji-black")
    assert lab.on(Plan(("emoji-clip",), pairs=("nowhere",))).inputs()["pairs"] == {"nowhere": None}


def test_given_models_and_data_take_the_place_of_a_plans_own() -> None:
    given = PLAN.with_given(["a"], [], None, ["p", "q"])
    assert (given.models, given.sets, given.validation, given.pairs) == (("a",), PLAN.sets, "validation", ("p", "q"))
    assert given.views


def test_of_active_learning_data_are_domains() -> None:
    plan = Plan(("a",), domains="world", targets=("openmoji-black",))
    assert plan.with_given((), ["world"]).targets == ("openmoji-black",)
    given = plan.with_given((), ["officehome"])
    assert (given.domains, given.targets, given.sets) == ("officehome", ("Art", "Clipart", "Product"), ())
    with pytest.raises(BayesVLMError, match="one collection"):
        plan.with_given((), ["officehome", "world"])


@pytest.mark.usefixtures("unfitted")
def test_a_damaged_posterior_is_fitted_again(lab: Lab) -> None:
    said: list[str] = []
    room = replace(lab, say=said.append, _made={})
    made = room.vlm("emoji-clip")
    (folder,) = room.kept.glob("posteriors/emoji-clip/*")
    (folder / "posterior.safetensors").write_bytes(b"cut")
    again = replace(room, _made={}).vlm("emoji-clip")
    assert len(said) == 2
    assert again.tau == made.tau


def test_published_models_and_columns_are_recognised(tmp_path: Path) -> None:
    posterior = tmp_path / "posterior"
    posterior.mkdir()
    model = "laion/CLIP-ViT-B-32-laion2B-s34B-b79K"
    (posterior / "config.json").write_text(json.dumps({"bayesvlm_schema": 1, "model": model}))
    (posterior / "posterior.safetensors").touch()
    assert same_model(str(posterior), "open_clip:ViT-B-32/laion2b_s34b_b79k")
    assert not same_model(str(posterior), "google/siglip-base-patch16-224")
    assert same_model("laion/CLIP-ViT-B-32-laion2B-s34B-b79K", "open_clip:ViT-B-32/laion2b_s34b_b79k")
    assert not same_model("emoji-clip", "open_clip:ViT-B-32/laion2b_s34b_b79k")
    assert column_of("food101") == "Food-101"
    assert column_of("openmoji-black") is None


def test_inputs_follow_the_files_of_a_model(lab: Lab, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(FOLDER / "models" / "emoji-clip", folder)
    room = lab.on(replace(PLAN, models=(str(folder), "owner/not-here")))
    before = room.inputs()["models"]
    assert before["owner/not-here"] == {}, "known by its name until it has been fetched"
    assert before[str(folder)]["model"] == room.inputs()["models"][str(folder)]["model"]
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "another": 1}))
    assert room.inputs()["models"][str(folder)] != before[str(folder)]


def test_a_link_into_the_hubs_cache_is_not_read(tmp_path: Path) -> None:
    blob, folder = tmp_path / "blobs" / "0123abcd", tmp_path / "snapshot"
    for each in (blob.parent, folder):
        each.mkdir()
    blob.write_bytes(b"weights")
    (folder / "model.safetensors").symlink_to(blob)
    before = inputs.folder_hash(folder)
    blob.write_bytes(b"other bytes under the same name")
    assert inputs.folder_hash(folder) == before
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").write_bytes(b"weights")
    assert inputs.folder_hash(folder) != before


@pytest.mark.usefixtures("unfitted")
def test_a_posterior_from_other_inputs_is_not_read(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    room = replace(lab, say=said.append, _made={})
    room.vlm("emoji-clip")
    monkeypatch.setattr("bayesvlm_paper.lab.FITTING", 2)
    replace(room, _made={}).vlm("emoji-clip")
    assert len(said) == 2
