"""The tab Search."""

from __future__ import annotations

from typing import Any

import gradio as gr

from bayesvlm.app.asking import Asked, asks, dial, noting, said
from bayesvlm.app.desk import Desk
from bayesvlm.app.found import RANKS, hits_html
from bayesvlm.app.markup import page, quiet
from bayesvlm.app.picking import Kept, drop_box, taken
from bayesvlm.app.uploads import Picture, checked_text

TITLE = "Search"
MOST = 50
FIRST = "grinning cat"
_HINT = "Type what to look for, such as: grinning cat, rainbow, strawberry; or what is not there: quantum physics."


def build(desk: Desk, model: gr.State) -> None:
    """The components of the tab, and what they do."""

    def found(name: str, query: str | Picture, k: float, rank: str) -> str:
        def hits() -> str:
            sought = checked_text(query, "the search") if isinstance(query, str) else query
            collection = desk.collection(name)
            return hits_html(collection.search(sought, min(int(k), MOST), RANKS[rank]), collection)

        return said(hits)

    def search(asked: Asked, name: str, kept: Kept | None, text: str, k: float, rank: str) -> tuple[Any, ...]:
        kept, refused = taken(asked, kept, text if asked.by == "words" else None)
        if kept is None:  # nothing was looked for yet
            return gr.skip(), refused, gr.skip()
        return kept, refused, found(name, kept.shown, k, rank)

    query = gr.State(None)
    with gr.Row():
        text = gr.Textbox(FIRST, label="Look for", scale=4, min_width=240, elem_id="search-text")
        button = gr.Button("Search", variant="primary", scale=1, min_width=120, elem_id="search")
    with gr.Row():
        k = dial(1, MOST, 8, step=1, label="How many", scale=1, min_width=200, buttons=[], elem_id="search-k")
        rank = gr.Dropdown(
            list(RANKS), value=next(iter(RANKS)), label="In order of", scale=1, min_width=200, elem_id="search-rank"
        )
        with gr.Column(scale=1, min_width=200):
            given = drop_box("search", "or what is like a picture")
    shown = gr.HTML(page(quiet(_HINT)), elem_id="found")
    noting("search", {"search": "words"}, {"search-text": "words"})
    asks(
        "search",
        [button.click, text.submit, given.came.select, k.change, rank.input, model.change],
        search,
        [model, query, text, k, rank],
        [query, given.refused, shown],
    )
    program = gr.Button(visible=False)
    program.click(found, [model, text, k, rank], [shown], api_name="search")
