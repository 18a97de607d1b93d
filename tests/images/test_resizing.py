"""Images shrunk as they are decoded: what the model sees is the same, to the bit; of large JPEG files nearly."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import normalize

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.images import decoding as module
from bayesvlm.images.decoding import to_rgb
from bayesvlm.images.resizing import Allowance, Resizing, processor_resizing, shortest_edge
from bayesvlm.models import Adapter, load_adapter
from bayesvlm.models.pixels import Pixels
from bayesvlm.models.probabilistic.pixels import RESAMPLE, to_pixels
from bayesvlm.testing.tiny import save_tiny_clip

SHAPES = ((64, 64), (40, 150), (151, 40), (333, 517), (900, 31), (20, 20), (33, 32), (70, 10))


def noise(height: int, width: int, seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Blobs of every size: smooth, as photographs are, with edges."""
    generator = np.random.default_rng(seed)
    image = np.zeros((height, width, 3))
    for side in (3, 9, 27, 81):
        grid = Image.fromarray(generator.integers(0, 256, (side, side, 3), dtype=np.uint8))
        image += np.asarray(grid.resize((width, height), Image.Resampling.BICUBIC)) / 4
    image[height // 3 : height // 2, width // 4 : width // 2] = 255
    return Image.fromarray(image.astype(np.uint8))


def jpeg(image: Image.Image, orientation: int | None = None, **options: object) -> bytes:
    exif, file = Image.Exif(), io.BytesIO()
    if orientation is not None:
        exif[0x0112] = orientation
    image.save(file, "JPEG", quality=90, exif=exif, **options)
    return file.getvalue()


@pytest.mark.parametrize("shape", SHAPES)
def test_the_model_sees_the_same_pixels(adapter: Adapter, shape: tuple[int, int]) -> None:
    image = noise(*shape)
    shrunk = adapter.read_image(image)
    assert shrunk.width * shrunk.height <= image.width * image.height
    found, expected = (adapter.preprocessor.to_pixels([each]) for each in (shrunk, to_rgb(image)))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_large_images_become_small(adapter: Adapter) -> None:
    shrunk = adapter.read_image(noise(700, 900))
    assert shrunk.width * shrunk.height < 100 * 100


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "pixels",
    [
        Pixels((32, 32), (0.5,) * 3, (0.5,) * 3),
        Pixels((32, 48), (0.5,) * 3, (0.5,) * 3),
        Pixels((32, 32), (0.5,) * 3, (0.5,) * 3, "bilinear", "squash"),
        Pixels((32, 48), (0.5,) * 3, (0.5,) * 3, "bicubic", "longest", 7),
    ],
    ids=lambda pixels: f"{pixels.resize_mode}-{pixels.size[1]}",
)
def test_the_pixels_of_open_clip_are_the_same(pixels: Pixels, shape: tuple[int, int]) -> None:
    image = noise(*shape)
    assert torch.equal(pixels([to_rgb(image, resizing=pixels.resizing)]), pixels([image]))


@pytest.mark.parametrize("shape", SHAPES)
def test_the_pixels_of_models_that_predict_variances_are_the_same(shape: tuple[int, int]) -> None:
    image, resizing = noise(*shape), Resizing(shortest_edge(32), RESAMPLE)
    assert torch.equal(to_pixels([to_rgb(image, resizing=resizing)], 32), to_pixels([image], 32))


@pytest.mark.parametrize(
    "settings",
    [
        {"do_resize": False, "size": {"shortest_edge": 32}, "resample": 3},
        {"size": {"shortest_edge": 32, "longest_edge": 64}, "resample": 3},
        {"size": {"height": 32, "width": 32}, "resample": None},
        {"resample": 3},
    ],
)
def test_processors_not_known_here_shrink_nothing(settings: dict[str, object]) -> None:
    assert processor_resizing(SimpleNamespace(to_dict=lambda: settings)) is None


SQUARE = Resizing(lambda width, height: (32, 32), Image.Resampling.BICUBIC)
WIDE = Resizing(lambda width, height: (64, 16), Image.Resampling.BICUBIC)
SHORT = Resizing(shortest_edge(32), Image.Resampling.BICUBIC)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The sizes that files are decoded at."""
    sizes: list[tuple[int, int]] = []
    honest = module._from_pil

    def watched(image: Image.Image, label: str) -> Image.Image:
        sizes.append(image.size)
        return honest(image, label)

    monkeypatch.setattr(module, "_from_pil", watched)
    return sizes


@pytest.mark.parametrize(
    ("size", "resizing", "expected"),
    [
        ((1024, 768), SHORT, (128, 96)),
        ((640, 480), SHORT, (160, 120)),
        ((255, 128), SHORT, (128, 64)),
        ((255, 127), SHORT, (255, 127)),
        ((1024, 70), SQUARE, (1024, 70)),
        ((1024, 1024), WIDE, (128, 128)),
        ((1024, 256), WIDE, (512, 128)),
    ],
)
def test_a_jpeg_is_decoded_at_no_less_than_twice_what_is_needed(
    decoded: list[tuple[int, int]], size: tuple[int, int], resizing: Resizing, expected: tuple[int, int]
) -> None:
    to_rgb(jpeg(photo(*size)), resizing=resizing)
    assert decoded == [expected], "either way up"


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "BMP"])
def test_other_files_are_decoded_whole(decoded: list[tuple[int, int]], kind: str) -> None:
    file, image = io.BytesIO(), photo(640, 480)
    image.save(file, kind, **({"lossless": True} if kind == "WEBP" else {}))
    found = to_rgb(file, resizing=SHORT)
    assert decoded == [(640, 480)]
    np.testing.assert_array_equal(np.asarray(found), np.asarray(image.resize((42, 32), Image.Resampling.BICUBIC)))


def test_a_small_jpeg_stays_as_it_is() -> None:
    for size in ((30, 30), (31, 200)):
        file = jpeg(photo(*size))
        np.testing.assert_array_equal(np.asarray(to_rgb(file, resizing=SHORT)), np.asarray(to_rgb(file)))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photograph_on_its_side(orientation: int) -> None:
    """Its size is that of the whole image, though 757 x 606 is decoded at an eighth, rounded up."""
    file = jpeg(photo(757, 606), orientation)
    found, whole = to_rgb(file, resizing=SHORT), to_rgb(file)
    assert found.size == SHORT.size(*whole.size)
    expected = whole.resize(found.size, Image.Resampling.BICUBIC)
    assert np.abs(np.asarray(found, dtype=float) - np.asarray(expected)).mean() < 3, "upright, and the same picture"


def test_the_grid_of_patches_is_that_of_the_whole_image(folders: dict[str, Path]) -> None:
    naflex = load_adapter(folders["siglip2-naflex"], device="cpu")
    for width in (901, 902, 1000):  # decoded at a quarter, rounded up, the first two would be squares of patches
        file = jpeg(Image.new("RGB", (width, 1203), "teal"))
        found, whole = (naflex.preprocessor.to_pixels([image]) for image in (naflex.read_image(file), to_rgb(file)))
        assert torch.equal(found["spatial_shapes"], whole["spatial_shapes"]), width


@pytest.mark.parametrize("size", [32, 224])
@pytest.mark.parametrize(
    "options",
    [{}, {"progressive": True}, {"subsampling": 0}, {"orientation": 6}, {"mode": "L"}, {"mode": "CMYK"}],
    ids=str,
)
def test_embeddings_of_large_photographs_are_nearly_the_same(
    tmp_path: Path, size: int, options: dict[str, object]
) -> None:
    """1 - cosine stays below 1e-3; benchmarks/photos.py measures it on 12 megapixels."""
    adapter = load_adapter(save_tiny_clip(tmp_path / "clip", image_size=size), device="cpu")
    options = dict(options)
    mode = str(options.pop("mode", "RGB"))
    files = [jpeg(photo(2016, 1512, seed).convert(mode), **options) for seed in range(2)]  # type: ignore[arg-type]
    one = normalize(adapter.image.embed(adapter.encode_images(files)).double(), dim=1)
    adapter.preprocessor = replace(adapter.preprocessor, resizing=None)
    other = normalize(adapter.image.embed(adapter.encode_images(files)).double(), dim=1)
    assert float((1 - (one * other).sum(dim=1)).max()) < 1e-3


def test_the_caller_s_opened_image_is_left_alone() -> None:
    opened = Image.open(io.BytesIO(jpeg(photo(640, 480))))
    assert to_rgb(opened, resizing=SHORT).size == (42, 32)
    assert opened.size == (640, 480)


# What is decoded at once ----------------------------------------------------------------------------------------------


def held_at_once(allowance: Allowance, amounts: list[int]) -> int:
    """The most that threads which hold these amounts held together; all of them ended."""
    together, most, lock = 0, 0, threading.Lock()

    def work(amount: int) -> None:
        nonlocal together, most
        for _ in range(20):
            with allowance.hold(amount):
                with lock:
                    together += amount
                    most = max(most, together)
                with lock:
                    together -= amount

    threads = [threading.Thread(target=work, args=(amount,)) for amount in amounts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return most


def test_threads_wait_until_there_is_enough() -> None:
    allowance, has = Allowance(10), threading.Event()

    def work() -> None:
        with allowance.hold(5):
            has.set()

    with allowance.hold(8):
        thread = threading.Thread(target=work)
        thread.start()
        assert not has.wait(0.2)
    assert has.wait(60)
    thread.join()


def test_threads_hold_no_more_than_there_is() -> None:
    assert held_at_once(Allowance(10), [3, 4, 5, 6, 7]) <= 10


def test_what_needs_more_than_there_is_goes_alone() -> None:
    allowance = Allowance(10)
    assert held_at_once(allowance, [12, 12, 1]) <= 12
    with allowance.hold(10):
        pass


def test_what_is_held_is_given_back_after_an_error() -> None:
    allowance = Allowance(10)
    with pytest.raises(ZeroDivisionError), allowance.hold(10):
        raise ZeroDivisionError
    with allowance.hold(10):
        pass


@pytest.mark.parametrize("damage", [lambda file: file, lambda file: file[:-500]], ids=["sound", "truncated"])
def test_files_are_decoded_within_the_allowance(
    monkeypatch: pytest.MonkeyPatch, damage: Callable[[bytes], bytes]
) -> None:
    allowance = Allowance(2**20)
    monkeypatch.setattr(module, "_decoding", allowance)
    left: list[int] = []
    honest = module._from_pil

    def watched(image: Image.Image, label: str) -> Image.Image:
        left.append(allowance._left.value)
        return honest(image, label)

    monkeypatch.setattr(module, "_from_pil", watched)
    file = io.BytesIO()
    noise(100, 200).save(file, "PNG")
    with contextlib.suppress(BayesVLMError):
        to_rgb(damage(file.getvalue()))
    assert left == [2**20 - 12 * 100 * 200]
    assert allowance._left.value == 2**20
