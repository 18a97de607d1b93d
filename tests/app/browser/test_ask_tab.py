"""The tab Ask in a browser: it says what the library says, and promises nothing that was not calibrated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("gradio", reason="the page needs Gradio: pip install 'bayesvlm[app]'")
from bayesvlm.app.drawings import CLASSES, drawings, of_classes
from bayesvlm.app.markup import cosine, percent

from .hands import give, plain, text_of, type_into

pytestmark = [pytest.mark.xdist_group("app"), pytest.mark.timeout(300)]


def test_ask_says_what_the_library_says_of_an_uploaded_file(visit: Any, desk: Any, tmp_path: Path) -> None:
    from bayesvlm.safety import Detector, PredictionSets

    drawing = next(each for each in drawings("openmoji-black") if each.name == "tractor")
    file = tmp_path / "mine.webp"
    file.write_bytes(drawing.image)
    page, names = visit(), ["tractor", "ambulance", "bicycle", "rocket", "sailboat"]
    type_into(page, "classes", ", ".join(names))
    give(page, "ask", file)
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
    assert f"holds the right one in 90 % {listed} In 90 % of drawings" in said


def test_names_that_nobody_drew_are_promised_nothing(visit: Any) -> None:
    page = visit()
    assert "drawings of these names" in text_of(page, "#answer", "p = ")
    type_into(page, "classes", ", ".join((*CLASSES, "quantum physics")))
    page.locator("#ask").click()
    said = text_of(page, "#answer", "quantum physics")
    known = f"drawings of {len(CLASSES)} of the {len(CLASSES) + 1} names to calibrate on"
    assert f"{known}, and none of quantum physics." in said
    assert "p = " not in said
    assert "in the set" not in said
