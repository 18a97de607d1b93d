"""What is done while something is still worked on counts: at last the page shows the answer to what is on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gradio", reason="the page needs Gradio: pip install 'bayesvlm[app]'")
from bayesvlm.app import picking
from bayesvlm.app.asking import Asked, Turns
from bayesvlm.app.broken import Damage
from bayesvlm.app.drawings import CLASSES
from bayesvlm.app.picking import example
from bayesvlm.app.uploads import uploaded

from .hands import Gate, blue, emptied, give, reaches, seen, slide, tab, text_of, type_into, uploading

pytestmark = [pytest.mark.xdist_group("app"), pytest.mark.timeout(300)]


def test_names_that_are_changed_meanwhile_are_asked_about(
    visit: Any, desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, gate = visit(), Gate(desk.asker)
    monkeypatch.setattr(desk, "asker", gate)
    page.locator("#ask").click()
    gate.reached()
    for names in ("tractor, sailboat", "ambulance, helicopter, tractor"):
        type_into(page, "classes", names)
        page.locator("#ask").click()
    gate.open()
    text_of(page, "#answer", "helicopter")
    assert page.locator("#answer .rows > li").count() == 3


def test_the_drawing_that_is_pressed_last_is_asked_about(
    visit: Any, desk: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, gate = visit(), Gate(desk.asker)
    monkeypatch.setattr(desk, "asker", gate)
    for place in (1, 3, 5):
        page.locator("#ask-drawings button").nth(place).click()
        gate.reached()
    gate.open()
    seen(page, f"#answer:has(img[alt='{example(5).title}'])", "guitar: ")


def test_words_that_are_sent_meanwhile_are_looked_for(visit: Any, desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    page, gate = visit(), Gate(desk.collection)
    monkeypatch.setattr(desk, "collection", gate)
    tab(page, "Search")
    for words in ("pizza", "guitar"):
        type_into(page, "search-text", words)
        page.keyboard.press("Enter")
        gate.reached()
    gate.open()
    text_of(page, "#found h3", "“guitar”")
    page.locator("#search-k input[type=range]").focus()
    page.keyboard.press("Home")  # and so is what is changed without a word
    page.wait_for_function("() => document.querySelectorAll('#found .card').length === 1")


def test_a_slider_that_is_moved_while_a_file_is_read_counts(
    visit: Any, desk: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, gate, file = visit(), Gate(uploaded), blue(tmp_path)
    monkeypatch.setattr(picking, "uploaded", gate)
    tab(page, "Break it")
    page.get_by_text("Another picture, other names").click()
    give(page, "break", file)
    gate.reached()
    slide(page, "occlusion", "End")
    gate.open()
    broken = Damage(occlusion=1.0).picture(uploaded(str(file)).image)
    reaches(page, desk.models("emoji-clip").vlm.similarity(broken, "pizza").variance)


def test_a_slider_that_is_moved_while_a_file_is_sent_counts(visit: Any, desk: Any, tmp_path: Path) -> None:
    page, vlm, file, damage = visit(), desk.models("emoji-clip").vlm, blue(tmp_path), Damage(occlusion=1.0)
    tab(page, "Break it")
    page.get_by_text("Another picture, other names").click()
    with uploading(page):
        give(page, "break", file)
        slide(page, "occlusion", "End")
        reaches(page, vlm.similarity(damage.picture(example(1).image), "pizza").variance)
    reaches(page, vlm.similarity(damage.picture(uploaded(str(file)).image), "pizza").variance)


@pytest.mark.parametrize("bad", [False, True])
def test_a_drawing_that_is_pressed_while_a_file_is_sent_stays(visit: Any, tmp_path: Path, bad: bool) -> None:
    page, file = visit(), blue(tmp_path)
    if bad:
        file.write_text("no picture")
    with uploading(page):
        give(page, "ask", file)
        page.locator("#ask-drawings button").nth(5).click()
        seen(page, f"#answer:has(img[alt='{example(5).title}'])", "guitar: ")
    emptied(page, "ask")
    type_into(page, "classes", "guitar, tractor")
    page.locator("#ask").click()
    text_of(page, "#answer", "tractor")
    assert page.locator("#answer img").get_attribute("alt") == example(5).title
    assert page.locator("#ask-refused [role=alert]").count() == 0
    give(page, "ask", blue(tmp_path))  # and a file that is dropped afterwards is taken
    seen(page, "#answer img[alt='mine.png']")


def test_words_that_are_sent_while_a_file_is_sent_stay(visit: Any, tmp_path: Path) -> None:
    page = visit()
    tab(page, "Search")
    with uploading(page):
        give(page, "search", blue(tmp_path))
        page.locator("#search").click()
        text_of(page, "#found h3", "grinning cat")
    emptied(page, "search")
    assert "grinning cat" in text_of(page, "#found h3", "“")


def test_a_list_that_is_chosen_meanwhile_is_asked_about(visit: Any, desk: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    page, gate = visit(), Gate(desk.asker)
    monkeypatch.setattr(desk, "asker", gate)
    page.locator("#ask").click()
    gate.reached()
    page.locator("#lists input").click()
    page.get_by_role("option", name="vehicles").click()
    assert "ambulance" in page.locator("#classes textarea").input_value()  # at once
    gate.open()
    text_of(page, "#answer", "ambulance")


def test_another_model_answers_again_what_it_is_asked_on_the_other_tabs(visit: Any, desk: Any, saved: Path) -> None:
    page, vlm = visit(), desk.models(str(saved / "wide")).vlm
    before = page.locator("#answer").inner_text()
    tab(page, "Search")
    page.locator("#search").click()
    assert "searched by emoji-clip;" in text_of(page, "#found", "grinning cat")
    tab(page, "Label")
    page.locator("#label").click()
    text_of(page, "#labelled", "10 labelled")
    tab(page, "Model")
    type_into(page, "model-folder", "wide")
    page.keyboard.press("Enter")
    text_of(page, "#model-used", "wide")
    tab(page, "Label")
    text_of(page, "#labelled", "The model was changed, which begins anew.")
    tab(page, "Search")
    text_of(page, "#found", "wide;")
    tab(page, "Break it")
    reaches(page, vlm.similarity(example(1).image, "pizza").variance)
    tab(page, "Ask")
    page.wait_for_function("before => document.querySelector('#answer').innerText !== before", arg=before)
    answer = vlm.classify(vlm.image_features([example(0).image]), list(CLASSES))
    assert f"{float(answer.entropy[0]):.3f} nats" in text_of(page, "#answer", "nats")


def test_a_number_that_no_slider_has_is_its_end(visit: Any, desk: Any) -> None:
    page, vlm, pizza = visit(), desk.models("emoji-clip").vlm, example(1).image
    tab(page, "Break it")
    number = page.locator("#break-occlusion input[type=number]")
    number.fill("7")
    reaches(page, vlm.similarity(Damage(occlusion=1.0).picture(pizza), "pizza").variance)
    number.fill("")
    reaches(page, vlm.similarity(pizza, "pizza").variance)
    number.fill("0.5")
    reaches(page, vlm.similarity(Damage(occlusion=0.5).picture(pizza), "pizza").variance)
    assert page.get_by_text("Error").count() == 0


def test_of_two_requests_the_older_one_is_dropped() -> None:
    turns = Turns()
    assert [turns.old(turn) for turn in (1, 3, 2, None, 3, 4, 3)] == [False, False, True, False, False, False, True]


def test_a_note_is_read_whatever_it_is() -> None:
    assert Asked.of({"by": "place", "place": 3, "turn": 5, "more": 1}) == Asked(by="place", place=3, turn=5)
    for note in (None, [], "x", 3, {"by": 3, "place": "x", "noted": None, "turn": True}):
        assert Asked.of(note) == Asked()
