"""Features of data sets: the model's own, encoded once, and never those of other weights, images or views."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from bayesvlm import BayesVLM, BayesVLMError
from bayesvlm.data import ImageFolder, PairFolder
from bayesvlm.data.cache import FeatureCache
from bayesvlm.data.distortion import Distortion
from bayesvlm.data.views import Views
from bayesvlm.experiments import feature_store
from bayesvlm.experiments.feature_store import EncodedSet, FeatureStore
from bayesvlm.testing.tiny import save_tiny_clip, save_tiny_siglip

CLASSES = ("cat", "dog", "horse")


@pytest.fixture(scope="module", params=[save_tiny_clip, save_tiny_siglip], ids=["clip", "siglip"])
def vlm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> BayesVLM:
    folder = tmp_path_factory.mktemp("model")
    request.param(folder)
    return BayesVLM.from_pretrained(str(folder), device="cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Eight images of three classes."""
    random = np.random.default_rng(0)
    for number in range(8):
        place = tmp_path / "set" / CLASSES[number % 3]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(place / f"{number}.png")
    return tmp_path / "set"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch, vlm: BayesVLM) -> list[int]:
    """How many images every call of the encoder got."""
    made: list[int] = []
    adapter = type(vlm.adapter)
    honest = adapter.encode_pixels

    def counted(self: object, pixels: dict[str, Tensor]) -> object:
        made.append(len(pixels["pixel_values"]))
        return honest(self, pixels)

    monkeypatch.setattr(adapter, "encode_pixels", counted)
    return made


def same(first: EncodedSet, second: EncodedSet) -> bool:
    residuals = (first.features.residual, second.features.residual)
    return (
        torch.equal(first.features.activations, second.features.activations)
        and (residuals[0] is None) == (residuals[1] is None)
        and (residuals[0] is None or torch.equal(*residuals))
        and torch.equal(first.labels, second.labels)
        and list(first.keys) == list(second.keys)
        and first.skipped == second.skipped
    )


def test_they_are_the_model_s_own(vlm: BayesVLM, folder: Path, tmp_path: Path) -> None:
    data = ImageFolder.open(folder)
    expected = vlm.image_features(list(data.paths))
    for cache in (None, FeatureCache(tmp_path / "cache")):
        found = FeatureStore(vlm, cache).images(data)
        torch.testing.assert_close(found.features.activations, expected.activations)
        if expected.residual is not None:
            torch.testing.assert_close(found.features.residual, expected.residual)
        assert found.labels.tolist() == list(data.labels)
        assert found.keys == [path.relative_to(folder).as_posix() for path in data.paths]
        assert found.skipped == {}
    texts = FeatureStore(vlm).texts(CLASSES)
    torch.testing.assert_close(texts.activations, vlm.text_features(list(CLASSES)).activations)


def test_a_second_time_nothing_is_encoded(vlm: BayesVLM, folder: Path, tmp_path: Path, calls: list[int]) -> None:
    cache = FeatureCache(tmp_path / "cache")
    first = FeatureStore(vlm, cache).images(ImageFolder.open(folder))
    assert sum(calls) == 8
    prompts = FeatureStore(vlm, cache).texts(CLASSES)
    again = FeatureStore(vlm, cache).images(ImageFolder.open(folder))
    assert sum(calls) == 8
    assert same(first, again)
    assert torch.equal(FeatureStore(vlm, cache).texts(CLASSES).activations, prompts.activations)
    assert not torch.equal(FeatureStore(vlm, cache).texts(["a", "b", "c"]).activations, prompts.activations)


def test_views_are_cached_by_what_they_are(vlm: BayesVLM, folder: Path, tmp_path: Path, calls: list[int]) -> None:
    cache, data = FeatureCache(tmp_path / "cache"), ImageFolder.open(folder)
    found = FeatureStore(vlm, cache).images(data, Views(5))
    assert calls == [40], "the views of many images share one call"
    assert len(found.features) == 40
    plain = FeatureStore(vlm, cache).images(data)
    torch.testing.assert_close(found.features.activations[::5], plain.features.activations, rtol=1e-4, atol=1e-5)
    FeatureStore(vlm, cache).images(data, Views(5))
    assert sum(calls) == 48
    other = FeatureStore(vlm, cache).images(data, Views(5, seed=1))
    assert sum(calls) == 88
    assert not torch.allclose(other.features.activations, found.features.activations)


def repaint(folder: Path) -> None:
    Image.new("RGB", (40, 40), "red").save(next(folder.rglob("*.png")))


def relabel(folder: Path) -> None:
    image = next((folder / "cat").iterdir())
    shutil.move(image, folder / "dog" / image.name)


def rename(folder: Path) -> None:
    (folder / "cat").rename(folder / "kitten")


def rename_image(folder: Path) -> None:
    image = next((folder / "cat").iterdir())
    image.rename(image.with_stem("another"))


@pytest.mark.parametrize("change", [repaint, relabel, rename, rename_image])
def test_changed_data_are_encoded_again(
    vlm: BayesVLM, folder: Path, tmp_path: Path, calls: list[int], change: Callable[[Path], None]
) -> None:
    cache = FeatureCache(tmp_path / "cache")
    FeatureStore(vlm, cache).images(ImageFolder.open(folder))
    change(folder)
    found = FeatureStore(vlm, cache).images(ImageFolder.open(folder))
    assert sum(calls) == 16
    assert same(found, FeatureStore(vlm).images(ImageFolder.open(folder)))


def test_changed_weights_are_another_model(vlm: BayesVLM, folder: Path, tmp_path: Path) -> None:
    assert vlm.adapter is not None
    cache = FeatureCache(tmp_path / "cache")
    before = FeatureStore(vlm, cache).images(ImageFolder.open(folder))
    weight = next(p for name, p in vlm.adapter.model.named_parameters() if "vision" in name and p.ndim > 1)
    kept = weight.detach().clone()
    try:
        with torch.no_grad():
            weight += 0.1
        after = FeatureStore(vlm, cache).images(ImageFolder.open(folder))
    finally:
        with torch.no_grad():
            weight.copy_(kept)
    assert not torch.allclose(before.features.activations, after.features.activations)


def change_pixels(model: Path) -> None:
    edit(model / "preprocessor_config.json", image_mean=[0.1, 0.1, 0.1])


def change_tokens(model: Path) -> None:
    """Two words change places in the vocabulary."""
    tokens = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokens["model"]["vocab"]
    first, second = sorted(vocabulary, key=vocabulary.get)[10:12]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (model / "tokenizer.json").write_text(json.dumps(tokens), encoding="utf-8")
    if (model / "vocab.json").exists():
        (model / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")


def change_activation(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    edit(model / "config.json", vision_config={**config["vision_config"], "hidden_act": "relu"})


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize("change", [change_pixels, change_tokens, change_activation])
@pytest.mark.parametrize("save", [save_tiny_clip, save_tiny_siglip])
def test_the_same_weights_used_otherwise_are_another_model(
    tmp_path: Path, save: Callable[[Path], Path], change: Callable[[Path], None]
) -> None:
    model = save(tmp_path / "model")
    before = FeatureStore(BayesVLM.from_pretrained(str(model), device="cpu")).identity
    moved = shutil.copytree(model, tmp_path / "moved")
    assert FeatureStore(BayesVLM.from_pretrained(str(moved), device="cpu")).identity == before, (
        "where it lies is no matter"
    )
    change(moved)
    after = FeatureStore(BayesVLM.from_pretrained(str(moved), device="cpu")).identity
    assert after["weights"] == before["weights"]
    assert after != before


def test_a_folder_is_the_same_wherever_it_lies(vlm: BayesVLM, folder: Path, tmp_path: Path) -> None:
    moved = ImageFolder.open(shutil.copytree(folder, tmp_path / "elsewhere"))
    here = ImageFolder.open(folder)
    assert moved.fingerprint() == here.fingerprint()
    assert same(FeatureStore(vlm).images(moved, Views(3)), FeatureStore(vlm).images(here, Views(3)))


def test_using_a_model_does_not_make_it_another(vlm: BayesVLM) -> None:
    before = FeatureStore(vlm).identity
    vlm.text_features(["a word", "some more words"])
    vlm.image_features([Image.new("RGB", (30, 20))])
    assert FeatureStore(vlm).identity == before


def test_what_cannot_be_read_is_left_out_and_named(vlm: BayesVLM, folder: Path, tmp_path: Path) -> None:
    broken = folder / "dog" / "0.png"
    broken.write_bytes(b"no image")
    cache = FeatureCache(tmp_path / "cache")
    for found in (FeatureStore(vlm, cache).images(ImageFolder.open(folder)) for _ in range(2)):
        assert len(found.labels) == 8
        assert list(found.skipped) == ["dog/0.png"]
        assert str(broken) in found.skipped["dog/0.png"]
    with pytest.raises(BayesVLMError, match="not an image"):
        FeatureStore(vlm).images(ImageFolder.open(folder, strict=True))


@pytest.mark.parametrize("cached", [True, False])
def test_a_set_without_images(vlm: BayesVLM, folder: Path, tmp_path: Path, cached: bool) -> None:
    for path in folder.rglob("*.png"):
        path.write_bytes(b"no image")
    with pytest.raises(BayesVLMError, match="set has no image that can be read"):
        FeatureStore(vlm, FeatureCache(tmp_path / "cache") if cached else None).images(ImageFolder.open(folder))


def test_an_interrupted_run_goes_on(
    vlm: BayesVLM, folder: Path, tmp_path: Path, calls: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_store, "_PART", 2)
    monkeypatch.setattr(feature_store, "_IMAGES", 2)
    data, cache = ImageFolder.open(folder), FeatureCache(tmp_path / "cache")
    whole = FeatureStore(vlm).images(data)
    calls.clear()

    store = FeatureStore(vlm, cache)
    stream = store.stream

    def interrupted(*given: Any, **options: Any) -> Iterator[Any]:
        yield from islice(stream(*given, **options), 2)
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "stream", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.images(data)
    assert calls == [2, 2]
    found = FeatureStore(vlm, cache).images(data)
    assert calls == [2, 2, 2, 2]
    torch.testing.assert_close(found.features.activations, whole.features.activations)
    assert list(found.keys) == list(whole.keys)


@pytest.fixture
def pairs(tmp_path: Path) -> PairFolder:
    """Seven images with captions, in batches of three; the second cannot be read."""
    folder = tmp_path / "pairs"
    folder.mkdir()
    random = np.random.default_rng(1)
    for number in range(7):
        Image.fromarray(random.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(f"picture number {number}")
    (folder / "1.png").write_bytes(b"no image")
    return PairFolder.open(folder, batch_size=3)


READABLE = (0, 2, 3, 4, 5, 6)


def encoded(vlm: BayesVLM, pairs: PairFolder, distortion: Distortion | None = None) -> list[Tensor]:
    """Activations of the images and texts of pairs that can be read, one after the other."""
    paths = [pairs.pairs[row][0] for row in READABLE]
    images = [Image.open(path) if distortion is None else distortion(Image.open(path)) for path in paths]
    texts = [pairs.pairs[row][1] for row in READABLE]
    return [
        torch.cat([vlm.image_features([image]).activations for image in images]),
        torch.cat([vlm.text_features([text]).activations for text in texts]),
    ]


def test_interrupted_texts_go_on(vlm: BayesVLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_store, "_PART", 3)
    prompts, seen = [f"caption {number}" for number in range(8)], []
    honest = vlm.encoder("texts").encode_texts

    def watched(texts: list[str], **options: Any) -> object:
        seen.append(texts)
        if len(seen) == 3:
            raise KeyboardInterrupt
        return honest(texts, **options)

    monkeypatch.setattr(type(vlm.adapter), "encode_texts", lambda _, texts, **options: watched(texts, **options))
    with pytest.raises(KeyboardInterrupt):
        FeatureStore(vlm, FeatureCache(tmp_path / "cache")).texts(prompts)
    found = FeatureStore(vlm, FeatureCache(tmp_path / "cache")).texts(prompts)
    assert seen == [prompts[:3], prompts[3:6], prompts[6:], prompts[6:]]
    torch.testing.assert_close(found.activations, honest(prompts, progress=False).activations, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("distortion", [None, Distortion("greyscale", 1.0), Distortion("blur", 20)])
def test_pairs_are_the_model_s_own(
    vlm: BayesVLM, pairs: PairFolder, tmp_path: Path, cached: bool, distortion: Distortion | None
) -> None:
    encoder = FeatureStore(vlm, FeatureCache(tmp_path / "cache") if cached else None)
    expected = encoded(vlm, pairs, distortion)
    for _ in range(2):
        found = encoder.pairs(pairs, distortion=distortion)
        for features, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(features.activations, wanted, rtol=1e-4, atol=1e-5)


def test_pairs_are_cached_by_what_was_done_to_them(
    vlm: BayesVLM, pairs: PairFolder, tmp_path: Path, calls: list[int]
) -> None:
    encoder = FeatureStore(vlm, FeatureCache(tmp_path / "cache"))
    plain = encoder.pairs(pairs)
    assert sum(calls) == 6
    distorted = [encoder.pairs(pairs, distortion=Distortion("blur", level)) for level in (10, 50)]
    assert sum(calls) == 18
    assert not torch.allclose(distorted[0][0].activations, plain[0].activations)
    assert not torch.allclose(distorted[0][0].activations, distorted[1][0].activations)
    assert torch.equal(distorted[0][1].activations, plain[1].activations), "texts stay"
    again = FeatureStore(vlm, FeatureCache(tmp_path / "cache")).pairs(pairs, distortion=Distortion("blur", 10.0))
    assert torch.equal(again[0].activations, distorted[0][0].activations)
    assert sum(calls) == 18


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 100])
def test_so_many_pairs_from_the_first(
    vlm: BayesVLM, pairs: PairFolder, tmp_path: Path, calls: list[int], limit: int
) -> None:
    whole = FeatureStore(vlm).pairs(pairs)
    calls.clear()
    for cache in (None, FeatureCache(tmp_path / "cache")):
        some = FeatureStore(vlm, cache).pairs(pairs, limit)
        for features, all_of_them in zip(some, whole, strict=True):
            assert len(features) == min(limit, 6)
            expected = all_of_them.activations[:limit]
            torch.testing.assert_close(features.activations, expected, rtol=1e-4, atol=1e-5)
    assert sum(calls) == 2 * min(limit, 6), "no image is encoded that is not asked for"


@pytest.mark.parametrize("done", [1, 2])
def test_interrupted_pairs_go_on(
    vlm: BayesVLM, pairs: PairFolder, tmp_path: Path, calls: list[int], monkeypatch: pytest.MonkeyPatch, done: int
) -> None:
    monkeypatch.setattr(feature_store, "_PART", 2)
    monkeypatch.setattr(feature_store, "_PAIRS", 3)
    cache, blur = FeatureCache(tmp_path / "cache"), Distortion("blur", 30)
    whole = FeatureStore(vlm).pairs(pairs, distortion=blur)
    assert calls == [2, 3, 1], "batches of three, without the one that cannot be read"
    calls.clear()
    honest = FeatureStore._encode_tower

    def interrupted(self: FeatureStore, *given: Any) -> object:
        if len(calls) == done:
            raise KeyboardInterrupt
        return honest(self, *given)

    monkeypatch.setattr(FeatureStore, "_encode_tower", interrupted)
    with pytest.raises(KeyboardInterrupt):
        FeatureStore(vlm, cache).pairs(pairs, distortion=blur)
    monkeypatch.setattr(FeatureStore, "_encode_tower", honest)
    found = FeatureStore(vlm, cache).pairs(pairs, distortion=blur)
    assert calls == [2, 3, 1], "what was done is not done again"
    for features, expected in zip(found, whole, strict=True):
        torch.testing.assert_close(features.activations, expected.activations)


@pytest.mark.parametrize("cached", [True, False])
def test_pairs_that_cannot_be_used(vlm: BayesVLM, pairs: PairFolder, tmp_path: Path, cached: bool) -> None:
    encoder = FeatureStore(vlm, FeatureCache(tmp_path / "cache") if cached else None)
    with pytest.raises(BayesVLMError, match="limit is 0"):
        encoder.pairs(pairs, 0)
    for path, _ in pairs.pairs:
        path.write_bytes(b"no image")
    with pytest.raises(BayesVLMError, match="no pair whose image can be read"):
        encoder.pairs(pairs)


def test_images_and_texts_of_different_days(vlm: BayesVLM, pairs: PairFolder, tmp_path: Path) -> None:
    encoder = FeatureStore(vlm, FeatureCache(tmp_path / "cache"))
    encoder.pairs(pairs)
    last = pairs.pairs[-1][0]
    last.write_bytes(b"x" * last.stat().st_size)  # to the fingerprint the same file
    with pytest.raises(BayesVLMError, match="5 images and 6 texts of the same pairs"):
        FeatureStore(vlm, FeatureCache(tmp_path / "cache")).pairs(pairs, distortion=Distortion("blur", 10))


def test_a_model_without_an_encoder() -> None:
    bare = BayesVLM.from_projections(torch.ones(2, 3), torch.ones(2, 3), 1.0)
    with pytest.raises(BayesVLMError, match="has projections only and no encoder"):
        FeatureStore(bare)


# Photographs ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, vlm: BayesVLM) -> list[tuple[int, int]]:
    """The size of every image that was made ready for the encoder."""
    sizes: list[tuple[int, int]] = []
    preprocessor = vlm.adapter.preprocessor

    def watched(images: list[Image.Image]) -> object:
        sizes.extend(image.size for image in images)
        return preprocessor.to_pixels(images)

    watching = replace(preprocessor, to_pixels=watched)
    assert watching.blank  # which is made once
    sizes.clear()
    monkeypatch.setattr(vlm.adapter, "preprocessor", watching)
    return sizes


def enlarged(folder: Path) -> Path:
    """The images of the set, 640 x 480, as JPEG files and PNG files."""
    for number, path in enumerate(sorted(folder.rglob("*.png"))):
        with Image.open(path) as image:
            large = image.resize((640, 480))
        path.unlink()
        large.save(path.with_suffix(".jpg" if number % 2 else ".png"))
    return folder


@pytest.mark.parametrize("views", [None, Views(3)], ids=["images", "views"])
def test_no_more_is_kept_of_an_image_than_the_model_sees(
    vlm: BayesVLM, folder: Path, seen: list[tuple[int, int]], views: Views | None
) -> None:
    data = ImageFolder.open(enlarged(folder))
    FeatureStore(vlm).images(data, views)
    assert len(seen) == data.size * (1 if views is None else 3)
    assert max(max(size) for size in seen) <= 42


@pytest.mark.parametrize("distortion", [None, Distortion("jpeg", 10)], ids=["whole", "distorted"])
def test_no_more_is_kept_of_a_pair_than_the_model_sees(
    vlm: BayesVLM, folder: Path, seen: list[tuple[int, int]], distortion: Distortion | None
) -> None:
    for path in enlarged(folder).rglob("*.*g"):
        path.with_suffix(".txt").write_text("a picture")
    data = PairFolder.open(folder)
    FeatureStore(vlm).pairs(data, distortion=distortion)
    assert len(seen) == 16, "for the images, and for the texts of those that can be read"
    assert max(max(size) for size in seen) <= 42
    seen.clear()
    vlm.without_posterior().fit(data, progress=False)
    assert len(seen) == 8
    assert max(max(size) for size in seen) <= 42


def test_a_distortion_meets_the_whole_image(vlm: BayesVLM, folder: Path) -> None:
    for path in enlarged(folder).rglob("*.*g"):
        path.with_suffix(".txt").write_text("a picture")
    data, distortion = PairFolder.open(folder), Distortion("jpeg", 1)
    images, _ = FeatureStore(vlm).pairs(data, distortion=distortion)
    expected = vlm.image_features([distortion(image) for batch, _ in data for image in batch], progress=False)
    torch.testing.assert_close(images.activations, expected.activations)


def test_what_lies_beside_the_images_is_named_whenever_it_is_there(
    vlm: BayesVLM, folder: Path, tmp_path: Path, calls: list[int]
) -> None:
    cache, raw = FeatureCache(tmp_path / "cache"), folder / "cat" / "raw.dng"
    assert not FeatureStore(vlm, cache).images(ImageFolder.open(folder)).skipped
    raw.write_bytes(b"raw")
    found = FeatureStore(vlm, cache).images(ImageFolder.open(folder))
    assert list(found.skipped) == [str(raw)]
    assert len(calls) == 1, "and is no part of the features"


def test_what_lay_beside_the_images_is_forgotten_with_it(vlm: BayesVLM, folder: Path, tmp_path: Path) -> None:
    cache, raw = FeatureCache(tmp_path / "cache"), folder / "cat" / "raw.dng"
    raw.write_bytes(b"raw")
    assert FeatureStore(vlm, cache).images(ImageFolder.open(folder)).skipped
    raw.unlink()
    assert not FeatureStore(vlm, cache).images(ImageFolder.open(folder, strict=True)).skipped


def test_an_extra_that_reads_more_is_another_encoder(vlm: BayesVLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was skipped without it is read once it is installed, and not taken from the cache as skipped."""
    names = []
    for version in (None, "1.0", "2.0"):
        monkeypatch.setattr(feature_store, "heif_version", lambda version=version: version)
        names.append(json.dumps(FeatureStore(vlm).identity, sort_keys=True))
    assert len(set(names)) == 3
