"""Random views: the image first, the same for the same key, crops of the stated areas."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from bayesvlm import BayesVLMError
from bayesvlm.data.views import Views


def gradient(width: int = 80, height: int = 60) -> Image.Image:
    """Red tells the column, green the row, so that a view tells its crop."""
    across, down = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([across, down, 0 * down], axis=2).astype(np.uint8))


def test_the_first_view_is_the_image() -> None:
    image = gradient()
    views = list(Views(5).of(image, "a"))
    assert len(views) == 5
    assert views[0] is image
    assert {view.size for view in views[1:]} == {(60, 60)}, "square, as models take them"


def test_views_are_those_of_the_key_and_the_seed() -> None:
    image = gradient()

    def pixels(views: Views, key: str) -> bytes:
        return b"".join(view.tobytes() for view in views.of(image, key))

    assert pixels(Views(8), "a") == pixels(Views(8), "a")
    assert pixels(Views(8), "a") != pixels(Views(8), "b")
    assert pixels(Views(8), "a") != pixels(Views(8, seed=1), "a")
    assert pixels(Views(8), "a").startswith(pixels(Views(4), "a")), "more views are further views"


def test_crops_show_the_stated_share_of_the_image() -> None:
    areas, mirrored = [], 0
    for view in list(Views(400, smallest=0.25).of(gradient(), "a"))[1:]:
        pixels = np.asarray(view).astype(float)
        left, right = pixels[:, :4, 0].mean(), pixels[:, -4:, 0].mean()
        mirrored += left > right
        areas.append(abs(right - left) / 255 * (pixels[-4:, :, 1].mean() - pixels[:4, :, 1].mean()) / 255)
    assert 0.2 < min(areas) < 0.3
    assert max(areas) > 0.75
    assert 0.4 < mirrored / 399 < 0.6


def test_an_elongated_image_gives_its_middle() -> None:
    views = list(Views(6, smallest=1.0).of(gradient(600, 20), "a"))
    assert {view.size for view in views[1:]} == {(20, 20)}


def test_bad_values() -> None:
    with pytest.raises(BayesVLMError, match="The number of views is 0"):
        Views(0)
    with pytest.raises(BayesVLMError, match=r"smallest=0\.0; it is a share"):
        Views(4, smallest=0.0)
