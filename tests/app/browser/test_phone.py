"""The page on a phone, light and dark: nothing scrolls sideways and no number is broken."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .hands import seen, slide, tab

pytestmark = [pytest.mark.xdist_group("app"), pytest.mark.timeout(300)]


def filled(page: Any, name: str) -> None:
    """A tab with a result on it, all of it open."""
    tab(page, name)
    if name == "Break it":
        slide(page, "letters", "End")
        seen(page, "#broken .facts", "xxxxx")
        page.locator("#broken summary").click()
        seen(page, "#broken table")
    elif name == "Search":
        page.locator("#search").click()
        seen(page, "#found h3", "grinning cat")
        page.locator("#found .card").first.locator("summary").click()
        page.locator("#found .card dl").first.wait_for()
    elif name == "Label":
        page.locator("#label").click()
        seen(page, "#labelled svg")
    elif name == "Model":
        page.locator("#model-show").click()
        seen(page, "#card table")
        seen(page, "#quality table")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_all_tabs_without_scrolling_sideways(visit: Any, scheme: str) -> None:
    """With a result on each; no word or number of a table is broken, and no table needs to be scrolled either."""
    page = visit(viewport={"width": 400, "height": 800}, color_scheme=scheme)
    for name in ("Ask", "Break it", "Search", "Label", "Model"):
        filled(page, name)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, name
        wide = "[...document.querySelectorAll('.bv .scroll')].filter(each => each.scrollWidth > each.clientWidth + 1)"
        assert page.evaluate(f"{wide}.length") == 0, name
    broken = page.evaluate(
        """[...document.querySelectorAll('#card td, #card th, #quality td, #quality th')].flatMap(cell => {
            const found = [], text = cell.firstChild;
            for (const word of cell.textContent.matchAll(/\\S+/g)) {
                const range = document.createRange();
                range.setStart(text, word.index);
                range.setEnd(text, word.index + word[0].length);
                if (range.getClientRects().length > 1) found.push(word[0]);
            }
            return found;
        })"""
    )
    assert not broken
    letters, paper = page.evaluate("[getComputedStyle(document.querySelector('.bv p')).color, "
                                   "getComputedStyle(document.body).backgroundColor]")  # fmt: skip
    bright = [sum(map(int, re.findall(r"\d+", each)[:3])) for each in (letters, paper)]
    assert (bright[0] < bright[1]) == (scheme == "light")
