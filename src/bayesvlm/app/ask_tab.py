"""The tab Ask."""

from __future__ import annotations

import json
from typing import Any

import gradio as gr

from bayesvlm.app.ask import answer_html
from bayesvlm.app.asking import Asked, asks, said
from bayesvlm.app.desk import Desk
from bayesvlm.app.drawings import CLASSES, LISTS
from bayesvlm.app.picking import Kept, example, picker, pictured
from bayesvlm.app.uploads import Picture, class_list

TITLE = "Ask"
_FIRST = 0  # of the examples: one that looks familiar


def build(desk: Desk, model: gr.State) -> None:
    """The components of the tab, and what they do."""

    def answer(name: str, shown: Picture, classes: str) -> str:
        return said(lambda: answer_html(desk.asker(name)(shown, class_list(classes)), shown))

    def ask(asked: Asked, name: str, kept: Kept | None, classes: str) -> tuple[Any, ...]:
        kept, picture, refused = pictured(asked, kept, _FIRST)
        return kept, refused, answer(name, picture, classes)

    def program_asks(name: str, kept: Kept | None, classes: str) -> str:
        return answer(name, pictured(Asked(), kept, _FIRST)[1], classes)

    def program_uploads(name: str, path: str, classes: str) -> tuple[Any, ...]:
        return ask(Asked(file=path, came=0), name, None, classes)

    picture = gr.State(None)
    with gr.Row():
        with gr.Column(scale=2, min_width=280):
            given = picker("ask")
            which = gr.Dropdown(list(LISTS), value=next(iter(LISTS)), label="Names to begin with", elem_id="lists")
            classes = gr.Textbox(", ".join(CLASSES), label="Names, apart by commas", lines=3, elem_id="classes")
            button = gr.Button("Ask", variant="primary", elem_id="ask")
        with gr.Column(scale=3, min_width=300):
            shown = gr.HTML(answer(desk.models.names[0], example(_FIRST), ", ".join(CLASSES)), elem_id="answer")
    lists = json.dumps({name: ", ".join(names) for name, names in LISTS.items()})
    which.input(None, [which], [classes], js=f"which => ({lists})[which]", api_visibility="private")  # and then:
    asks(
        "ask",
        [button.click, classes.submit, which.input, given.came.select, given.drawings.select, model.change],
        ask,
        [model, picture, classes],
        [picture, given.refused, shown],
    )
    program = gr.Button(visible=False)
    program.click(program_asks, [model, picture, classes], [shown], api_name="ask")
    program.click(
        program_uploads,
        [model, given.file, classes],
        [picture, given.refused, shown],
        api_name="upload",
    )
