"""Somebody at the page, in a real browser: every tab, bad files, two visitors, a phone; nothing from outside."""

from __future__ import annotations

import json
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("gradio", reason="the page needs Gradio: pip install 'bayesvlm[app]'")
from bayesvlm.app.broken import Damage
from bayesvlm.app.drawings import CLASSES, drawings, of_classes
from bayesvlm.app.markup import cosine, percent
from bayesvlm.app.picking import example
from bayesvlm.app.uploads import uploaded

pytestmark = [pytest.mark.xdist_group("app"), pytest.mark.timeout(300)]
THERE = "squinting face with tongue"  # is among the drawings that are searched
LONG = 60_000  # milliseconds: machines that do other things at the same time


@pytest.fixture
def visit(browser: Any, address: str) -> Iterator[Callable[..., Any]]:
    """Opens the page as a visitor of their own; at the end nothing was asked of another address."""
    contexts, asked = [], []

    def opened(**options: Any) -> Any:
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(LONG)
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        page.locator("#answer .rows").wait_for()
        return page

    yield opened
    for context in contexts:
        context.close()
    outside = [url for url in asked if not url.startswith((address, "data:", "blob:"))]
    assert not outside


def tab(page: Any, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()


def text_of(page: Any, where: str, holds: str | re.Pattern[str]) -> str:
    """What a part of the page says, once it holds something."""
    page.locator(where).filter(has_text=holds).wait_for()
    return " ".join(page.locator(where).inner_text().split())


def plain(text: str) -> str:
    return " ".join(text.split())


def test_ask_says_what_the_library_says_of_an_uploaded_file(visit: Any, desk: Any, tmp_path: Path) -> None:
    from bayesvlm.safety import Detector, PredictionSets

    drawing = next(each for each in drawings("openmoji-black") if each.name == "tractor")
    file = tmp_path / "mine.webp"
    file.write_bytes(drawing.image)
    page, names = visit(), ["tractor", "ambulance", "bicycle", "rocket", "sailboat"]
    page.locator("#classes textarea").fill(", ".join(names))
    page.locator("#ask-upload input[type=file]").set_input_files(file)
    said = text_of(page, "#answer", "ambulance")

    vlm = desk.models("emoji-clip").vlm
    images, texts = vlm.image_features(file), vlm.text_features(names)
    prediction, known = vlm.classify(images, names), vlm.plain(images, names)[0]
    low, high = prediction.moments.interval(0.95)
    for k, name in enumerate(names):
        assert name in said
        assert plain(percent(float(prediction.probs[0, k]))) in said
        assert plain(percent(float(known[k]))) in said
        assert cosine(float(prediction.mean[0, k]), float(low[0, k]), float(high[0, k])) in said
    assert f"{float(prediction.entropy[0]):.3f} nats" in said
    assert f"{float(prediction.aleatoric[0]):.3f} the picture leaves open" in said
    assert f"{float(prediction.epistemic[0]):.3f} the model does not know" in said
    familiar = of_classes(names)
    features = vlm.image_features([each.image for each in familiar])
    found = Detector.calibrate(vlm, features, texts, false_alarms=0.05)(images)
    assert f"p = {float(found.p_value[0]):.3f}" in said
    labels = [names.index(each.name) for each in familiar]
    inside = PredictionSets.calibrate(vlm, features, labels, texts, miss=0.1)(images)[0]
    assert said.count("in the set") == int(inside.sum())
    order = prediction.probs[0].argsort(descending=True).tolist()
    listed = ", ".join(names[k] for k in order if inside[k])
    assert f"holds the right one in 90 % {listed} Of drawings" in said


def test_names_that_nobody_drew_are_promised_nothing(visit: Any) -> None:
    page = visit()
    assert "drawings of these classes" in text_of(page, "#answer", "p = ")
    page.locator("#classes textarea").fill(", ".join((*CLASSES, "quantum physics")))
    page.locator("#ask").click()
    said = text_of(page, "#answer", "quantum physics")
    assert f"drawings of {len(CLASSES)} of {len(CLASSES) + 1} names to calibrate on; none of: quantum physics." in said
    assert "p = " not in said
    assert "in the set" not in said


SLIDERS = ("blur", "grey", "occlusion", "letters")
REACHES = """([variance]) => {
    const shown = document.querySelector('#broken [data-variance]');
    return shown && Math.abs(Number(shown.dataset.variance) / variance - 1) < 1e-3;
}"""


def test_every_slider_leads_to_the_librarys_mean_and_variance(visit: Any, desk: Any) -> None:
    """Of a guitar in colour, whose variance each of them raises."""
    page, vlm, guitar = visit(), desk.models("emoji-clip").vlm, example(5)
    tab(page, "Break it")
    page.get_by_text("Another picture, other names").click()
    page.locator("#break-drawings button").nth(5).click()
    intact = vlm.similarity(guitar.image, "guitar")
    page.wait_for_function(REACHES, arg=[float(intact.variance)])
    for name in SLIDERS:
        damage = Damage(**{name: 1.0})
        moments = vlm.similarity(damage.picture(guitar.image), damage.text("guitar"))
        assert float(moments.variance) > 1.05 * float(intact.variance)
        slider = page.locator(f"#break-{name} input[type=range]")
        slider.focus()
        page.keyboard.press("End")
        page.wait_for_function(REACHES, arg=[float(moments.variance)])
        said = text_of(page, "#broken .facts", "cosine")
        shown = re.search(r"cosine of picture and text (\S+) \((\S+) to (\S+)\)", said)
        assert shown is not None
        low, high = moments.interval(0.95)
        expected = [float(moments.mean), float(low), float(high)]
        assert [float(number) for number in shown.groups()] == pytest.approx(expected, abs=1.5e-3)
        page.keyboard.press("Home")
        page.wait_for_function(REACHES, arg=[float(intact.variance)])


def test_a_slider_raises_the_variance(visit: Any) -> None:
    page = visit()
    tab(page, "Break it")
    number = page.locator("#broken [data-variance]")
    before = float(number.get_attribute("data-variance"))
    slider = page.locator("#break-occlusion input[type=range]")
    slider.focus()
    for _ in range(8):  # the arrow keys move it
        page.keyboard.press("ArrowRight")
    page.wait_for_function("old => document.querySelector('#broken [data-variance]').dataset.variance != old",
                           arg=number.get_attribute("data-variance"))  # fmt: skip
    page.wait_for_timeout(1500)
    assert float(slider.input_value()) == pytest.approx(0.4)
    assert float(number.get_attribute("data-variance")) > 1.05 * before
    letters = page.locator("#break-letters input[type=range]")
    letters.focus()
    page.keyboard.press("End")
    assert "xxxxx" in text_of(page, "#broken .facts", "xxxxx")


def test_search_opens_a_hit_and_abstains_on_nonsense(visit: Any, desk: Any) -> None:
    page = visit()
    tab(page, "Search")
    page.locator("#search-text textarea, #search-text input").first.fill(THERE)
    page.keyboard.press("Enter")
    card = page.locator("#found .card").first
    card.wait_for()
    assert not card.locator("dl").is_visible()
    card.locator("summary").focus()
    page.keyboard.press("Enter")
    card.locator("dl").wait_for()
    shown = " ".join(card.inner_text().split())
    hits = desk.collection("emoji-clip").search(THERE, 8)
    assert hits[0].id in shown
    assert cosine(hits[0].mean, *hits[0].interval) in shown
    assert plain(percent(hits[0].p_best)) in shown
    page.locator("#search-text textarea, #search-text input").first.fill("xqzt wvv")
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
    page.locator("#search-upload input[type=file]").set_input_files(file)
    said = text_of(page, "#found", "my pizza.webp")
    assert "“my pizza.webp”" in said
    assert "a picture is always answered" in said
    assert "turned away" not in said
    assert "searched by emoji-clip;" in said
    hits = desk.collection("emoji-clip").search(uploaded(str(file)), 8)
    shown = page.locator("#found .card").evaluate_all("cards => cards.map(card => card.dataset.id)")
    assert tuple(shown) == hits.ids


def test_label_goes_on_where_it_was(visit: Any) -> None:
    page = visit()
    tab(page, "Label")
    page.locator("#label").click()
    assert "10 labelled" in text_of(page, "#labelled", "10 labelled")
    page.locator("#label").click()
    said = text_of(page, "#labelled", "20 labelled")
    assert "20." in said
    assert "11." in said
    assert page.locator("#labelled svg circle").count() == 6  # three points of two curves
    page.locator("#label-again").click()
    text_of(page, "#labelled", "Nothing labelled yet")


def test_label_chooses_what_the_library_chooses(visit: Any, desk: Any) -> None:
    from bayesvlm.active import finetune, rank
    from bayesvlm.evaluation import nlpd

    vlm, task = desk.models("emoji-clip").vlm, desk.labeller("emoji-clip").task
    asked = (vlm, task.pool, task.target, task.classes, "epig", 10, task.pool_labels)
    first = rank(*asked, exclude=task.validation, progress=False)
    rows = first.indices
    known, used = (task.pool[rows], task.pool_labels[rows]), torch.cat([task.validation, rows])
    then = rank(*asked, labelled=known, exclude=used, progress=False)
    held = task.pool[task.validation], task.pool_labels[task.validation]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # small sets are the point here
        taught = finetune(vlm, *known, task.classes, validation=held, lr=1e-4, seed=0)
    loss = nlpd(taught.classify(task.target, task.classes).probs, task.target_labels)

    page = visit()
    tab(page, "Label")
    page.locator("#label").click()
    said = text_of(page, "#labelled", "10 labelled")
    assert f"{loss.value:.3f} ± {loss.standard_error:.3f} after 10 labels" in said
    for before, chosen in ((0, first), (10, then)):
        cards = page.locator("#labelled .card").all_inner_texts()
        for place, (row, score, card) in enumerate(zip(chosen.indices.tolist(), chosen.scores, cards, strict=True)):
            assert f"{before + place + 1}. {task.pool_names[row]}" in card
            assert f"score {float(score):.4f} nats" in card
        if not before:
            page.locator("#label").click()
            text_of(page, "#labelled", "20 labelled")


def test_model_measures_what_the_library_measures(visit: Any, desk: Any) -> None:
    from bayesvlm.embedded import world
    from bayesvlm.evaluation import accuracy, ece, nlpd

    split = drawings("new-drawing")
    shown, names = split[:: len(split) // 330][:330], list(world("This test").load("new-drawing").classes)
    vlm, labels = desk.models("emoji-clip").vlm, torch.tensor([names.index(each.name) for each in shown])
    images, texts = vlm.image_features([each.image for each in shown]), vlm.text_features(names)
    page = visit()
    tab(page, "Model")
    page.locator("#model-show").click()
    said = text_of(page, "#quality", "NLPD")
    ways = {"plain CLIP": vlm.plain(images, texts), "with the posterior": vlm.classify(images, texts).probs}
    for name, probs in ways.items():
        loss, share = nlpd(probs, labels), plain(percent(accuracy(probs, labels).value))
        gap = plain(percent(ece(probs, labels)))
        assert f"{name} {share} {loss.value:.3f} ± {loss.standard_error:.3f} {gap}" in said


def test_model_shows_a_folder_and_the_other_tabs_use_it(visit: Any) -> None:
    page = visit()
    before = page.locator("#answer").inner_text()
    tab(page, "Model")
    page.locator("#model-folder textarea, #model-folder input").first.fill("wide")
    page.keyboard.press("Enter")
    assert "with the posterior" in text_of(page, "#quality", "NLPD")
    assert "tau = 2;" in text_of(page, "#card", "tau")
    tab(page, "Ask")
    page.locator("#ask").click()
    page.wait_for_function("old => document.querySelector('#answer').innerText != old", arg=before)
    tab(page, "Model")
    page.locator("#model-folder textarea, #model-folder input").first.fill("/etc")
    page.keyboard.press("Enter")
    assert "is no folder below" in text_of(page, "#quality", "is no folder")


def test_what_is_no_picture_gets_a_sentence(visit: Any, tmp_path: Path) -> None:
    page = visit()
    garbage, disguised = tmp_path / "noise.jpg", tmp_path / "page.png"
    garbage.write_bytes(np.random.default_rng(0).bytes(3000))
    disguised.write_text("<html><script>document.title = 'taken over'</script></html>")
    for file in (garbage, disguised):
        page.locator("#ask-upload input[type=file]").set_input_files(file)
        said = text_of(page, "#answer [role=alert]", file.name)
        assert "is not an image that Pillow can read" in said
    assert page.title() == "bayesvlm"
    page.locator("#classes textarea").fill("cat")
    page.locator("#ask").click()
    assert "type two or more" in text_of(page, "#answer [role=alert]", "only one name")
    page.locator("#classes textarea").fill("cat, dog")
    page.locator("#ask").click()  # and it goes on as if nothing had been
    text_of(page, "#answer", "plain CLIP")


@pytest.mark.parametrize(("name", "box", "said"), [("Break it", "break", "broken"), ("Search", "search", "found")])
def test_what_is_no_picture_gets_a_sentence_on_every_tab(
    visit: Any, tmp_path: Path, name: str, box: str, said: str
) -> None:
    page = visit()
    garbage, disguised, fine = tmp_path / "noise.jpg", tmp_path / "page.png", tmp_path / "fine.png"
    garbage.write_bytes(np.random.default_rng(0).bytes(3000))
    disguised.write_text("<html><script>document.title = 'taken over'</script></html>")
    Image.fromarray(np.full((40, 40, 3), (0, 90, 200), dtype=np.uint8)).save(fine)
    tab(page, name)
    if name == "Break it":
        page.get_by_text("Another picture, other names").click()
    for file in (garbage, disguised):
        page.locator(f"#{box}-upload input[type=file]").set_input_files(file)
        assert "is not an image that Pillow can read" in text_of(page, f"#{said} [role=alert]", file.name)
    assert page.title() == "bayesvlm"
    page.locator(f"#{box}-upload input[type=file]").set_input_files(fine)  # and it goes on as if nothing had been
    text_of(page, f"#{said}", "cosine")
    assert page.locator(f"#{said} [role=alert]").count() == 0


def test_a_file_of_200_mb_gets_a_sentence(visit: Any, tmp_path: Path) -> None:
    page, large = visit(), tmp_path / "large.png"
    with large.open("wb") as file:
        file.truncate(200 * 2**20)
    page.locator("#ask-upload input[type=file]").set_input_files(large)
    said = page.get_by_text(re.compile("exceeds|too large|maximum", re.IGNORECASE)).first
    said.wait_for()
    page.locator("#ask").click()
    text_of(page, "#answer", "plain CLIP")


def test_two_visitors_do_not_see_each_other(visit: Any, tmp_path: Path) -> None:
    first, second = visit(), visit()
    before = second.locator("#answer").inner_text()
    file = tmp_path / "mine.png"
    Image.fromarray(np.full((40, 40, 3), (0, 90, 200), dtype=np.uint8)).save(file)
    first.locator("#ask-upload input[type=file]").set_input_files(file)
    first.locator("#answer img[alt='mine.png']").wait_for()
    tab(first, "Label")
    first.locator("#label").click()
    text_of(first, "#labelled", "10 labelled")
    second.locator("#ask").click()
    second.wait_for_timeout(1500)
    assert second.locator("#answer").inner_text() == before
    assert second.locator("#answer img[alt='mine.png']").count() == 0
    tab(second, "Label")
    second.locator("#label").click()
    text_of(second, "#labelled", "10 labelled")  # and not 20


def filled(page: Any, name: str) -> None:
    """A tab with a result on it, all of it open."""
    tab(page, name)
    if name == "Break it":
        page.locator("#break-letters input[type=range]").focus()
        page.keyboard.press("End")
        page.locator("#broken .facts", has_text="xxxxx").wait_for()
        page.locator("#broken summary").click()
    elif name == "Search":
        page.locator("#search").click()
        page.locator("#found .card").first.locator("summary").click()
    elif name == "Label":
        page.locator("#label").click()
        page.locator("#labelled svg").wait_for()
    elif name == "Model":
        page.locator("#model-show").click()
        page.locator("#card table").wait_for()


def test_what_one_visitor_opens_breaks_and_searches_is_not_the_others(
    visit: Any, desk: Any, saved: Path, tmp_path: Path
) -> None:
    first, second = visit(), visit()
    file = tmp_path / "mine.png"
    Image.fromarray(np.full((40, 40, 3), (0, 90, 200), dtype=np.uint8)).save(file)
    tab(first, "Model")
    first.locator("#model-folder textarea, #model-folder input").first.fill("wide")
    first.keyboard.press("Enter")
    assert "wide" in text_of(first, "#model-used", "wide")
    tab(first, "Break it")
    first.get_by_text("Another picture, other names").click()
    first.locator("#break-upload input[type=file]").set_input_files(file)
    mine = desk.models(str(saved / "wide")).vlm.similarity(uploaded(str(file)).image, "pizza")
    first.wait_for_function(REACHES, arg=[float(mine.variance)])
    first.locator("#break-letters input[type=range]").focus()
    first.keyboard.press("End")
    text_of(first, "#broken .facts", "xxxxx")
    tab(first, "Search")
    first.locator("#search-upload input[type=file]").set_input_files(file)
    assert "wide;" in text_of(first, "#found", "mine.png")

    tab(second, "Model")
    assert "emoji-clip." in text_of(second, "#model-used", "In use")
    assert "NLPD" not in second.locator("#quality").inner_text()
    tab(second, "Break it")
    vlm, damage = desk.models("emoji-clip").vlm, Damage(occlusion=1.0)
    moments = vlm.similarity(damage.picture(example(1).image), "pizza")
    second.locator("#break-occlusion input[type=range]").focus()
    second.keyboard.press("End")
    second.wait_for_function(REACHES, arg=[float(moments.variance)])
    assert "xxxxx" not in second.locator("#broken").inner_text()
    tab(second, "Search")
    assert "Type what to look for" in second.locator("#found").inner_text()
    second.locator("#search").click()
    assert "searched by emoji-clip;" in text_of(second, "#found", "grinning cat")


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


def to(page: Any, where: str) -> None:
    """By the Tab key alone."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("where => document.activeElement.matches(where)", where):
            return
    raise AssertionError(f"Tab does not reach {where}")


def test_the_keyboard_alone_is_enough_on_all_tabs(visit: Any, tmp_path: Path) -> None:
    page, file = visit(), tmp_path / "mine.png"
    Image.fromarray(np.full((40, 40, 3), (0, 90, 200), dtype=np.uint8)).save(file)

    def choose(box: str) -> None:
        to(page, f"#{box}-upload button")
        with page.expect_file_chooser() as chooser:
            page.keyboard.press("Enter")
        chooser.value.set_files(file)

    def pick(box: str, typed: str, value: str) -> None:
        to(page, f"#{box} input")
        page.keyboard.type(typed)
        page.locator(f"#{box} [role=option]:visible, ul [role=option]:visible").first.wait_for()
        page.wait_for_timeout(200)  # the list is filtered by what was typed
        page.keyboard.press("Enter")
        page.wait_for_function(
            "([box, value]) => document.querySelector(`#${box} input`).value === value", arg=[box, value]
        )

    def turn(name: str) -> None:
        button = page.get_by_role("tab", name=name, exact=True)
        for _ in range(60):
            page.keyboard.press("Tab")
            if button.evaluate("each => each === document.activeElement"):
                break
        page.keyboard.press("Enter")
        assert button.get_attribute("aria-selected") == "true"

    choose("ask")
    page.locator("#answer img[alt='mine.png']").wait_for()
    pick("lists", "vehi", "vehicles")
    text_of(page, "#answer", "ambulance")
    turn("Break it")
    to(page, "#break-letters input[type=range]")
    page.keyboard.press("End")
    text_of(page, "#broken .facts", "xxxxx")
    to(page, "#broken summary")
    page.keyboard.press("Enter")
    page.locator("#broken table").wait_for()
    turn("Search")
    choose("search")
    text_of(page, "#found", "mine.png")
    to(page, "#search")
    page.keyboard.press("Enter")
    text_of(page, "#found", "grinning cat")
    turn("Label")
    pick("strategy", "at rand", "at random")
    to(page, "#label")
    page.keyboard.press("Enter")
    text_of(page, "#labelled", "chosen by chance")
    turn("Model")
    pick("model", "colour", "emoji-clip-colour")
    to(page, "#model-show")
    page.keyboard.press("Enter")
    text_of(page, "#model-used", "emoji-clip-colour")
    turn("Ask")


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


# Files that are refused: a sentence says so, and stays until the next one.

DROP = """([where, name, size]) => {
  const moved = new DataTransfer();
  moved.items.add(new File([new Uint8Array(size)], name));
  const box = document.querySelector(where + " button, " + where + " [role=button]") || document.querySelector(where);
  box.dispatchEvent(new DragEvent("drop", { dataTransfer: moved, bubbles: true, cancelable: true }));
}"""


@pytest.mark.parametrize("dropped", [False, True])
def test_a_file_that_is_too_large_is_refused_for_as_long_as_nothing_else_is_done(
    visit: Any, tmp_path: Path, dropped: bool
) -> None:
    page, large = visit(), tmp_path / "large.png"
    with large.open("wb") as file:
        file.truncate(30 * 2**20)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    if dropped:
        page.evaluate(DROP, ["#ask-upload", "large.png", 30 * 2**20])
    else:
        page.locator("#ask-upload input[type=file]").set_input_files(large)
    said = text_of(page, "#ask-upload-refused [role=alert]", "large.png")
    assert said == "large.png has 30.0 MB, which is too large: the page takes files of up to 20 MB, so make it smaller."
    page.wait_for_timeout(15_000)  # a message of Gradio's is gone after ten seconds
    assert page.locator("#ask-upload-refused [role=alert]").is_visible()
    assert not [url for url in sent if "upload" in url]
    small = tmp_path / "small.png"
    Image.new("RGB", (40, 40), "red").save(small)
    page.locator("#ask-upload input[type=file]").set_input_files(small)
    page.locator("#answer img[alt='small.png']").wait_for()
    assert page.locator("#ask-upload-refused [role=alert]").count() == 0


def test_what_a_file_is_called_does_not_matter(visit: Any, tmp_path: Path) -> None:
    page, genuine, text = visit(), tmp_path / "holiday", tmp_path / "notes.txt"
    Image.new("RGB", (40, 40), "red").save(genuine, format="PNG")
    page.locator("#ask-upload input[type=file]").set_input_files(genuine)
    page.locator("#answer img[alt='holiday']").wait_for()
    text.write_text("no picture at all")
    page.locator("#ask-upload input[type=file]").set_input_files(text)
    assert "is not an image" in text_of(page, "#answer [role=alert]", "notes.txt")
    tab(page, "Search")
    page.locator("#search-upload input[type=file]").set_input_files(text)
    assert "is not an image" in text_of(page, "#found [role=alert]", "notes.txt")
    tab(page, "Break it")
    page.get_by_role("button", name="Another picture, other names").click()
    page.locator("#break-upload input[type=file]").set_input_files(text)
    assert "is not an image" in text_of(page, "#broken [role=alert]", "notes.txt")


# A posterior that somebody else made.


def test_a_card_with_markup_of_its_own_runs_nothing_and_fetches_nothing(visit: Any, saved: Path) -> None:
    bad = (
        "<script>document.title = 'taken over'</script><img src=x onerror=\"document.title = 'taken over'\">"
        "<img src='http://elsewhere.example/x.png'>![x](http://elsewhere.example/y.png)"
        "<iframe src='http://elsewhere.example/'></iframe><svg onload=\"document.title = 'taken over'\"></svg>"
        "[press](javascript:document.title='taken+over')<form action='http://elsewhere.example/'><input></form>"
    )
    folder = Path(shutil.copytree(saved / "wide", saved / "hostile`<img src='http:x.example'>"))
    config = json.loads((folder / "config.json").read_text())
    config["provenance"] = {"source": bad, bad: "a key", "pairs": 6211}
    (folder / "config.json").write_text(json.dumps(config))
    try:
        page = visit()
        tab(page, "Model")
        page.locator("#model-folder textarea, #model-folder input").first.fill(folder.name)
        page.keyboard.press("Enter")
        text_of(page, "#quality", "NLPD")
        text_of(page, "#card", "Pseudo-data count")
    finally:
        shutil.rmtree(folder)
    page.wait_for_timeout(1000)
    card = page.locator("#card")
    assert card.locator("script, iframe, img, form, [onload], [onerror], a[href^='javascript']").count() == 0
    assert "<script>document.title" in card.inner_text()  # it is text, as all of it
    assert page.locator("#model-used img").count() == 0
    assert page.title() == "bayesvlm"
