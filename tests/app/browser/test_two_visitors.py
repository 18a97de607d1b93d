"""Two visitors at the same page: what one does, opens or uploads is not the other's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gradio", reason="the page needs Gradio: pip install 'bayesvlm[app]'")
from bayesvlm.app.broken import Damage
from bayesvlm.app.drawings import CLASSES
from bayesvlm.app.picking import example
from bayesvlm.app.uploads import uploaded

from .hands import blue, give, reaches, seen, slide, tab, text_of, type_into

pytestmark = [pytest.mark.xdist_group("app"), pytest.mark.timeout(300)]


def test_two_visitors_do_not_see_each_other(visit: Any, tmp_path: Path) -> None:
    first, second = visit(), visit()
    before = second.locator("#answer").inner_text()
    give(first, "ask", blue(tmp_path))
    first.locator("#answer img[alt='mine.png']").wait_for()
    tab(first, "Label")
    first.locator("#label").click()
    text_of(first, "#labelled", "10 labelled")
    for names in (("tractor", "sailboat"), CLASSES):  # other names first, so that an answer can be told from the last
        type_into(second, "classes", ", ".join(names))
        second.locator("#ask").click()
        seen(second, "#answer", names[-1])
        assert second.locator("#answer img[alt='mine.png']").count() == 0
    assert second.locator("#answer").inner_text() == before
    tab(second, "Label")
    second.locator("#label").click()
    text_of(second, "#labelled", "10 labelled")  # and not 20


def test_what_one_visitor_opens_breaks_and_searches_is_not_the_others(
    visit: Any, desk: Any, saved: Path, tmp_path: Path
) -> None:
    first, second, file = visit(), visit(), blue(tmp_path)
    tab(first, "Model")
    type_into(first, "model-folder", "wide")
    first.keyboard.press("Enter")
    assert "wide" in text_of(first, "#model-used", "wide")
    tab(first, "Break it")
    first.get_by_text("Another picture, other names").click()
    give(first, "break", file)
    reaches(first, desk.models(str(saved / "wide")).vlm.similarity(uploaded(str(file)).image, "pizza").variance)
    slide(first, "letters", "End")
    text_of(first, "#broken .facts", "xxxxx")
    tab(first, "Search")
    give(first, "search", file)
    assert "wide;" in text_of(first, "#found", "mine.png")

    tab(second, "Model")
    assert "emoji-clip." in text_of(second, "#model-used", "In use")
    assert "NLPD" not in second.locator("#quality").inner_text()
    tab(second, "Break it")
    damage = Damage(occlusion=1.0)
    slide(second, "occlusion", "End")
    vlm = desk.models("emoji-clip").vlm
    reaches(second, vlm.similarity(damage.picture(example(1).image), "pizza").variance)
    assert "xxxxx" not in second.locator("#broken").inner_text()
    tab(second, "Search")
    assert "Type what to look for" in second.locator("#found").inner_text()
    second.locator("#search").click()
    assert "searched by emoji-clip;" in text_of(second, "#found", "grinning cat")
    tab(second, "Model")  # after all of it
    assert "emoji-clip." in text_of(second, "#model-used", "In use")
    assert "NLPD" not in second.locator("#quality").inner_text()
