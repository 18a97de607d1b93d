"""The palette can be told apart and read, in both themes, by everybody; the settings stay inside their context."""

from __future__ import annotations

from itertools import combinations

import matplotlib
import numpy as np
import pytest

from bayesvlm import BayesVLMError
from bayesvlm.report.theme import KINDS, METHODS, PALETTE, colour, css_variables, drawing_style, series_marks

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
DEFICIENCIES = {
    "none": [1, 0, 0, 0, 1, 0, 0, 0, 1],
    "protan": [0.152286, 1.052583, -0.204868, 0.114503, 0.786281, 0.099216, -0.003882, -0.048116, 1.051998],
    "deutan": [0.367322, 0.860646, -0.227968, 0.280085, 0.672501, 0.047413, -0.011820, 0.042940, 0.968881],
    "tritan": [1.255528, -0.076749, -0.178779, -0.078411, 0.930809, 0.147602, 0.004733, 0.691367, 0.303900],
}


def linear(shade: str) -> np.ndarray:
    channels = np.array([int(shade[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


def contrast(first: str, second: str) -> float:
    """WCAG 2's contrast ratio."""
    low, high = sorted(float(linear(shade) @ [0.2126, 0.7152, 0.0722]) for shade in (first, second))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    matrix = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = matrix @ np.clip(rgb, 0, 1) / (0.9505, 1, 1.089)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("background", ["paper", "surface"])
def test_letters_and_marks_stand_out(theme: str, background: str) -> None:
    behind = getattr(PALETTE[background], theme)
    for name, least in {"ink": 7.0, "muted": 4.5, "accent": 4.5, **dict.fromkeys(METHODS + KINDS, 3.0)}.items():
        assert contrast(getattr(PALETTE[name], theme), behind) >= least, name


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("deficiency", DEFICIENCIES)
@pytest.mark.parametrize("family", [METHODS, KINDS], ids=["methods", "kinds"])
def test_colours_of_a_family_can_be_told_apart(theme: str, deficiency: str, family: tuple[str, ...]) -> None:
    eye = np.reshape(DEFICIENCIES[deficiency], (3, 3))
    seen = {name: lab(eye @ linear(getattr(PALETTE[name], theme))) for name in family}
    for first, second in combinations(family, 2):
        assert np.linalg.norm(seen[first] - seen[second]) > 15, (first, second)


def test_light_shades_differ_so_that_each_stands_for_one_variable() -> None:
    assert len({shade.light for shade in PALETTE.values()}) == len(PALETTE)


def test_css_variables_name_every_colour() -> None:
    for theme in ("light", "dark"):
        for name, shade in PALETTE.items():
            assert f"--{name}: {getattr(shade, theme)};" in css_variables(theme)


def test_known_series_have_their_own_colour_and_others_what_is_left() -> None:
    marks = series_marks(["Bayes", "ensemble", "plain", "bayes"], METHODS)
    assert marks["Bayes"].colour == colour("bayes")
    assert marks["plain"].colour == colour("plain")
    assert marks["ensemble"].colour == colour("temperature")
    assert len({mark.colour for mark in marks.values()}) == len({mark.marker for mark in marks.values()}) == 4
    assert series_marks(["Unseen style"], KINDS)["Unseen style"].colour == colour("unseen-style")


def test_too_many_series_are_refused() -> None:
    with pytest.raises(BayesVLMError, match=r"^8 series are too many to tell apart; draw at most 7"):
        series_marks(map(str, range(8)), METHODS)


def test_settings_end_with_their_context_and_ignore_the_users() -> None:
    with matplotlib.rc_context({"text.color": "#123456", "axes.grid": False, "lines.dashed_pattern": [1, 9]}):
        before = dict(matplotlib.rcParams)
        with drawing_style():
            assert matplotlib.rcParams["text.color"] == colour("ink")
            assert matplotlib.rcParams["lines.dashed_pattern"] != [1, 9]
        assert dict(matplotlib.rcParams) == before
