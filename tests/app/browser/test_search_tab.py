"""The tab Search in a browser: its hits are the library's, and what matches nothing is said first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gradio", reason="the page needs Gradio: pip install 'bayesvlm[app]'")
from bayesvlm.app.drawings import drawings
from bayesvlm.app.markup import cosine, percent
from bayesvlm.app.uploads import uploaded

from .hands import give, plain, seen, tab, text_of, type_into

pytestmark = [pytest.mark.xdist_group("app"), pytest.mark.timeout(300)]
THERE = "squinting face with tongue"  # is among the drawings that are searched


def test_search_opens_a_hit_and_abstains_on_nonsense(visit: Any, desk: Any) -> None:
    page = visit()
    tab(page, "Search")
    type_into(page, "search-text", THERE)
    page.keyboard.press("Enter")
    seen(page, "#found h3", THERE)
    card = page.locator("#found .card").first
    assert not card.locator("dl").is_visible()
    card.locator("summary").focus()
    page.keyboard.press("Enter")
    card.locator("dl").wait_for()
    shown = plain(card.inner_text())
    hits = desk.collection("emoji-clip").search(THERE, 8)
    assert hits[0].id in shown
    assert cosine(hits[0].mean, *hits[0].interval) in shown
    assert plain(percent(hits[0].p_best)) in shown
    type_into(page, "search-text", "xqzt wvv")
    page.locator("#search").click()
    said = text_of(page, "#found", "Nothing here matches")
    assert hits.matches is True
    assert desk.collection("emoji-clip").search("xqzt wvv", 8).matches is False
    assert f"p = {desk.collection('emoji-clip').search('xqzt wvv', 8).p_value:.3f}" in said


def test_search_finds_what_is_like_an_uploaded_picture(visit: Any, desk: Any, tmp_path: Path) -> None:
    drawing = next(each for each in drawings("new-drawing") if each.name == "pizza")
    file = tmp_path / "my pizza.webp"
    file.write_bytes(drawing.image)
    page = visit()
    tab(page, "Search")
    give(page, "search", file)
    said = text_of(page, "#found", "my pizza.webp")
    assert "“my pizza.webp”" in said
    assert "a picture is always answered" in said
    assert "turned away" not in said
    assert "searched by emoji-clip;" in said
    hits = desk.collection("emoji-clip").search(uploaded(str(file)), 8)
    shown = page.locator("#found .card").evaluate_all("cards => cards.map(card => card.dataset.id)")
    assert tuple(shown) == hits.ids
