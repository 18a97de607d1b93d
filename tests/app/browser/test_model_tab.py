"""The tab Model in a browser: it measures as the library, is used by the other tabs, and runs nothing of a card's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("gradio", reason="the page needs Gradio: pip install 'bayesvlm[app]'")
from bayesvlm.app import described
from bayesvlm.app.drawings import CLASSES
from bayesvlm.app.markup import cosine, percent
from bayesvlm.app.picking import example

from .hands import plain, seen, tab, text_of, type_into

pytestmark = [pytest.mark.xdist_group("app"), pytest.mark.timeout(300)]
BROKEN_IMAGE = """() => new Promise(done => {
    const probe = new Image();
    probe.onerror = () => setTimeout(done);
    probe.src = "x?asked-for-last";
})"""
"""Over when an image that is not there was asked for in vain."""


def test_model_measures_what_the_library_measures(visit: Any, desk: Any) -> None:
    from bayesvlm.embedded import world
    from bayesvlm.evaluation import accuracy, ece, nlpd

    shown, names = described.drawings("new-drawing"), list(world("This test").load("new-drawing").classes)
    vlm, labels = desk.models("emoji-clip").vlm, torch.tensor([names.index(each.name) for each in shown])
    images, texts = vlm.image_features([each.image for each in shown]), vlm.text_features(names)
    page = visit()
    tab(page, "Model")
    page.locator("#model-use").click()
    said = text_of(page, "#quality", "NLPD")
    ways = {"plain CLIP": vlm.plain(images, texts), "with the posterior": vlm.classify(images, texts).probs}
    for name, probs in ways.items():
        loss, share = nlpd(probs, labels), plain(percent(accuracy(probs, labels).value))
        gap = plain(percent(ece(probs, labels)))
        assert f"{name} {share} {loss.value:.3f} ± {loss.standard_error:.3f} {gap}" in said


def test_model_shows_a_folder_and_the_other_tabs_use_it(visit: Any, desk: Any, saved: Path) -> None:
    page = visit()
    before = page.locator("#answer").inner_text()
    tab(page, "Model")
    type_into(page, "model-folder", "wide")
    page.keyboard.press("Enter")
    assert "with the posterior" in text_of(page, "#quality", "NLPD")
    assert "tau = 2;" in text_of(page, "#card", "tau")
    tab(page, "Ask")
    page.locator("#ask").click()
    vlm = desk.models(str(saved / "wide")).vlm
    answer = vlm.classify(vlm.image_features([example(0).image]), list(CLASSES))
    low, high = answer.moments.interval(0.95)
    wide = cosine(float(answer.mean[0, 0]), float(low[0, 0]), float(high[0, 0]))
    assert wide not in before
    assert wide in text_of(page, "#answer", wide)
    tab(page, "Model")
    type_into(page, "model-folder", "/etc")
    page.keyboard.press("Enter")
    assert "is no folder below" in text_of(page, "#quality", "is no folder")


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
        type_into(page, "model-folder", folder.name)
        page.keyboard.press("Enter")
        text_of(page, "#quality", "NLPD")
        text_of(page, "#card", "Pseudo-data count")
        seen(page, "#model-used", "hostile")
    finally:
        shutil.rmtree(folder)
    page.evaluate(BROKEN_IMAGE)  # the card's own would have been asked for before
    card = page.locator("#card")
    assert card.locator("script, iframe, img, form, [onload], [onerror], a[href^='javascript']").count() == 0
    assert "<script>document.title" in card.inner_text()  # it is text, as all of it
    assert page.locator("#model-used img").count() == 0
    assert page.title() == "bayesvlm"
