"""Files that the page does not take, in a browser: a sentence says so, stays, and the page goes on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from .hands import blue, give, large, no_pictures, seen, tab, text_of, type_into

pytestmark = [pytest.mark.xdist_group("app"), pytest.mark.timeout(300)]
DROP = """([where, name, size]) => {
  const moved = new DataTransfer();
  moved.items.add(new File([new Uint8Array(size)], name));
  const box = document.querySelector(where + " button, " + where + " [role=button]") || document.querySelector(where);
  box.dispatchEvent(new DragEvent("drop", { dataTransfer: moved, bubbles: true, cancelable: true }));
}"""


def test_what_is_no_picture_gets_a_sentence(visit: Any, tmp_path: Path) -> None:
    page = visit()
    for file in no_pictures(tmp_path):
        give(page, "ask", file)
        said = text_of(page, "#ask-refused [role=alert]", file.name)
        assert "is not an image that Pillow can read" in said
    assert page.title() == "bayesvlm"
    type_into(page, "classes", "cat")
    page.locator("#ask").click()
    assert "type two or more" in text_of(page, "#answer [role=alert]", "only one name")
    type_into(page, "classes", "cat, dog")
    page.locator("#ask").click()  # and it goes on as if nothing had been
    text_of(page, "#answer", "plain CLIP")


@pytest.mark.parametrize(("name", "box", "said"), [("Break it", "break", "broken"), ("Search", "search", "found")])
def test_what_is_no_picture_gets_a_sentence_on_every_tab(
    visit: Any, tmp_path: Path, name: str, box: str, said: str
) -> None:
    page = visit()
    tab(page, name)
    if name == "Break it":
        page.get_by_text("Another picture, other names").click()
    for file in no_pictures(tmp_path):
        give(page, box, file)
        assert "is not an image that Pillow can read" in text_of(page, f"#{box}-refused [role=alert]", file.name)
    assert page.title() == "bayesvlm"
    give(page, box, blue(tmp_path))  # and it goes on as if nothing had been
    text_of(page, f"#{said}", "cosine")
    page.locator(f"#{box}-refused [role=alert]").wait_for(state="detached")
    assert page.locator(f"#{said} [role=alert]").count() == 0


def test_a_file_of_200_mb_gets_a_sentence(visit: Any, tmp_path: Path) -> None:
    page = visit()
    give(page, "ask", large(tmp_path, 200))
    page.get_by_text(re.compile("exceeds|too large|maximum", re.IGNORECASE)).first.wait_for()
    type_into(page, "classes", "tractor, sailboat")
    page.locator("#ask").click()
    assert "plain CLIP" in text_of(page, "#answer", "sailboat")


@pytest.mark.parametrize("dropped", [False, True])
def test_a_file_that_is_too_large_is_refused_for_as_long_as_nothing_else_is_done(
    visit: Any, tmp_path: Path, dropped: bool
) -> None:
    page, small = visit(clock=True), tmp_path / "small.png"
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    if dropped:
        page.evaluate(DROP, ["#ask-upload", "large.png", 30 * 2**20])
    else:
        give(page, "ask", large(tmp_path, 30))
    said = text_of(page, "#ask-upload-refused [role=alert]", "large.png")
    assert said == "large.png has 30.0 MB, which is too large: the page takes files of up to 20 MB, so make it smaller."
    page.clock.run_for(15_000)
    assert page.locator("#ask-upload-refused [role=alert]").is_visible()
    assert not [url for url in sent if "upload" in url]
    Image.new("RGB", (40, 40), "red").save(small)
    give(page, "ask", small)
    page.locator("#answer img[alt='small.png']").wait_for()
    assert page.locator("#ask-upload-refused [role=alert]").count() == 0
    assert len([url for url in sent if re.search(r"/upload\b(?!_)", url)]) == 1  # of the small one


def test_a_message_of_gradios_would_be_gone_by_then(visit: Any, tmp_path: Path) -> None:
    """Why the page says it itself; and by the same clock as above, which therefore does move the page's time."""
    page = visit(clock=True)
    page.locator("#ask-upload-refused").evaluate("each => each.remove()")  # now the page does not say it
    give(page, "ask", large(tmp_path, 30))
    message = page.get_by_test_id("toast-body").filter(has_text="large.png")
    message.wait_for()
    page.clock.run_for(15_000)
    message.wait_for(state="detached")


def test_what_a_file_is_called_does_not_matter(visit: Any, tmp_path: Path) -> None:
    page, genuine, text = visit(), tmp_path / "holiday", tmp_path / "notes.txt"
    Image.new("RGB", (40, 40), "red").save(genuine, format="PNG")
    give(page, "ask", genuine)
    seen(page, "#answer img[alt='holiday']")
    text.write_text("no picture at all")
    give(page, "ask", text)
    assert "is not an image" in text_of(page, "#ask-refused [role=alert]", "notes.txt")
    tab(page, "Search")
    give(page, "search", text)
    assert "is not an image" in text_of(page, "#search-refused [role=alert]", "notes.txt")
    tab(page, "Break it")
    page.get_by_role("button", name="Another picture, other names").click()
    give(page, "break", text)
    assert "is not an image" in text_of(page, "#break-refused [role=alert]", "notes.txt")
