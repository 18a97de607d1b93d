"""Pixels looked up in a table are the processor's own, to the bit; where they would not be, there is no table."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from bayesvlm.images.resizing import Resizing, always, shortest_edge
from bayesvlm.models import load_adapter
from bayesvlm.models.huggingface import ProcessorPixels
from bayesvlm.models.pixel_table import table_of
from bayesvlm.models.preprocessing import PixelTensors
from bayesvlm.testing import save_tiny_clip, save_tiny_siglip, save_tiny_siglip2


def noise(width: int, height: int) -> Image.Image:
    pixels = np.random.default_rng(width * height).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def standardised(images: list[Image.Image]) -> PixelTensors:
    """Pixels that depend on the rest of the image."""
    pixels = torch.stack([torch.tensor(np.asarray(image)).permute(2, 0, 1).float() for image in images])
    return {"pixel_values": pixels / pixels.amax(dim=(1, 2, 3), keepdim=True)}


@pytest.fixture(scope="module", params=[save_tiny_clip, save_tiny_siglip])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ProcessorPixels:
    found = load_adapter(request.param(tmp_path_factory.mktemp("model")), device="cpu").preprocessor.to_pixels
    assert isinstance(found, ProcessorPixels)
    return found


@pytest.mark.parametrize("size", [(32, 32), (33, 32), (32, 47), (61, 32), (32, 200), (31, 32), (90, 50), (7, 3)])
def test_pixels_are_the_processors_own(made: ProcessorPixels, size: tuple[int, int]) -> None:
    images = [noise(*size), noise(32, 32), noise(*size).rotate(90)]
    assert made._table is not None
    assert torch.equal(made(images)["pixel_values"], made._processed(images)["pixel_values"])


def test_only_what_needs_no_resizing_is_looked_up(made: ProcessorPixels) -> None:
    table = made._table
    assert table is not None
    assert table.fits(noise(32, 32))
    assert table.fits(noise(45, 32)) == (table.resizing.size(45, 32) == (45, 32))
    assert not table.fits(noise(64, 64))
    assert not table.fits(noise(16, 16))
    assert not table.fits(noise(32, 32).convert("L"))


def test_pickles_hold_no_table(made: ProcessorPixels) -> None:
    assert "_table" not in pickle.loads(pickle.dumps(made)).__dict__


def test_patches_have_no_table(tmp_path: Path) -> None:
    made = load_adapter(save_tiny_siglip2(tmp_path), device="cpu").preprocessor.to_pixels
    assert isinstance(made, ProcessorPixels)
    assert made._table is None
    assert "pixel_attention_mask" in made([noise(32, 32)])


@pytest.mark.parametrize("resizing", [None, Resizing(shortest_edge(32), Image.Resampling.BICUBIC)])
def test_no_table_where_a_pixel_is_not_all_that_matters(resizing: Resizing | None) -> None:
    assert table_of(standardised, resizing) is None


def test_no_table_where_the_size_is_not_as_said() -> None:
    resizing = Resizing(always(32, 32), Image.Resampling.BICUBIC)

    def mirrored(images: list[Image.Image]) -> PixelTensors:
        turned = [np.asarray(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)) for image in images]
        return {"pixel_values": torch.tensor(np.stack(turned)).permute(0, 3, 1, 2).float()}

    assert table_of(mirrored, resizing) is None
