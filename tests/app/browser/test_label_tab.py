"""The tab Label in a browser: it chooses what the library chooses, and goes on where it was."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from bayesvlm.app import labelling

from .hands import tab, text_of

pytestmark = [pytest.mark.xdist_group("app"), pytest.mark.timeout(300)]


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


def test_at_the_end_what_was_reached_stays(visit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labelling, "MOST", 10)
    page = visit()
    tab(page, "Label")
    page.locator("#label").click()
    assert "10 are labelled, which is enough here" in text_of(page, "#labelled", "10 labelled")
    page.locator("#label:disabled").wait_for()
    assert page.locator("#labelled .card").count() == 10
    page.locator("#label-again").click()
    page.locator("#label:enabled").wait_for()


def test_label_chooses_what_the_library_chooses(visit: Any, desk: Any) -> None:
    from bayesvlm.active import finetune, rank
    from bayesvlm.evaluation import nlpd

    vlm, task = desk.models("emoji-clip").vlm, desk.labeller("emoji-clip").task
    asked: Any = (vlm, task.pool, task.target, task.classes, "epig", 10, task.pool_labels)
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
            assert f"{float(score):.4f} nats of doubt" in card
        if not before:
            page.locator("#label").click()
            text_of(page, "#labelled", "20 labelled")
