"""The tab Label."""

from __future__ import annotations

from typing import Any

import gradio as gr

from bayesvlm.app.desk import Desk, in_sentences
from bayesvlm.app.labelling import AT_ONCE, STRATEGIES, Labelling, labelling_html
from bayesvlm.app.markup import page, quiet

TITLE = "Label"


def build(desk: Desk, model: gr.State) -> None:
    """The components of the tab, and what they do."""

    def go_on(name: str, so_far: tuple[str, Labelling] | None, strategy: str) -> tuple[Any, ...]:
        labeller = desk.labeller(name)
        if so_far is None or so_far[0] != name or so_far[1].strategy != strategy:
            so_far = name, labeller.begin(strategy)
        now = labeller.go_on(so_far[1])
        return (name, now), labelling_html(now, labeller)

    def again(name: str, strategy: str) -> tuple[Any, ...]:
        labeller = desk.labeller(name)
        return None, labelling_html(labeller.begin(strategy), labeller)

    so_far = gr.State(None)
    gr.HTML(
        page(
            "<p>The model should tell kinds of food and drink apart in a style it was never trained on (OpenMoji's "
            "outlines). Which drawings of other styles should somebody label for that?</p>"
        )
    )
    with gr.Row():
        strategy = gr.Dropdown(
            list(STRATEGIES),
            value=next(iter(STRATEGIES)),
            label="Choose by",
            scale=3,
            min_width=240,
            elem_id="strategy",
        )
        button = gr.Button(f"Label {AT_ONCE} more", variant="primary", scale=1, min_width=140, elem_id="label")
        restart = gr.Button("Start again", scale=1, min_width=120, elem_id="label-again")
    shown = gr.HTML(page(quiet(f"Nothing labelled yet: choose the first {AT_ONCE}.")), elem_id="labelled")
    button.click(in_sentences(go_on, 1), [model, so_far, strategy], [so_far, shown], api_visibility="private")
    restart.click(in_sentences(again, 1), [model, strategy], [so_far, shown], api_visibility="private")
