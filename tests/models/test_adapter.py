"""Every family agrees with plain `transformers`, and encoding behaves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import normalize
from transformers import AutoImageProcessor, AutoModel, AutoProcessor, AutoTokenizer
from transformers import __version__ as transformers_version

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.models import Adapter, load_adapter
from bayesvlm.models import adapter as adapter_module
from bayesvlm.models.hooks import captured_inputs

PILLOW = {"use_fast": False} if transformers_version.startswith("4.") else {"backend": "pil"}

TEXTS = ["a photo of a cat", "two zebras", "a"]


def pictures() -> list[Image.Image]:
    generator = np.random.default_rng(3)
    shapes = ((40, 40), (30, 90), (90, 30))
    return [Image.fromarray(generator.integers(0, 256, (*shape, 3), dtype=np.uint8)) for shape in shapes]


def test_logits_equal_those_of_plain_transformers(family: str, folders: dict[str, Path], adapter: Adapter) -> None:
    """Processor and model straight from transformers, none of our code, against features and projections."""
    folder = folders[family]
    model = AutoModel.from_pretrained(folder).eval()
    padding = True if family == "clip" else "max_length"
    tokens = AutoTokenizer.from_pretrained(folder)(
        TEXTS, padding=padding, truncation=True, max_length=24, return_tensors="pt"
    )
    pixels = AutoImageProcessor.from_pretrained(folder, **PILLOW)(images=pictures(), return_tensors="pt")
    with torch.no_grad():
        expected = model(**tokens, **pixels).logits_per_image

    g = normalize(adapter.image.embed(adapter.encode_images(pictures())), dim=1)
    h = normalize(adapter.text.embed(adapter.encode_texts(TEXTS)), dim=1)
    logits = np.exp(adapter.logit_scale) * g @ h.T + (adapter.logit_bias or 0.0)
    torch.testing.assert_close(logits, expected, atol=1e-3, rtol=1e-5)
    assert adapter.loss == ("infonce" if family == "clip" else "sigmoid")
    assert adapter.image.residual is (family != "clip")
    assert adapter.text.residual is False


def test_the_published_layout_loads_with_auto_classes(family: str, folders: dict[str, Path]) -> None:
    processor = AutoProcessor.from_pretrained(folders[family])
    assert (
        type(processor).__name__
        == {
            "clip": "CLIPProcessor",
            "siglip": "SiglipProcessor",
            "siglip2-fixed": "SiglipProcessor",
            "siglip2-naflex": "Siglip2Processor",
        }[family]
    )


def test_clip_pools_the_first_end_token(folders: dict[str, Path], clip: Adapter) -> None:
    tokens = AutoTokenizer.from_pretrained(folders["clip"])(TEXTS, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = clip.model.text_model(**tokens).last_hidden_state
    ends = tokens["attention_mask"].sum(dim=1) - 1
    torch.testing.assert_close(clip.encode_texts(TEXTS).activations, hidden[range(3), ends])


def test_any_text_can_be_written(adapter: Adapter) -> None:
    texts = ["", " ", "日本語 😀", "Ünïcödé", "<mask>", "\x00", "'s", "x" * 5000]
    features = adapter.encode_texts(texts)
    assert len(features) == len(texts)


def test_siglip_ignores_case_and_clip_too(adapter: Adapter) -> None:
    upper, lower = adapter.encode_texts("A Photo OF a CAT"), adapter.encode_texts("a photo of a cat")
    torch.testing.assert_close(upper.activations, lower.activations)
    other = adapter.encode_texts("a photo of a dog")
    assert not torch.allclose(upper.activations, other.activations, atol=1e-3)


def test_a_long_text_is_its_beginning(adapter: Adapter) -> None:
    long, longer = adapter.encode_texts("a photo of " * 30), adapter.encode_texts("a photo of " * 300)
    torch.testing.assert_close(long.activations, longer.activations)


def test_features_are_ordinary_tensors(adapter: Adapter) -> None:
    features = adapter.encode_images(pictures())
    for tensor in filter(lambda value: value is not None, (features.activations, features.residual)):
        assert tensor.dtype == torch.float32
        assert not tensor.requires_grad
        tensor.add_(1.0)  # refused for inference tensors
    weight = torch.ones(features.activations.shape[1], requires_grad=True)
    (features.activations @ weight).sum().backward()  # refused too


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_precision_of_what_comes_back(folders: dict[str, Path], dtype: str) -> None:
    stored = load_adapter(folders["siglip2-fixed"], device="cpu")
    adapter = load_adapter(folders["siglip2-fixed"], device="cpu", dtype=dtype)
    wide = torch.float64 if dtype == "float64" else torch.float32
    assert adapter.encode_texts("a").activations.dtype == wide
    assert adapter.image.weight.dtype == wide
    assert torch.equal(adapter.image.weight.float(), stored.image.weight), "the projection must not be rounded"
    assert adapter.logit_scale == stored.logit_scale
    assert adapter.dtype == getattr(torch, dtype)


def test_any_model_handed_over_is_frozen(clip: Adapter) -> None:
    model = clip.model.train().requires_grad_(True)
    cpu = torch.device("cpu")
    again = type(clip)(model, clip._image_processor, clip._tokenizer, "again", None, cpu, torch.float32)
    assert not any(module.training for module in again.model.modules())
    assert not any(parameter.requires_grad for parameter in again.model.parameters())


def test_the_projection_is_a_copy(clip: Adapter) -> None:
    before = clip.image.weight.clone()
    with torch.no_grad():
        clip.model.visual_projection.weight.zero_()
    assert torch.equal(clip.image.weight, before)


def test_one_image_or_text_is_a_batch_of_one(clip: Adapter) -> None:
    assert len(clip.encode_images(pictures()[0])) == 1
    assert len(clip.encode_texts("a cat")) == 1


def test_paths_arrays_and_tensors_agree(clip: Adapter, tmp_path: Path) -> None:
    image = pictures()[1]
    image.save(tmp_path / "a.png")
    array = np.asarray(image)
    forms = [image, str(tmp_path / "a.png"), array, torch.from_numpy(array.copy()).permute(2, 0, 1)]
    rows = clip.encode_images(forms).activations
    torch.testing.assert_close(rows[1:], rows[:1].expand(3, -1), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 1), (1, 50), (3, 50), (50, 3), (3, 3)])
def test_very_small_images_are_not_taken_for_channels(adapter: Adapter, shape: tuple[int, int]) -> None:
    """[3, W, 3] pixels could be read either way; a flat colour must look the same at any size."""
    small, large = (Image.new("RGB", (shape[1] * scale, shape[0] * scale), "orange") for scale in (1, 8))
    features = adapter.encode_images([small, large]).activations
    torch.testing.assert_close(features[0], features[1])


def test_progress_counts_inputs_and_is_silent_unless_asked(
    clip: Adapter, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = clip.encode_texts(TEXTS, batch_size=2)
    assert capsys.readouterr() == ("", "")
    steps: list[int] = []

    @contextmanager
    def recorder(description: str, *, total: int, unit: str, show: bool) -> Iterator[object]:
        assert (description, total, unit, show) == ("Encoding texts", 3, "texts", True)
        yield steps.append

    monkeypatch.setattr(adapter_module, "progress_bar", recorder)
    shown = clip.encode_texts(TEXTS, batch_size=2, progress=True)
    assert torch.equal(plain.activations, shown.activations)
    assert steps == [2, 1]


@pytest.mark.parametrize("batch_size", [0, -1, 2.5, True, None])
def test_bad_batch_sizes(clip: Adapter, batch_size: object) -> None:
    with pytest.raises(BayesVLMError, match=r"batch_size is .*at least 1"):
        clip.encode_texts(TEXTS, batch_size=batch_size)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "no texts"),
        (None, "got NoneType"),
        (["a", 3], r"texts\[1\] is 3, a int"),
        ([b"a"], r"texts\[0\] is b'a', a bytes"),
        (["a", "b\ud800"], r"texts\[1\] .*not valid Unicode"),
    ],
)
def test_bad_texts(clip: Adapter, texts: object, message: str) -> None:
    with pytest.raises(BayesVLMError, match=message):
        clip.encode_texts(texts)  # type: ignore[arg-type]


def test_a_bad_image_is_named(clip: Adapter, tmp_path: Path) -> None:
    bad = tmp_path / "broken.jpg"
    bad.write_bytes(b"\xff\xd8\xff\xe0 not really")
    with pytest.raises(BayesVLMError, match=r"images\[3\] \('.*broken.jpg'\)"):
        clip.encode_images([*pictures(), bad], batch_size=2)


def test_tokens_outside_the_vocabulary(clip: Adapter) -> None:
    clip.model.config.text_config.vocab_size = 100
    with pytest.raises(BayesVLMError, match=r"gave token .* knows only 100 tokens"):
        clip.encode_texts("a")


def test_hooks_are_gone_after_an_error(clip: Adapter, monkeypatch: pytest.MonkeyPatch) -> None:
    def boom(**inputs: object) -> None:
        raise KeyError("boom")

    monkeypatch.setattr(clip.model, "get_image_features", boom)
    with pytest.raises(KeyError):
        clip.encode_images(pictures())
    assert not clip.model.visual_projection._forward_pre_hooks


def test_hooks_see_only_their_own_thread() -> None:
    layer = torch.nn.Linear(2, 2)
    with captured_inputs(layer) as (entering,):
        thread = threading.Thread(target=layer, args=(torch.zeros(5, 2),))
        thread.start()
        thread.join()
        layer(torch.ones(1, 2))
    assert [len(tensor) for tensor in entering] == [1]


def test_threads_do_not_mix(siglip: Adapter) -> None:
    texts = [f"a photo of {number}" for number in range(40)]
    expected = siglip.encode_texts(texts, batch_size=1).activations
    found: dict[int, torch.Tensor] = {}

    def work(number: int) -> None:
        found[number] = siglip.encode_texts(texts[number::4], batch_size=1).activations

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(4):
        torch.testing.assert_close(found[number], expected[number::4])
