"""A dry run says what is true of this machine, and fetches nothing."""

from __future__ import annotations

import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from experiments.thinned import thinned
from huggingface_hub import constants
from PIL import Image

import bayesvlm_world
from bayesvlm import BayesVLMError
from bayesvlm.data.cache import FeatureCache
from bayesvlm.data.distortion import LEVELS, Distortion
from bayesvlm.data.sources import bytes_in
from bayesvlm.experiments.domains import COLLECTIONS
from bayesvlm_paper import preview as module
from bayesvlm_paper import speed
from bayesvlm_paper.architectures import ARCHITECTURES, flops_per_image, flops_per_text
from bayesvlm_paper.finding import Finding, Numbers
from bayesvlm_paper.item import Item
from bayesvlm_paper.items import ITEMS
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.places import Load, find_model, find_pairs, find_set
from bayesvlm_paper.plans import CLIP_BASE, PAIRS, PCMEPP, PROLIP, Plan
from bayesvlm_paper.preview import Preview, preview
from bayesvlm_world import FOLDER

PLAN = Plan(("emoji-clip",), ("openmoji-black",), "validation", ("train",))
TEST, VALIDATION, TRAIN = (len(thinned(name)) for name in ("openmoji-black", "validation", "train"))


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Lab:
    """Nothing is here but the world in small; who goes to the network, or opens a table of `datasets`, fails."""
    monkeypatch.setattr(bayesvlm_world, "load", thinned)
    for opener in ("bayesvlm.data.pairs.datasets.load_table", "bayesvlm.data.labelled.datasets.load_table"):
        monkeypatch.setattr(opener, lambda *_: pytest.fail("would have been fetched"))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("somebody was asked"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("BAYESVLM_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return Lab(PLAN, tmp_path / "out", FeatureCache(tmp_path / "cache"), tmp_path / "root", device="cpu", views=0)


def item(name: str = "one", plan: Plan = PLAN, **options: object) -> Item:
    def never(lab: Lab) -> Numbers:
        raise BayesVLMError("A dry run measures nothing.")

    return Item(name, "", "", "zero-shot", plan, plan, never, lambda numbers: Finding(""), **options)  # type: ignore[arg-type]


def look(lab: Lab, plan: Plan = PLAN, **options: object) -> tuple[Preview, dict[str, Load]]:
    """The preview, and its data by name."""
    seen = preview(item(plan=plan, **options), lab.on(plan))
    return seen, {load.name: load for load in seen.loads if load.what in ("images", "pairs")}


def image_folder(folder: Path, count: int = 3) -> Path:
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / name / f"{number}.png")
    return folder


def captioned(folder: Path, count: int) -> Path:
    folder.mkdir(parents=True)
    for number in range(count):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(f"picture {number}")
    return folder


# What is to be encoded ------------------------------------------------------------------------------------------------


def test_what_is_in_the_cache_needs_no_encoding(lab: Lab) -> None:
    plan = replace(PLAN, views=True)
    voting = replace(lab, views=4)
    seen, data = look(voting, plan)
    assert {name: load.encode for name, load in data.items()} == {"openmoji-black": 5 * TEST, "validation": VALIDATION}
    assert seen.to_encode == f"{5 * TEST + VALIDATION:,}"
    assert seen.seconds is not None
    assert seen.seconds > 0
    assert "encoding alone, emoji-clip measured on this machine" in seen.how
    lab.images("emoji-clip", "openmoji-black")
    lab.validation("emoji-clip")
    seen, data = look(voting, plan)
    assert data["openmoji-black"].encode == 4 * TEST  # the views are still to be made
    seen, data = look(lab)
    assert (seen.to_encode, seen.seconds, seen.how) == ("in the cache", 0, "nothing to encode")


def test_every_distortion_of_the_pairs_counts_until_it_is_in_the_cache(lab: Lab) -> None:
    real = [Distortion(kind, level) for kind, levels in LEVELS.items() for level in levels if (kind, level)[1] != 0]
    assert len(real) == 16
    assert ITEMS["food_aug"].distorts_pairs
    options = {"reads_pairs": True, "distorts_pairs": True}
    _, data = look(lab, **options)
    assert (data["train"].encode, data["train"].texts) == (17 * TRAIN, TRAIN)
    lab.pairs("emoji-clip")
    _, data = look(lab, **options)
    assert (data["train"].encode, data["train"].texts) == (16 * TRAIN, 0)
    for distortion in (Distortion("jpeg", 100), Distortion("blur", 50)):
        lab.pairs("emoji-clip", distortion=distortion)
    _, data = look(lab, **options)
    assert data["train"].encode == 14 * TRAIN


def test_two_models_encode_the_same_set_twice(lab: Lab) -> None:
    plan = replace(PLAN, models=("emoji-clip", "emoji-siglip"))
    lab.images("emoji-clip", "openmoji-black")
    _, data = look(lab, plan)
    assert (data["openmoji-black"].encode, data["validation"].encode) == (TEST, 2 * VALIDATION)


def test_nothing_is_not_the_cache(lab: Lab) -> None:
    for name in ("runtime", "flops", "results_activelearning_clip_huge"):
        seen = preview(ITEMS[name], lab.on(ITEMS[name].world))
        assert (seen.to_encode, seen.how, seen.loads) == ("nothing", "nothing to encode", ())


def test_a_large_set_is_not_hashed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    image_folder(Path("mine"))
    plan = replace(PLAN, sets=("mine",))
    lab.images("emoji-clip", "mine")
    _, data = look(lab, plan)
    assert (data["mine"].count, data["mine"].encode) == (6, 0)
    monkeypatch.setattr(module, "LARGE", 10)
    monkeypatch.setattr("bayesvlm.data.labelled.folders.ImageFolder.fingerprint", lambda *_: pytest.fail("hashed"))
    seen, data = look(replace(lab, _made={}), plan)
    assert data["mine"].encode == 6
    assert "nobody looked" in seen.how


def test_corrupted_pictures_are_a_part_of_the_set_and_never_cached(lab: Lab) -> None:
    lab.images("emoji-clip", "openmoji-black")
    seen = preview(item(pictures=ITEMS["perturbation_plot"].pictures, tunes=False), lab)
    (load,) = (load for load in seen.loads if load.what == "images")
    assert (load.encode, load.texts) == (7 * TEST, 8 * TEST)  # fewer than a hundred in the world in small


def test_texts_take_time_too(lab: Lab) -> None:
    plan = Plan((CLIP_BASE,), pairs=("laion400m",))
    seen, data = look(lab, plan, reads_pairs=True)
    load = data["laion400m"]
    assert (load.encode, load.texts, load.here) == (PAIRS, PAIRS, False)
    images, _ = look(lab, Plan((CLIP_BASE,), ("cifar10",)))
    assert seen.seconds is not None
    assert images.seconds is not None
    ratio = 1 + flops_per_text("CLIP-Base") / flops_per_image("CLIP-Base")
    assert seen.seconds / PAIRS == pytest.approx(ratio * images.seconds / 10_000)
    assert "measured on this machine with random weights of CLIP-Base's shape: about" in seen.how


def test_a_model_that_is_not_here_is_timed_by_its_shape(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """One pass over a batch, half a second, whatever it does: what CLIP-Base takes, and others by their operations."""
    device = torch.device("cpu")
    monkeypatch.setattr(speed, "timed", lambda work, device: (work(), 0.5))
    for cached in (speed.estimated, speed._flops_per_second):
        cached.cache_clear()
    base, large = (speed.estimated(shape, device) for shape in ("CLIP-Base", "CLIP-Large"))
    assert base.image == pytest.approx(0.5 / 16)
    assert large.image / base.image == pytest.approx(flops_per_image("CLIP-Large") / flops_per_image("CLIP-Base"))
    seen, _ = look(lab, Plan((ARCHITECTURES["CLIP-Large"].model,), ("cifar10",)))
    assert "CLIP-Base's shape and scaled by operations: about" in seen.how
    for cached in (speed.estimated, speed._flops_per_second):
        cached.cache_clear()


# What is needed -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["emoji-prolip", PROLIP, PCMEPP])
def test_models_that_predict_variances_need_neither_pairs_nor_validation(lab: Lab, model: str) -> None:
    _, data = look(replace(lab, views=4), replace(PLAN, models=(model,), views=True))
    assert set(data) == {"openmoji-black"}
    assert data["openmoji-black"].encode == TEST  # and nothing votes


def test_a_model_without_a_posterior_is_fitted_and_tuned(lab: Lab) -> None:
    for model, needed in (("emoji-clip", {"openmoji-black"}), (CLIP_BASE, {"openmoji-black", "validation", "train"})):
        _, data = look(lab, replace(PLAN, models=(model,)), tunes=False)
        assert set(data) == needed
    _, data = look(lab, replace(PLAN, models=(CLIP_BASE,)), tunes=False, needs_posterior=False)
    assert set(data) == {"openmoji-black"}


def test_items_that_look_for_no_tau_or_temperature() -> None:
    assert {item.name for item in ITEMS.values() if item.world.validation and not item.tunes} == {
        "pseudo_count_results",
        "results_activelearning",
        "results_activelearning_clip_huge",
        "results_activelearning_siglip_base",
        "active_learning",
        "results_knn_method_ablation",
        "cosine_similarity",
        "perturbation_plot",
        "independence_ratio",
    }


def test_what_an_item_has_no_use_for_is_left_out(lab: Lab) -> None:
    unused = replace(PLAN, sets=("openmoji-black",), pairs=("train", "validation"))
    seen = preview(item(plan=Plan(("emoji-clip",), pairs=("train",)), reads_pairs=True), lab.on(unused))
    assert {(load.what, load.name) for load in seen.loads if load.what in ("images", "pairs")} == {
        ("images", "validation"),
        ("pairs", "train"),
    }


# Where it is ----------------------------------------------------------------------------------------------------------


def test_pairs_of_the_hub_are_not_fetched(lab: Lab) -> None:
    _, data = look(lab, replace(PLAN, pairs=("owner/name:train",)), reads_pairs=True)
    load = data["owner/name:train"]
    assert (load.where, load.size, load.here) == ("would be fetched from the Hub: owner/name", None, False)
    assert load.encode == PAIRS  # at most


def test_pairs_are_where_they_were_found(lab: Lab, tmp_path: Path) -> None:
    captioned(Path("near"), 2)
    captioned(tmp_path / "root" / "far", 3)
    _, data = look(lab, replace(PLAN, pairs=("near",)), reads_pairs=True)
    assert (data["near"].where, data["near"].count, data["near"].encode) == ("near", 2, 2)
    _, data = look(lab, replace(PLAN, pairs=("far",)), reads_pairs=True)
    assert (data["far"].where, data["far"].count) == (str(tmp_path / "root" / "far"), 3)
    assert find_pairs("absent", lab.root).where == f"expected in {tmp_path / 'root' / 'absent'}"
    Path("near/part.parquet").write_bytes(b"")
    seen, data = look(lab, replace(PLAN, pairs=("near",)), reads_pairs=True)
    assert (seen.to_encode, seen.seconds) == (f"{TEST + VALIDATION} and more", None)


def test_sets_are_where_they_were_found(lab: Lab, tmp_path: Path) -> None:
    image_folder(Path("mine/val"), 2)
    image_folder(Path("mine/test"), 4)
    _, data = look(lab, replace(PLAN, sets=("mine:val", "mine")))
    assert (data["mine:val"].where, data["mine:val"].count) == ("mine/val", 4)
    assert (data["mine"].where, data["mine"].count) == ("mine/test", 8)
    assert data["mine:val"].size == bytes_in(Path("mine/val"))
    seen, data = look(lab, replace(PLAN, sets=("mine:other", "owner/name", "datasets:owner/table", "nowhere")))
    assert "has no split 'other'" in data["mine:other"].where
    assert data["owner/name"].where == "would be fetched from the Hub: owner/name"
    assert data["datasets:owner/table"].where == "would be fetched from the Hub: owner/table"
    assert data["nowhere"].where == "not here"
    assert not any(load.here for name, load in data.items() if name != "validation")
    assert seen.to_encode == f"{VALIDATION} and more"


def test_office_home_is_one_archive_of_four_domains(lab: Lab, tmp_path: Path) -> None:
    domains = [find_set(name, lab.root) for name in COLLECTIONS["officehome"].sets.values()]
    assert [load.count for load in domains] == [2427, 4365, 4439, 4357]
    assert sum(load.size or 0 for load in domains) == pytest.approx(1.1e9, abs=4)
    assert find_set("officehome", lab.root).count == 2427  # Art is what it is without a split
    image_folder(tmp_path / "root" / "officehome" / "Real World", 5)
    _, data = look(lab, replace(PLAN, sets=("officehome:RealWorld", "officehome:Art")))
    found = data["officehome:RealWorld"]
    assert (found.where, found.count) == (str(tmp_path / "root" / "officehome" / "Real World"), 10)
    assert not data["officehome:Art"].here


def test_a_subset_needs_its_list_and_the_whole(lab: Lab, tmp_path: Path) -> None:
    both = find_set("imagenet-100", lab.root)
    assert (both.count, both.here) == (1097, False)
    assert "imagenet-100.txt" in both.note
    assert "clip-benchmark/wds_imagenet1k" in both.where
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "imagenet-100.txt").write_text("one")
    assert find_set("imagenet-100", lab.root).where == "would be fetched from the Hub: clip-benchmark/wds_imagenet1k"


def test_the_sizes_of_the_world_are_of_its_splits(lab: Lab) -> None:
    load = find_set("openmoji-black", lab.root)
    assert load.size == bytes_in(FOLDER / "data" / "emoji" / "openmoji-black")
    assert find_pairs("train+validation", lab.root).size == sum(
        bytes_in(FOLDER / "data" / "emoji" / name) for name in ("train", "validation")
    )


# Models ---------------------------------------------------------------------------------------------------------------


def snapshot(hub: Path, repo: str, files: Path) -> Path:
    """The files as the Hub's library keeps them: blobs, and links to them."""
    top = hub / f"models--{repo.replace('/', '--')}"
    commit = top / "snapshots" / ("a" * 40)
    for folder in (commit, top / "blobs", top / "refs"):
        folder.mkdir(parents=True)
    (top / "refs" / "main").write_text("a" * 40)
    for file in files.iterdir():
        shutil.copy(file, top / "blobs" / file.name)
        (commit / file.name).symlink_to(top / "blobs" / file.name)
    return commit


def test_a_model_in_the_hubs_cache_is_here_once_its_weights_are(lab: Lab, tmp_path: Path) -> None:
    source = FOLDER / "models" / "emoji-clip"
    folder = snapshot(tmp_path / "hub", "owner/model", source)
    (load,) = find_model("owner/model")
    assert (load.here, load.where, load.size) == (True, str(folder), bytes_in(source))
    assert bytes_in(folder.parents[1]) == bytes_in(source) + 40  # blobs and links to them, once; and refs/main
    plan = replace(PLAN, models=("owner/model",))
    lab.images("emoji-clip", "openmoji-black")
    seen, data = look(lab, plan)
    assert "owner/model measured on this machine" in seen.how
    assert data["openmoji-black"].encode == 0  # the very same model has been there
    assert data["train"].encode == TRAIN  # it has no posterior of its own
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    (load,) = find_model("owner/model")
    assert (load.here, load.size, load.where) == (False, None, "would be fetched from the Hub: owner/model")
    seen, _ = look(replace(lab, _made={}), plan)
    assert seen.seconds is None
    assert "cannot be said before it is loaded" in seen.how


def test_weights_of_another_library_are_not_the_models(lab: Lab, tmp_path: Path) -> None:
    folder = snapshot(tmp_path / "hub", ARCHITECTURES["CLIP-Base"].hub, FOLDER / "models" / "emoji-clip")
    assert not find_model(CLIP_BASE)[0].here  # those of transformers are there, open_clip reads its own
    (folder / "open_clip_model.safetensors").write_bytes(b"weights")
    assert find_model(CLIP_BASE)[0].here
    seen, _ = look(lab, replace(PLAN, models=(CLIP_BASE,)))
    assert "is here and cannot be loaded" in seen.how


def test_a_saved_posterior_brings_its_model(lab: Lab) -> None:
    vlm = lab.vlm("emoji-clip")
    vlm.save_pretrained("posterior")
    assert [(load.what, load.name, load.here) for load in find_model("posterior")] == [
        ("posterior", "posterior", True),
        ("model", "emoji-clip", True),
        ("posterior", "emoji-clip", True),
    ]
    _, data = look(lab, replace(PLAN, models=("posterior",)))
    assert set(data) == {"openmoji-black", "validation"}


def test_the_hub_is_asked_again_afterwards(lab: Lab) -> None:
    with pytest.raises(BayesVLMError, match="neither one of world"):
        look(lab, replace(PLAN, domains="no-such-folder"))
    assert constants.HF_HUB_OFFLINE is False
