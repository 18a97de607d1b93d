"""The tab Ask."""

from __future__ import annotations

from typing import Any

import gradio as gr

from bayesvlm.app.ask import answer_html
from bayesvlm.app.desk import Desk, in_sentences
from bayesvlm.app.drawings import CLASSES, LISTS
from bayesvlm.app.picking import example, picked, picker
from bayesvlm.app.uploads import Picture, class_list, uploaded

TITLE = "Ask"


def build(desk: Desk, model: gr.State) -> None:
    """The components of the tab, and what they do."""

    def answer(name: str, shown: Picture | None, classes: str) -> str:
        asked = class_list(classes)
        return answer_html(desk.asker(name)(shown or example(0), asked), shown or example(0))

    def ask(name: str, shown: Picture | None, classes: str) -> tuple[Any, ...]:
        return (answer(name, shown, classes),)

    def take(name: str, path: str | None, classes: str) -> tuple[Any, ...]:
        if path is None:
            return gr.skip(), gr.skip(), gr.skip()
        shown = uploaded(path)
        return shown, None, answer(name, shown, classes)

    def pick(name: str, classes: str, event: gr.EventData) -> tuple[Any, ...]:
        shown = picked(event)
        return shown, answer(name, shown, classes)

    def listed(name: str, shown: Picture | None, which: str) -> tuple[Any, ...]:
        text = ", ".join(LISTS[which])
        return text, answer(name, shown, text)

    picture = gr.State(None)
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            given = picker("ask")
            which = gr.Dropdown(list(LISTS), value=next(iter(LISTS)), label="Names to begin with", elem_id="lists")
            classes = gr.Textbox(", ".join(CLASSES), label="Names, apart by commas", lines=3, elem_id="classes")
            button = gr.Button("Ask", variant="primary", elem_id="ask")
        with gr.Column(scale=3, min_width=300):
            shown = gr.HTML(ask(desk.models.names[0], None, ", ".join(CLASSES))[0], elem_id="answer")
    button.click(in_sentences(ask, 0), [model, picture, classes], [shown], api_name="ask")
    classes.submit(in_sentences(ask, 0), [model, picture, classes], [shown], api_visibility="private")
    which.input(in_sentences(listed, 1), [model, picture, which], [classes, shown], api_visibility="private")
    given.file.upload(
        in_sentences(take, 2, cleared=1), [model, given.file, classes], [picture, given.file, shown], api_name="upload"
    )
    given.drawings.select(in_sentences(pick, 1), [model, classes], [picture, shown], api_visibility="private")
