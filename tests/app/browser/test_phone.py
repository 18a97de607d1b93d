"""The page on a phone, light and dark: nothing scrolls sideways and no number is broken."""

from __future__ import annotations

import re
from typing import Any

import pytest

from .hands import seen, slide, tab, type_into

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
        page.locator("#model-use").click()
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
    tab(page, "Ask")
    names = [f"{letter}{'nothingthatisanywordatall' * 3}" for letter in "abcdefghi"]
    type_into(page, "classes", ", ".join(names))
    page.locator("#ask").click()
    seen(page, "#answer h3", "nothing")
    assert not page.evaluate(
        "[...document.querySelectorAll('#answer h3, #answer p, #answer li')].filter(each => "
        "each.scrollWidth > each.clientWidth + 1 || each.getBoundingClientRect().right > 400)"
        ".map(each => each.outerHTML.slice(0, 200))"
    )
    letters, paper = page.evaluate("[getComputedStyle(document.querySelector('.bv p')).color, "
                                   "getComputedStyle(document.body).backgroundColor]")  # fmt: skip
    bright = [_brightness(each) for each in (letters, paper)]
    assert (bright[0] < bright[1]) == (scheme == "light")


CONTRAST = """where => {
    const light = colour => {
        const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(part => part / 255)
            .map(part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const behind = each => {
        const colour = getComputedStyle(each).backgroundColor;
        return /, 0\\)|transparent/.test(colour) ? behind(each.parentElement) : colour;
    };
    const letters = document.querySelector(where);
    const [high, low] = [light(getComputedStyle(letters).color), light(behind(letters))].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
}"""
"""Of letters and what is behind them, as WCAG has it."""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out_and_so_does_the_filled_part_of_a_slider(visit: Any, scheme: str) -> None:
    page = visit(color_scheme=scheme)
    page.locator("#ask-drawings button").nth(6).click()
    seen(page, "#answer .mark.doubt")
    for where in ("[role=tab][aria-selected=true]", "#answer .mark.doubt", "#answer .quiet", "#answer h3"):
        assert page.evaluate(CONTRAST, where) >= 4.5, where
    tab(page, "Break it")
    page.locator("#break-blur input[type=range]").wait_for()
    filled, left, paper = page.evaluate(
        """() => {
            const shown = getComputedStyle(document.querySelector('#break-blur input[type=range]'));
            return ['--slider-color', '--neutral-200', '--paper'].map(name => {
                const probe = document.createElement('i');
                probe.style.color = shown.getPropertyValue(name);
                document.body.append(probe);
                return getComputedStyle(probe).color;
            });
        }"""
    )
    away = [abs(_brightness(each) - _brightness(paper)) for each in (filled, left)]
    assert away[0] > 2 * away[1]


def _brightness(colour: str) -> int:
    return sum(map(int, re.findall(r"\d+", colour)[:3]))
