"""The page without a mouse: every tab can be reached and used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gradio", reason="the page needs Gradio: pip install 'bayesvlm[app]'")
from bayesvlm.app.drawings import CLASSES

from .hands import blue, seen, settled, text_of

pytestmark = [pytest.mark.xdist_group("app"), pytest.mark.timeout(300)]
IS_HERE = """([where, name]) => {
    const here = document.activeElement;
    return here.matches(where) && (!name || here.innerText.trim() === name);
}"""
ONLY_ONE_LISTED = """([box, value]) => {
    const listed = [...document.querySelectorAll(`#${box} [role=option]`)].map(each => each.getAttribute('aria-label'));
    return listed.length === 1 && listed[0] === value;
}"""


def to(page: Any, where: str, name: str = "") -> None:
    """By the Tab key alone, on a page that is not being drawn any more."""
    page.locator(where).first.wait_for(state="attached")
    settled(page)
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate(IS_HERE, [where, name]):
            return
    raise AssertionError(f"Tab does not reach {where} {name}")


def turn(page: Any, name: str) -> None:
    """To another tab."""
    to(page, "[role=tab]", name)
    page.keyboard.press("Enter")
    page.get_by_role("tab", name=name, exact=True, selected=True).wait_for()


def choose(page: Any, box: str, file: Path) -> None:
    """A file, in the system's own dialogue."""
    to(page, f"#{box}-upload button")
    with page.expect_file_chooser() as chooser:
        page.keyboard.press("Enter")
    chooser.value.set_files(file)


def pick(page: Any, box: str, typed: str, value: str) -> None:
    """From a list, by the letters that are typed."""
    to(page, f"#{box} input")
    page.keyboard.type(typed)
    page.wait_for_function(ONLY_ONE_LISTED, arg=[box, value])
    page.keyboard.press("Enter")
    page.wait_for_function(
        "([box, value]) => document.querySelector(`#${box} input`).value === value", arg=[box, value]
    )


def test_the_keyboard_alone_is_enough_on_all_tabs(visit: Any, tmp_path: Path) -> None:
    page, file = visit(), blue(tmp_path)
    choose(page, "ask", file)
    seen(page, "#answer img[alt='mine.png']")
    pick(page, "lists", "vehi", "vehicles")
    text_of(page, "#answer", "ambulance")
    turn(page, "Break it")
    to(page, "#break-letters input[type=range]")
    page.keyboard.press("End")
    text_of(page, "#broken .facts", "xxxxx")
    to(page, "#broken summary")
    page.keyboard.press("Enter")
    page.locator("#broken table").wait_for()
    turn(page, "Search")
    choose(page, "search", file)
    text_of(page, "#found", "mine.png")
    to(page, "#search")
    page.keyboard.press("Enter")
    text_of(page, "#found", "“grinning cat”")
    turn(page, "Label")
    pick(page, "strategy", "at rand", "at random")
    to(page, "#label")
    page.keyboard.press("Enter")
    text_of(page, "#labelled", "chosen by chance")
    turn(page, "Model")
    pick(page, "model", "colour", "emoji-clip-colour")
    to(page, "#model-use")
    page.keyboard.press("Enter")
    text_of(page, "#model-used", "emoji-clip-colour")
    turn(page, "Ask")


def test_the_keyboard_reaches_everything_on_ask(visit: Any) -> None:
    page = visit()
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "(() => { const e = document.activeElement; const b = e.closest('[id]');"
                " return e.dataset.place ? 'drawing' : (e.getAttribute('role') || (b && b.id) || e.tagName); })()"
            )
        )
    assert {"tab", "drawing", "ask"} <= reached, reached
    page.locator("#ask-drawings button").nth(1).focus()
    page.keyboard.press("Enter")
    assert "pizza: " in text_of(page, "#answer h3", "pizza")
    assert len(CLASSES) == page.locator("#answer .rows > li").count()
