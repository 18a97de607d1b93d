"""Distorted images: the size stays, the mildest level does nothing, more is more."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from scipy.ndimage import gaussian_filter

from bayesvlm import BayesVLMError
from bayesvlm.data.distortion import LEVELS, Distortion, Kind


def noise(width: int = 60, height: int = 40) -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8))


def pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image).astype(float)


def edge(side: int) -> Image.Image:
    """Black on the left, white on the right."""
    array = np.zeros((side, 2 * side, 3), dtype=np.uint8)
    array[:, side:] = 255
    return Image.fromarray(array)


def width_of(image: Image.Image) -> float:
    """The standard deviation of a blurred edge, from its derivative."""
    slope = np.diff(pixels(image)[image.height // 2, :, 0])
    place = np.arange(len(slope))
    centre = (slope * place).sum() / slope.sum()
    return float(np.sqrt((slope * (place - centre) ** 2).sum() / slope.sum()))


@pytest.mark.parametrize("kind", LEVELS)
def test_the_size_stays(kind: Kind) -> None:
    for level in LEVELS[kind]:
        for size in ((60, 40), (7, 90), (1, 1)):
            found = Distortion(kind, level)(noise(*size))
            assert (found.size, found.mode) == (size, "RGB")


@pytest.mark.parametrize("mode", ["RGBA", "L", "P"])
def test_any_image_becomes_rgb(mode: str) -> None:
    for kind, levels in LEVELS.items():
        assert Distortion(kind, levels[-1])(noise().convert(mode)).mode == "RGB"


def test_the_mildest_level_does_nothing() -> None:
    image = noise()
    assert np.array_equal(pixels(Distortion("greyscale", 0)(image)), pixels(image))
    assert np.array_equal(pixels(Distortion("blur", 0)(image)), pixels(image))
    smooth = Image.fromarray(np.tile(np.linspace(0, 255, 60, dtype=np.uint8)[None, :, None], (40, 1, 3)))
    assert np.abs(pixels(Distortion("jpeg", 100)(smooth)) - pixels(smooth)).max() <= 2, "nearly"


def test_grey_is_between_the_image_and_its_luminance() -> None:
    image = noise()
    grey = (pixels(image) @ [0.299, 0.587, 0.114])[..., None]
    for level in LEVELS["greyscale"]:
        expected = (1 - level) * pixels(image) + level * grey
        assert np.abs(pixels(Distortion("greyscale", level)(image)) - expected).max() <= 1.5, "rounded twice"
    whole = pixels(Distortion("greyscale", 1.0)(image))
    assert (whole == whole[..., :1]).all()


def test_every_level_takes_more_away() -> None:
    image = noise(224, 224)
    for kind, levels in LEVELS.items():
        lost = [np.abs(pixels(Distortion(kind, level)(image)) - pixels(image)).mean() for level in levels]
        assert lost == sorted(lost), kind
        assert lost[1] > lost[0]
        assert lost[-1] > lost[1]


def test_a_blur_is_gaussian_of_that_radius() -> None:
    found = pixels(Distortion("blur", 10)(edge(224)))[112, :, 0]
    expected = gaussian_filter(pixels(edge(224))[112, :, 0], sigma=10, mode="nearest")
    assert np.abs(found - expected).max() < 255 * 0.02


@pytest.mark.parametrize("side", [112, 224, 448])
def test_the_radius_of_a_blur_grows_with_the_shorter_side(side: int) -> None:
    assert width_of(Distortion("blur", 10)(edge(side))) == pytest.approx(10 * side / 224, rel=0.05)
    upright = Distortion("blur", 10)(edge(side).transpose(Image.Transpose.ROTATE_90))
    assert width_of(upright.transpose(Image.Transpose.ROTATE_270)) == pytest.approx(10 * side / 224, rel=0.05)


def test_a_level_is_one_however_it_is_written() -> None:
    assert repr(Distortion("blur", 10)) == repr(Distortion("blur", 10.0)), "features are kept by what is written"


@pytest.mark.parametrize(
    ("kind", "level", "said"),
    [
        ("sepia", 0.5, "kind='sepia' is not known; use 'greyscale', 'jpeg' or 'blur'"),
        ("greyscale", 1.1, "for greyscale it is a number from 0 to 1"),
        ("greyscale", float("nan"), "level=nan"),
        ("jpeg", 0, "for jpeg it is a whole number from 1 to 100"),
        ("jpeg", 50.5, "for jpeg it is a whole number"),
        ("blur", -1, "for blur it is a number from 0 to 50"),
    ],
)
def test_what_it_is_not_for(kind: Kind, level: float, said: str) -> None:
    with pytest.raises(BayesVLMError, match=said):
        Distortion(kind, level)
