"""The tab Label."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from bayesvlm.app.asking import Asked, asks, noting, said
from bayesvlm.app.desk import Desk
from bayesvlm.app.labelling import AT_ONCE, STRATEGIES, Labelling, labelling_html
from bayesvlm.app.markup import page, quiet

TITLE = "Label"
_NOTHING = f"Nothing labelled yet: choose the first {AT_ONCE}."


@dataclass(frozen=True)
class _SoFar:
    """What one visitor did here: with which model, up to which press of a button, and what was labelled."""

    model: str
    noted: int | None
    labelling: Labelling | None = None


def build(desk: Desk, model: gr.State) -> None:
    """The components of the tab, and what they do."""

    def label(asked: Asked, name: str, so_far: _SoFar | None, strategy: str) -> tuple[Any, ...]:
        if asked.by is None or (so_far is not None and so_far.noted == asked.noted):  # another model, and no press
            if so_far is None or so_far.model == name:
                return gr.skip(), gr.skip(), gr.skip()
            nothing = f"The model was changed, which begins anew. {_NOTHING}"
            return _SoFar(name, asked.noted), gr.Button(interactive=True), page(quiet(nothing))
        now: Labelling | None = None

        def chosen() -> str:
            nonlocal now
            labeller = desk.labeller(name)
            before = so_far.labelling if so_far is not None and so_far.model == name else None
            if asked.by == "again" or before is None or before.strategy != strategy:
                before = labeller.begin(strategy)
            now = before if asked.by == "again" or before.over else labeller.go_on(before)
            return labelling_html(now, labeller)

        html = said(chosen)
        return _SoFar(name, asked.noted, now), gr.Button(interactive=now is None or not now.over), html

    so_far = gr.State(None)
    gr.HTML(
        page(
            "<p>The model should tell kinds of food and drink apart in a style it was never trained on (OpenMoji's "
            "outlines). Some 300 drawings are there to choose from: outlines other than those it is measured on, and "
            "drawings of three other styles. Which of them should somebody label for that?</p>"
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
    shown = gr.HTML(page(quiet(_NOTHING)), elem_id="labelled")
    noting("label", {"label": "more", "label-again": "again"}, {})
    asks(
        "label",
        [button.click, restart.click, model.change],
        label,
        [model, so_far, strategy],
        [so_far, button, shown],
    )
