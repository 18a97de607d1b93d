"""Figures in a page: theme-aware, text as text, ids that never clash, the same bytes every time."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from xml.dom import minidom

import pytest
from matplotlib.figure import Figure
from PIL import Image

from bayesvlm import BayesVLMError
from bayesvlm.report.plots import heat_maps, tau_plot
from bayesvlm.report.svg import inline_svg, save_png
from bayesvlm.report.theme import PALETTE, colour


def curve(best: float = 10.0) -> Figure:
    return tau_plot([1, 10, 100], [3.0, 1.0, 2.0], best)


def maps() -> Figure:
    return heat_maps({"cosine": [[0.1, 0.2], [0.3, 0.4]]}, ["a", "b"], ["c", "d"], "rows", "columns")


def test_colours_of_the_palette_become_variables() -> None:
    text = inline_svg(curve(), "plot-1", "A curve.")
    for name in ("ink", "muted", "grid", "bayes", "paper"):
        assert f"var(--{name})" in text
    assert not any(shade.light in text for shade in PALETTE.values())
    assert not re.search(r"#[0-9a-f]{6}", text)


def test_letters_on_cells_do_not_follow_the_theme() -> None:
    texts = minidom.parseString(inline_svg(maps(), "p", "Maps.")).getElementsByTagName("text")
    styles = {text.firstChild.data.strip(): text.getAttribute("style") for text in texts}  # type: ignore[union-attr]
    assert "fill: #ffffff" in styles["0.10"]
    assert "fill: #111111" in styles["0.40"]
    assert "var(--ink)" in styles["cosine"]


def test_colour_names_in_a_text_stay_text() -> None:
    figure = Figure()
    figure.text(0, 0, f'fill: {colour("ink")} <b> & "c"')
    text = inline_svg(figure, "p", "x")
    assert f"fill: {colour('ink')} &lt;b&gt; &amp; " in text


def test_text_is_text_in_the_font_of_the_page() -> None:
    text = inline_svg(curve(), "p", "x")
    assert "pseudo-data count τ" in text
    assert "font-family" not in text


def test_dollars_are_not_mathematics_and_unknown_letters_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = inline_svg(heat_maps({"$x_1 🦜": [[1.0]]}, ["$"], ["a$b$"], "r", "c"), "p", "x")
    assert "$x_1 🦜" in text
    assert "a$b$" in text


def test_heat_maps_stay_raster() -> None:
    assert inline_svg(maps(), "p", "x").count('href="data:image/png;base64,') == 2  # the cells and the colour bar


def test_bytes_are_the_same_every_time() -> None:
    figure = maps()
    assert inline_svg(figure, "p", "x") == inline_svg(figure, "p", "x") == inline_svg(maps(), "p", "x")


def test_ids_are_unique_across_figures_and_references_lead_inside() -> None:
    first, second = inline_svg(curve(), "plot-1", "x"), inline_svg(curve(), "plot-2", "x")
    ids = [set(re.findall(r'\bid="([^"]+)"', text)) for text in (first, second)]
    assert len(ids[0]) > 2
    assert not ids[0] & ids[1]
    for text, known in zip((first, second), ids, strict=True):
        references = re.findall(r'(?:url\(|href="|labelledby=")#?(plot[^)"]+)', text)
        assert set(references) == known


def test_nothing_outside_is_named_and_nothing_leaks_out() -> None:
    text = inline_svg(maps(), "p", "x")
    assert "http" not in text
    for tag in ("<?xml", "<!DOCTYPE", "<metadata", "<style"):
        assert tag not in text


def test_it_announces_itself() -> None:
    root = minidom.parseString(inline_svg(curve(), "p", 'A "valley" <of> NLPD')).documentElement
    assert root is not None
    assert root.getAttribute("role") == "img"
    (title,) = root.getElementsByTagName("title")
    assert title.firstChild.data == 'A "valley" <of> NLPD'  # type: ignore[union-attr]
    assert root.getAttribute("aria-labelledby") == title.getAttribute("id")


def test_png_is_light_and_150_dots_an_inch(tmp_path: Path) -> None:
    path = save_png(curve(), tmp_path / "new" / "curve.png")
    with Image.open(path) as image:
        assert image.width == pytest.approx(150 * curve().get_figwidth(), abs=1)
        assert image.convert("RGB").getpixel((0, 0)) == tuple(bytes.fromhex(colour("paper")[1:]))
    assert path.read_bytes() == save_png(curve(), tmp_path / "again.png").read_bytes()


def test_png_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BayesVLMError, match=r"curve\.png cannot be written: "):
        save_png(curve(), tmp_path / "file" / "curve.png")
