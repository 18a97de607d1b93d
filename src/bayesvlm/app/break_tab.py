"""The tab Break it."""

from __future__ import annotations

import json
from typing import Any

import gradio as gr

from bayesvlm.app.asking import Asked, asks, dial, said
from bayesvlm.app.broken import Damage, destroy, way_html
from bayesvlm.app.desk import Desk
from bayesvlm.app.drawings import CLASSES, examples
from bayesvlm.app.picking import Kept, example, picker, pictured
from bayesvlm.app.uploads import Picture, checked_text, class_list

TITLE = "Break it"
_FIRST = 1  # of the examples: one that the model knows well


def build(desk: Desk, model: gr.State) -> None:
    """The components of the tab, and what they do."""

    def broken(name: str, shown: Picture, text: str, classes: str, *shares: float) -> str:
        def way() -> str:
            written, names = checked_text(text, "the picture"), class_list(classes)
            return way_html(destroy(desk.models(name), shown, written, names, Damage(*shares)))

        return said(way)

    def move(asked: Asked, name: str, kept: Kept | None, text: str, classes: str, *shares: float) -> tuple[Any, ...]:
        kept, picture, refused = pictured(asked, kept, _FIRST)
        return kept, refused, broken(name, picture, text, classes, *shares)

    picture = gr.State(None)
    intact = (desk.models.names[0], example(_FIRST), "pizza", ", ".join(CLASSES))
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            sliders = [
                dial(0, 1, 0, step=0.05, label=label, elem_id=f"break-{name}", buttons=[])
                for name, label in (
                    ("blur", "Blur"),
                    ("grey", "Grey"),
                    ("occlusion", "Occlusion: squares painted grey"),
                    ("letters", "Letters of the text crossed out"),
                )
            ]
            text = gr.Textbox("pizza", label="The text it is compared with", elem_id="break-text")
            with gr.Accordion("Another picture, other names", open=False):
                given = picker("break")
                classes = gr.Textbox(", ".join(CLASSES), label="Names to answer with", lines=2, elem_id="break-classes")
        with gr.Column(scale=3, min_width=300):
            shown = gr.HTML(broken(*intact, 0, 0, 0, 0), elem_id="broken")
    names = json.dumps([each.name for each in examples()])
    picked = f"() => ({names})[window.bayesvlm.last['break'].place]"
    given.drawings.select(None, None, [text], js=picked, api_visibility="private")  # and then:
    asks(
        "break",
        [
            *(slider.change for slider in sliders),
            text.submit,
            classes.submit,
            given.came.select,
            given.drawings.select,
            model.change,
        ],
        move,
        [model, picture, text, classes, *sliders],
        [picture, given.refused, shown],
        progress=False,
    )
