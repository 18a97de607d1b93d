"""The tab Model."""

from __future__ import annotations

from typing import Any

import gradio as gr

from bayesvlm.app.described import description_html
from bayesvlm.app.desk import Desk, in_sentences
from bayesvlm.app.markup import page, quiet

TITLE = "Model"


def _used(name: str) -> str:
    plain = name.replace("`", "'")  # else the rest of it would be Markdown
    return f"In use, here and on the other tabs: `{plain}`. An index given with `--index` is searched by its own."


def build(desk: Desk, model: gr.State) -> None:
    """The components of the tab, and what they do."""

    def show(name: str) -> tuple[Any, ...]:
        found = desk.description(name)
        return found.name, found.card, _used(found.name), description_html(found)

    with gr.Row():
        names = gr.Dropdown(
            list(desk.models.names), value=desk.models.names[0], label="Model", scale=2, min_width=200, elem_id="model"
        )
        button = gr.Button("Show", variant="primary", scale=1, min_width=120, elem_id="model-show")
    roots = ", ".join(map(str, desk.models.roots))
    folder = gr.Textbox(
        label="or a saved posterior's folder",
        info=f"below {roots}; Enter opens it" if roots else "",
        visible=bool(roots),
        elem_id="model-folder",
    )
    used = gr.Markdown(_used(desk.models.names[0]), elem_id="model-used")
    quality = gr.HTML(page(quiet("Show measures the model on drawings, which takes some seconds.")), elem_id="quality")
    card = gr.Markdown("", elem_id="card")
    button.click(in_sentences(show, 3), [names], [model, card, used, quality], api_visibility="private")
    folder.submit(in_sentences(show, 3), [folder], [model, card, used, quality], api_visibility="private")
