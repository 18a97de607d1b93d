"""The tab Model."""

from __future__ import annotations

from typing import Any

import gradio as gr

from bayesvlm.app.asking import Asked, asks, noting, said
from bayesvlm.app.described import Description, description_html
from bayesvlm.app.desk import Desk
from bayesvlm.app.markup import page, quiet

TITLE = "Model"


def _used(name: str) -> str:
    plain = name.replace("`", "'")  # else the rest of it would be Markdown
    return f"In use, here and on the other tabs: `{plain}`. An index given with `--index` is searched by its own."


def build(desk: Desk, model: gr.State) -> None:
    """The components of the tab, and what they do."""

    def use(asked: Asked, listed: str, folder: str) -> tuple[Any, ...]:
        found: Description | None = None

        def described() -> str:
            nonlocal found
            entered = folder if asked.by == "folder" else listed
            found = desk.description(entered if asked.by else folder or listed)
            return description_html(found)

        html = said(described)
        if found is None:
            return gr.skip(), gr.skip(), gr.skip(), html
        return found.name, found.card, _used(found.name), html

    with gr.Row():
        names = gr.Dropdown(
            list(desk.models.names), value=desk.models.names[0], label="Model", scale=2, min_width=200, elem_id="model"
        )
        button = gr.Button("Use this model", variant="primary", scale=1, min_width=120, elem_id="model-use")
    roots = ", ".join(map(str, desk.models.roots))
    folder = gr.Textbox(
        label="or a saved posterior's folder",
        info=f"below {roots}; Enter uses it" if roots else "",
        visible=bool(roots),
        elem_id="model-folder",
    )
    used = gr.Markdown(_used(desk.models.names[0]), elem_id="model-used")
    quality = gr.HTML(
        page(
            quiet(
                "“Use this model” has all tabs answer with it, also what they answered before, and measures it on "
                "drawings, which takes some seconds."
            )
        ),
        elem_id="quality",
    )
    card = gr.Markdown("", elem_id="card")
    noting("model", {"model-use": "list"}, {"model-folder": "folder"})
    asks("model", [button.click, folder.submit], use, [names, folder], [model, card, used, quality])
