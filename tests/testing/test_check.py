"""check_adapter passes every family, and each of its checks fails on an adapter broken in that way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import __version__ as transformers_version

from bayesvlm import Features
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.models import Adapter, load_adapter
from bayesvlm.models.adapter import TOLERANCE, Reference
from bayesvlm.testing import check_adapter

Damage = Callable[[Adapter], None]


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_every_family_is_sound(family: str, dtype: str, folders: dict[str, Path]) -> None:
    if family == "clip" and dtype == "float64" and transformers_version.startswith("4."):
        pytest.skip("CLIP of transformers 4 cannot run in float64")
    report = check_adapter(load_adapter(folders[family], device="cpu", dtype=dtype))
    assert len(report.errors) == 8, report
    assert all(0 <= error <= TOLERANCE[getattr(torch, dtype)] for error in report.errors.values()), report


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_every_family_is_sound_on_a_gpu(family: str, dtype: str, folders: dict[str, Path]) -> None:
    adapter = load_adapter(folders[family], device="cuda", dtype=dtype)
    check_adapter(adapter)
    assert adapter.encode_texts("a cat").activations.device.type == "cuda"
    assert adapter.image.weight.device.type == "cuda"


def test_the_report_reads_as_a_table(clip: Adapter) -> None:
    text = str(check_adapter(clip))
    assert clip.name in text
    assert "float32" in text
    assert "text padding" in text


def test_the_callers_own_inputs_are_used(clip: Adapter) -> None:
    pixels = torch.rand(3, 3, 20, 30, generator=torch.Generator().manual_seed(0))
    check_adapter(clip, images=pixels, texts=["a cat", "a much longer caption of a dog"])


def test_one_image_is_too_few(clip: Adapter) -> None:
    with pytest.raises(BayesVLMError, match=r"1 image\(s\) and 2 text\(s\)"):
        check_adapter(clip, images=torch.rand(1, 3, 20, 30), texts=["a", "b"])


def hotter(adapter: Adapter) -> None:
    adapter.logit_scale += 1e-3


def temperature_for_its_logarithm(adapter: Adapter) -> None:
    adapter.logit_scale = float(torch.tensor(adapter.logit_scale).exp())


def other_bias(adapter: Adapter) -> None:
    adapter.logit_bias = (adapter.logit_bias or 0.0) + 0.01


def other_image_weight(adapter: Adapter) -> None:
    adapter.image = replace(adapter.image, weight=adapter.image.weight.roll(1, dims=0))


def other_text_weight(adapter: Adapter) -> None:
    adapter.text = replace(adapter.text, weight=adapter.text.weight.roll(1, dims=0))


def training(adapter: Adapter) -> None:
    adapter.model.train()


def one_layer_training(adapter: Adapter) -> None:
    list(adapter.model.modules())[-1].train()


def gradients(adapter: Adapter) -> None:
    adapter.model.requires_grad_(True)


def features_with_gradients(adapter: Adapter) -> None:
    encode = adapter.encode_images
    adapter.encode_images = lambda *a, **k: Features(  # type: ignore[method-assign]
        encode(*a, **k).activations.requires_grad_(True), encode(*a, **k).residual
    )


def inference_features(adapter: Adapter) -> None:
    adapter.encode_texts = torch.inference_mode()(adapter.encode_texts)  # type: ignore[method-assign]


def unstable_images(adapter: Adapter) -> None:
    forward, calls = adapter.forward_pixels, []

    def drifting(pixels: dict) -> Features:
        calls.append(len(pixels))
        batch = forward(pixels)
        return batch.each(lambda rows: rows + 0.1 * (len(calls) > 1) * rows.roll(1, dims=1))

    adapter.forward_pixels = drifting  # type: ignore[method-assign]


def unstable_texts(adapter: Adapter) -> None:
    forward, calls = adapter.forward_texts, []

    def drifting(texts: list[str]) -> Features:
        calls.append(len(texts))
        batch = forward(texts)
        return batch.each(lambda rows: rows + 0.1 * (len(calls) > 1) * rows.roll(1, dims=1))

    adapter.forward_texts = drifting  # type: ignore[method-assign]


def image_alone_differs(adapter: Adapter) -> None:
    forward = adapter.forward_pixels

    def sensitive(pixels: dict) -> Features:
        batch = forward(pixels)
        return batch if len(batch) > 1 else batch.each(lambda rows: rows.roll(1, dims=1))

    adapter.forward_pixels = sensitive  # type: ignore[method-assign]


def zebras_alone_differ(adapter: Adapter) -> None:
    forward = adapter.forward_texts

    def sensitive(texts: list[str]) -> Features:
        batch = forward(texts)
        alone = len(texts) == 1 and "zebras" in texts[0]
        return batch.each(lambda rows: rows.roll(1, dims=1)) if alone else batch

    adapter.forward_texts = sensitive  # type: ignore[method-assign]


def padded_to_the_longest(adapter: Adapter) -> None:
    tokenizer = adapter._tokenizer
    adapter._tokenizer = lambda *a, **k: tokenizer(*a, **(k | {"padding": True, "padding_side": "left"}))
    adapter._tokenizer.init_kwargs = {}


def fewer_rows(adapter: Adapter) -> None:
    reference = adapter.embed_reference

    def shortened(*arguments: object) -> Reference:
        own = reference(*arguments)
        return replace(own, image_embeddings=own.image_embeddings[1:])

    adapter.embed_reference = shortened  # type: ignore[method-assign]


MUTANTS: list[tuple[Damage, str]] = [
    (hotter, "temperature and bias"),
    (temperature_for_its_logarithm, "temperature and bias"),
    (other_bias, "temperature and bias"),
    (other_image_weight, "image embeddings"),
    (other_text_weight, "text embeddings"),
    (fewer_rows, "image embeddings"),
    (training, "eval mode"),
    (one_layer_training, "eval mode"),
    (gradients, "gradients off"),
    (features_with_gradients, "gradients off"),
    (inference_features, "gradients off"),
    (unstable_images, "a second run, images"),
    (unstable_texts, "a second run, texts"),
    (padded_to_the_longest, "text padding"),
    (image_alone_differs, "image batches"),
    (zebras_alone_differ, "text batches"),
]


@pytest.mark.parametrize(("damage", "check"), MUTANTS, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_a_broken_adapter_fails(kind: str, damage: Damage, check: str, request: pytest.FixtureRequest) -> None:
    adapter = request.getfixturevalue(kind)
    damage(adapter)
    with pytest.raises(BayesVLMError, match=f"Check '{check}' failed for .*expected"):
        check_adapter(adapter)


def test_a_forgotten_residual_fails(siglip: Adapter) -> None:
    forward = siglip.forward_pixels
    siglip.image = replace(siglip.image, residual=False)
    siglip.forward_pixels = lambda pixels: Features(forward(pixels).activations)  # type: ignore[method-assign]
    with pytest.raises(BayesVLMError, match="Check 'image embeddings' failed"):
        check_adapter(siglip)


@pytest.mark.parametrize("tower", ["image", "text"])
def test_a_forgotten_bias_fails(siglip: Adapter, tower: str) -> None:
    setattr(siglip, tower, replace(getattr(siglip, tower), bias=None))
    with pytest.raises(BayesVLMError, match=f"Check '{tower} embeddings' failed"):
        check_adapter(siglip)


def test_dropout_that_ignores_eval_mode_fails(clip: Adapter) -> None:
    class Careless(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.dropout(x, 0.5, training=True)

    norm = clip.model.vision_model.post_layernorm
    clip.model.vision_model.post_layernorm = torch.nn.Sequential(norm, Careless()).eval()
    with pytest.raises(BayesVLMError, match="Check 'image embeddings' failed"):
        check_adapter(clip)
