"""The tab Break it in a browser: what its sliders do to a cosine is what the library says."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("gradio", reason="the page needs Gradio: pip install 'bayesvlm[app]'")
from bayesvlm.app.broken import Damage
from bayesvlm.app.picking import example

from .hands import reaches, slide, tab, text_of

pytestmark = [pytest.mark.xdist_group("app"), pytest.mark.timeout(300)]
SLIDERS = ("blur", "grey", "occlusion", "letters")


def test_every_slider_leads_to_the_librarys_mean_and_variance(visit: Any, desk: Any) -> None:
    """Of a guitar in colour, whose variance each of them raises."""
    page, vlm, guitar = visit(), desk.models("emoji-clip").vlm, example(5)
    tab(page, "Break it")
    page.get_by_text("Another picture, other names").click()
    page.locator("#break-drawings button").nth(5).click()
    intact = vlm.similarity(guitar.image, "guitar")
    reaches(page, intact.variance)
    for name in SLIDERS:
        damage = Damage(**{name: 1.0})
        moments = vlm.similarity(damage.picture(guitar.image), damage.text("guitar"))
        assert float(moments.variance) > 1.05 * float(intact.variance)
        slide(page, name, "End")
        reaches(page, moments.variance)
        said = text_of(page, "#broken .facts", "cosine")
        shown = re.search(r"cosine of picture and text (\S+) \((\S+) to (\S+)\)", said)
        assert shown is not None
        low, high = moments.interval(0.95)
        expected = [float(moments.mean), float(low), float(high)]
        assert [float(number) for number in shown.groups()] == pytest.approx(expected, abs=1.5e-3)
        slide(page, name, "Home")
        reaches(page, intact.variance)


def test_a_slider_raises_the_variance(visit: Any, desk: Any) -> None:
    page, vlm, shown = visit(), desk.models("emoji-clip").vlm, example(1)
    tab(page, "Break it")
    number = page.locator("#broken [data-variance]")
    before = float(number.get_attribute("data-variance"))
    slide(page, "occlusion", *["ArrowRight"] * 8)
    reaches(page, vlm.similarity(Damage(occlusion=0.4).picture(shown.image), "pizza").variance)  # and not on the way
    assert float(page.locator("#break-occlusion input[type=range]").input_value()) == pytest.approx(0.4)
    assert float(number.get_attribute("data-variance")) > 1.05 * before
    slide(page, "letters", "End")
    assert "xxxxx" in text_of(page, "#broken .facts", "xxxxx")
