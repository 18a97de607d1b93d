"""ProLIP and PCME++ in BayesVLM: features, the three ways to predict, and what there is nothing to do with."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from models import published, test_pcmepp, test_prolip
from PIL import Image

from bayesvlm import BayesVLM, BayesVLMError
from bayesvlm.active import finetune, select
from bayesvlm.models import load_adapter
from bayesvlm.models.layout import save_clip_tokenizer, save_gemma_tokenizer
from bayesvlm.models.probabilistic import ProbabilisticAdapter
from bayesvlm.testing import check_adapter

TEXTS = ["a cat", "a photo of a dog", "zebra"]


def pictures() -> list[Image.Image]:
    return [Image.new("RGB", (40, 30), colour) for colour in ("red", "teal", "white", "black")]


@pytest.fixture(scope="module", params=["prolip", "pcmepp"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model as published, its tokenizer beside it."""
    place = tmp_path_factory.mktemp(request.param)
    config: dict[str, Any]
    if request.param == "prolip":
        vocabulary = save_gemma_tokenizer(place, [], 16, "SiglipProcessor")
        config, shapes_of = test_prolip.VARIANTS["ViT-B-16"], test_prolip.shapes_of
    else:
        vocabulary = save_clip_tokenizer(place, [], 16)
        config, shapes_of = test_pcmepp.VARIANTS["published"], test_pcmepp.shapes_of
    config = config | {"text_cfg": config["text_cfg"] | {"vocab_size": len(vocabulary), "context_length": 16}}
    state = published.random_state(shapes_of(config))
    if request.param == "prolip":
        state["logit_scale"], state["logit_bias"] = torch.tensor(2.5), torch.tensor(-7.0)
    else:
        state["negative_scale"], state["shift"] = torch.tensor([6.0]), torch.tensor([5.0])
    return published.save(place, config, state)


@pytest.fixture(scope="module")
def vlm(folder: Path) -> BayesVLM:
    return BayesVLM.from_pretrained(folder, device="cpu")


def test_the_adapter_is_sound(folder: Path) -> None:
    adapter = load_adapter(folder, device="cpu")
    assert isinstance(adapter, ProbabilisticAdapter)
    assert len(check_adapter(adapter).errors) > 5
    assert check_adapter(load_adapter(folder, device="cpu", dtype="float64")).tolerance == 1e-10
    json.dumps([adapter.architecture(), adapter.preprocessing()])


def test_features_are_the_model_s_own_gaussians(folder: Path, vlm: BayesVLM) -> None:
    adapter = load_adapter(folder, device="cpu")
    features = vlm.image_features(pictures())
    mean, log_variance = adapter.model.encode_image(adapter.preprocessor.to_pixels(pictures())["pixel_values"])
    assert torch.allclose(features.activations, mean, atol=1e-6)
    assert torch.allclose(features.log_variance, log_variance, atol=1e-6)
    embedded = vlm.embed_images(features)
    assert torch.allclose(embedded.covariance.per_item().variance, log_variance.exp(), rtol=1e-5)


def test_the_three_ways_to_predict(folder: Path, vlm: BayesVLM) -> None:
    images, texts = vlm.image_features(pictures()), vlm.text_features(TEXTS)
    model = load_adapter(folder, device="cpu").model
    scored = model.score((images.activations, images.log_variance), (texts.activations, texts.log_variance))
    native = vlm.classify(images, texts, method="native").probs
    assert torch.allclose(native, scored.softmax(dim=1), atol=1e-5), "the native one is the score it was trained with"
    cosines = images.activations @ texts.activations.T
    mean = vlm.classify(images, texts, method="mean").probs
    assert torch.allclose(mean, (vlm.scale * cosines).softmax(dim=1), atol=1e-6)
    assert torch.allclose(mean, vlm.plain(images, texts))
    moments = vlm.similarity(images, texts)
    shrunk = vlm.scale * moments.mean / (1 + math.pi / 8 * vlm.scale**2 * moments.variance).sqrt()
    found = vlm.classify(images, texts).probs
    assert torch.allclose(found, shrunk.softmax(dim=1), atol=1e-5)
    assert not torch.allclose(found, mean)
    assert not torch.allclose(found, native)
    drawn = vlm.replace(link="mc").classify(images, texts, draws=2000)
    assert drawn.probs.sum(dim=1) == pytest.approx(torch.ones(4))
    assert bool((drawn.epistemic >= 0).all())
    again = vlm.classify(pictures(), TEXTS).probs
    assert torch.allclose(again, found, atol=1e-6), "names and images as well as features"


def test_each_label_by_itself_goes_by_the_same_method(vlm: BayesVLM) -> None:
    images, texts = vlm.image_features(pictures()), vlm.text_features(TEXTS)
    native = vlm.adapter.native_logits(vlm.embed_images(images), vlm.embed_texts(texts))
    assert torch.allclose(vlm.classify(images, texts, method="native").label_probs, native.sigmoid(), atol=1e-6)
    mean = vlm.logits(images, texts) + vlm.logit_bias
    assert torch.allclose(vlm.classify(images, texts, method="mean").label_probs, mean.sigmoid(), atol=1e-6)


def test_no_code_beside_the_tokenizer_is_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # whoever is asked, agrees
    copied = Path(shutil.copytree(folder, tmp_path / "copied"))
    settings = json.loads((copied / "tokenizer_config.json").read_text())
    settings |= {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    (copied / "tokenizer_config.json").write_text(json.dumps(settings))
    (copied / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    with contextlib.suppress(BayesVLMError):  # either it loads without that code, or it is refused
        load_adapter(copied, device="cpu")
    assert not (tmp_path / "ran").exists()


def test_the_temperature_is_that_of_the_native_score(vlm: BayesVLM, folder: Path) -> None:
    expected = {"ProLIP": (math.exp(2.5), -7.0), "PCMEPP": (12.0, 5.0 - 12.0)}
    name = type(vlm.adapter.model).__name__
    assert (vlm.scale, vlm.logit_bias) == pytest.approx(expected[name], rel=1e-6)
    assert "variances of its own" in repr(vlm)


def test_there_is_nothing_to_fit_tune_or_keep(vlm: BayesVLM, tmp_path: Path) -> None:
    images, texts = vlm.image_features(pictures()), vlm.text_features(TEXTS)
    labels = [0, 1, 2, 0]
    why = "predicts its variances itself"
    bare = vlm.without_posterior()
    saved = BayesVLM.from_pretrained("emoji-clip", device="cpu").saved()
    assert torch.equal(bare.classify(images, texts).probs, vlm.classify(images, texts).probs)
    for attempt, sentence in (
        (lambda: vlm.fit([(images[:3], texts)]), "There is nothing to fit"),
        (lambda: bare.fit([(images[:3], texts)]), "There is nothing to fit"),
        (lambda: vlm.with_posterior(saved), "It takes no posterior"),
        (lambda: vlm.tune(images, labels, texts), "There is no tau to tune"),
        (lambda: vlm.replace(tau=2.0), "tau cannot be changed"),
        (lambda: vlm.save_pretrained(tmp_path / "kept"), "There are no factors"),
        (lambda: finetune(vlm, images, labels, texts), "There are no factors"),
        (lambda: select(vlm, images, images, texts, "epig", 1), "Online steps add to the Kronecker factors"),
    ):
        with pytest.raises(BayesVLMError, match=sentence) as found:
            attempt()
        assert why in str(found.value)
    assert len(select(vlm, images, images, texts, "targeted-bald", 2)) == 2


def test_a_plain_clip_has_no_native_score() -> None:
    clip = BayesVLM.from_pretrained("emoji-clip", device="cpu")
    images, texts = clip.image_features(pictures()), clip.text_features(TEXTS)
    assert torch.equal(clip.classify(images, texts, method="mean").probs, clip.plain(images, texts))
    with pytest.raises(BayesVLMError, match="emoji-clip predicts no variances, so its native score"):
        clip.classify(images, texts, method="native")
    with pytest.raises(BayesVLMError, match="method='magic' is not known"):
        clip.classify(images, texts, method="magic")


def test_a_distance_that_counts_for_a_match(tmp_path: Path) -> None:
    vocabulary = save_clip_tokenizer(tmp_path, [], 16)
    config = test_pcmepp.VARIANTS["published"]
    config = config | {"text_cfg": config["text_cfg"] | {"vocab_size": len(vocabulary), "context_length": 16}}
    state = published.random_state(test_pcmepp.shapes_of(config)) | {"negative_scale": torch.tensor([-1.0])}
    with pytest.raises(BayesVLMError, match=r"has negative_scale -1.0; a distance must count against a match"):
        load_adapter(published.save(tmp_path, config, state), device="cpu")
