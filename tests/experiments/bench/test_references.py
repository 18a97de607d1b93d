"""The references do what they are references for: the same answers as ours, by the textbook's way."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from bayesvlm import BayesVLM
from bayesvlm.active import Epig, rank
from bayesvlm.active.acquisition import epig
from bayesvlm.core.curvature import infonce_curvature
from bayesvlm.core.features import Features
from bayesvlm.data import resolve
from bayesvlm.experiments.bench import cache, stream
from bayesvlm.experiments.bench.curvature import per_sample
from bayesvlm.experiments.bench.epig import definition, problem, textbook_draws
from bayesvlm.experiments.bench.fit import EncoderAlone, EncoderWatch, fit_shards, share_outside
from bayesvlm.experiments.bench.generated import (
    MODELS,
    caption,
    clip_like,
    jpegs,
    make_images,
    make_shards,
    save_random,
)
from bayesvlm.experiments.bench.head import plain_head
from bayesvlm.images.decoding import to_rgb


@pytest.fixture(scope="module")
def vlm(tmp_path_factory: pytest.TempPathFactory) -> BayesVLM:
    """A tiny model with a posterior."""
    return stream.fitted(save_random(tmp_path_factory.mktemp("model"), "tiny"), "cpu")


def test_the_per_sample_form_is_the_curvature() -> None:
    source, target = (tensor.double() for tensor in clip_like(40, 12))
    ours = infonce_curvature(source[:17], target, 30.0)
    torch.testing.assert_close(per_sample(source[:17], target, 30.0), ours, rtol=1e-10, atol=1e-12)


def test_cosines_are_those_of_a_clip() -> None:
    image, text = (torch.nn.functional.normalize(tensor, dim=1) for tensor in clip_like(400, 512))
    cosines = image @ text.T
    rest = cosines[~torch.eye(400, dtype=torch.bool)]
    assert float(cosines.diagonal().mean()) == pytest.approx(0.30, abs=0.01)
    assert float(rest.mean()) == pytest.approx(0.12, abs=0.01)
    assert float(rest.std()) == pytest.approx(0.04, abs=0.01)


def test_the_plain_head_is_the_model_without_its_posterior(vlm: BayesVLM) -> None:
    draw = torch.Generator().manual_seed(0)
    images = torch.randn(5, vlm.image.activation_width, generator=draw)
    names = torch.randn(3, vlm.text.activation_width, generator=draw)
    scaled = BayesVLM.from_projections(vlm.image.weight, vlm.text.weight, math.log(100.0))
    expected = scaled.plain(Features(images), Features(names))
    probs = plain_head(vlm.image.weight, scaled.text.embed(Features(names)))(images)
    torch.testing.assert_close(probs, expected, rtol=1e-4, atol=1e-6)


# EPIG -----------------------------------------------------------------------------------------------------------------


def test_the_definition_of_epig_by_loops() -> None:
    generator = torch.Generator().manual_seed(0)
    pool, target = (
        torch.softmax(2 * torch.randn(6, count, 3, generator=generator, dtype=torch.float64), dim=2) for count in (4, 5)
    )
    expected = []
    for item in range(4):
        told = 0.0
        for other in range(5):
            joint = sum(torch.outer(pool[k, item], target[k, other]) for k in range(6)) / 6
            independent = torch.outer(joint.sum(dim=1), joint.sum(dim=0))
            told += float((joint * (joint / independent).log()).sum()) / 5
        expected.append(told)
    found = definition(pool, target)
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(epig(pool, target), found, rtol=1e-2, atol=2e-6)  # which may leave out 1e-6 nats


def test_textbook_draws_have_the_posteriors_covariance() -> None:
    """Of logits' directions: what the draws spread is what the library's own draws spread, to Monte Carlo error."""
    fitted, images, names, labels = problem(20, 4, 12, 8, "cpu")
    probs = textbook_draws(fitted, images, names, 3000)
    scores = definition(probs[:, :15], probs[:, 15:])
    asked = {"draws": 3000, "options": Epig(candidates=15, targets=5), "progress": False}
    found = rank(fitted, images[:15], images[15:], names, "epig", 1, labels[:15], **asked)
    item = int(found.indices[0])
    assert float(found.scores[0]) == pytest.approx(float(scores[item]), rel=0.25)
    assert float(scores[item]) > 0.7 * float(scores.max())


# Streaming, the cache, fitting ----------------------------------------------------------------------------------------


def test_both_ways_of_streaming_predict_the_same(vlm: BayesVLM, tmp_path: Path) -> None:
    paths = make_images(tmp_path / "images", 7, 5)
    classes = vlm.text_features(["a dog", "a boat", "a house"])
    plain = stream.one_after_another(vlm, paths, classes, 3)
    assert plain.shape == (7, 3)
    torch.testing.assert_close(stream.streamed(vlm, paths, classes, 3), plain)
    torch.testing.assert_close(plain[5:], plain[:2])  # links to the first two


def test_the_cache_gives_what_was_encoded(vlm: BayesVLM, tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_images(tmp_path / "images" / name, 3)
    kept = cache.FeatureCache(tmp_path / "cache")
    fresh, first, again = (cache.features(vlm, tmp_path / "images", where) for where in (None, kept, kept))
    torch.testing.assert_close(first.activations, fresh.activations)
    assert torch.equal(again.activations, first.activations)


def test_shards_hold_the_pairs(vlm: BayesVLM, tmp_path: Path) -> None:
    make_shards(tmp_path / "shards", 7, per_shard=3, distinct=4)
    assert sorted(path.name for path in (tmp_path / "shards").glob("*.tar")) == ["00000.tar", "00001.tar", "00002.tar"]
    assert vlm.copy().fit(resolve(tmp_path / "shards", kind="pairs").open(), progress=False).factors["image"].n == 7
    stored = list(resolve(tmp_path / "shards", kind="pairs").open().stored())
    assert [pair.text for pair in stored] == [caption(number) for number in range(7)]
    images = [to_rgb(pair.image).tobytes() for pair in stored]
    assert images == [to_rgb(content).tobytes() for content in jpegs(7, 4)]
    assert images[4] == images[0] != images[1]


def test_a_fit_from_shards_is_one_of_its_features(vlm: BayesVLM, tmp_path: Path) -> None:
    shards = make_shards(tmp_path / "shards", 20, per_shard=8)
    alone = EncoderAlone(vlm, 20, 6)
    images = [vlm.encoder("images").encode_pixels(batch).activations for batch in alone.pixels]
    expected = vlm.copy().fit([(Features(torch.cat(images)), vlm.text_features(alone.captions))], progress=False)
    found = fit_shards(vlm, shards, 6)
    for tower, factors in found.factors.items():
        torch.testing.assert_close(factors.A, expected.factors[tower].A, rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(factors.B, expected.factors[tower].B, rtol=1e-3, atol=1e-6)


def test_the_watch_sees_every_call_of_a_tower_and_leaves_nothing_behind(
    vlm: BayesVLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, watch = EncoderAlone(vlm, 10, 4), EncoderWatch(vlm)
    ticks = iter(range(1000))
    monkeypatch.setattr(watch, "_moment", lambda: float(next(ticks)))
    with watch.watching() as share:
        alone.both()
    calls = 3 + 3  # ten inputs, four at a time, in both towers
    assert share() == pytest.approx(1 - calls / (2 * calls + 1))
    assert not any(tower._forward_hooks or tower._forward_pre_hooks for tower in watch.towers)


def test_encoders_at_the_same_time_count_once() -> None:
    assert share_outside([(2.0, 4.0), (0.0, 1.0), (3.0, 3.5)], 4.0) == pytest.approx(0.25)
    assert share_outside([], 4.0) == 1.0
    assert share_outside([(0.0, 4.0)], 4.0) == 0.0


def test_the_named_shape_is_the_published_one() -> None:
    from transformers import CLIPConfig

    config = CLIPConfig(**MODELS["ViT-B/32"])
    vision, text = config.vision_config, config.text_config
    assert (vision.hidden_size, vision.num_hidden_layers, vision.patch_size, vision.image_size) == (768, 12, 32, 224)
    assert (text.hidden_size, text.num_hidden_layers, text.max_position_embeddings) == (512, 12, 77)
    assert config.projection_dim == 512
