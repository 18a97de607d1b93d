"""The tab Break it."""

from __future__ import annotations

from typing import Any

import gradio as gr

from bayesvlm.app.broken import Damage, destroy, way_html
from bayesvlm.app.desk import Desk, in_sentences
from bayesvlm.app.drawings import CLASSES
from bayesvlm.app.picking import example, picked, picker
from bayesvlm.app.uploads import Picture, checked_text, class_list, uploaded

TITLE = "Break it"
_FIRST = 1  # of the examples: one that the model knows well


def build(desk: Desk, model: gr.State) -> None:
    """The components of the tab, and what they do."""

    def broken(name: str, shown: Picture | None, text: str, classes: str, *shares: float) -> str:
        written, names = checked_text(text, "the picture"), class_list(classes)
        return way_html(destroy(desk.models(name), shown or example(_FIRST), written, names, Damage(*shares)))

    def move(*given: Any) -> tuple[Any, ...]:
        return (broken(*given),)

    def take(path: str | None, *given: Any) -> tuple[Any, ...]:
        if path is None:
            return gr.skip(), gr.skip(), gr.skip()
        shown = uploaded(path)
        name, _, *rest = given
        return shown, None, broken(name, shown, *rest)

    def pick(
        name: str,
        kept: Picture | None,
        text: str,
        classes: str,
        blur: float,
        grey: float,
        occlusion: float,
        letters: float,
        event: gr.EventData,  # found by its annotation, so that the sliders cannot be *shares
    ) -> tuple[Any, ...]:
        shown = picked(event)
        text = shown.title.partition(",")[0]
        return shown, text, broken(name, shown, text, classes, blur, grey, occlusion, letters)

    picture = gr.State(None)
    intact = (desk.models.names[0], None, "pizza", ", ".join(CLASSES))
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            sliders = [
                gr.Slider(0, 1, 0, step=0.05, label=label, elem_id=f"break-{name}", buttons=[])
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
    asked = [model, picture, text, classes, *sliders]
    for slider in sliders:
        slider.change(
            in_sentences(move, 0),
            asked,
            [shown],
            api_visibility="private",
            show_progress="hidden",
            trigger_mode="always_last",
        )
    for box in (text, classes):
        box.submit(in_sentences(move, 0), asked, [shown], api_visibility="private")
    given.file.upload(
        in_sentences(take, 2, cleared=1), [given.file, *asked], [picture, given.file, shown], api_visibility="private"
    )
    given.drawings.select(in_sentences(pick, 2), asked, [picture, text, shown], api_visibility="private")
