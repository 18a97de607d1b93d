"""The tab Search."""

from __future__ import annotations

from typing import Any

import gradio as gr

from bayesvlm.app.desk import Desk, in_sentences
from bayesvlm.app.found import RANKS, hits_html
from bayesvlm.app.markup import page, quiet
from bayesvlm.app.picking import drop_box
from bayesvlm.app.uploads import checked_text, uploaded

TITLE = "Search"
MOST = 50


def build(desk: Desk, model: gr.State) -> None:
    """The components of the tab, and what they do."""

    def search(name: str, text: str, k: float, rank: str) -> tuple[Any, ...]:
        query, collection = checked_text(text, "the search"), desk.collection(name)
        return (hits_html(collection.search(query, min(int(k), MOST), RANKS[rank]), collection),)

    def like(name: str, path: str | None, k: float, rank: str) -> tuple[Any, ...]:
        if path is None:
            return gr.skip(), gr.skip()
        shown, collection = uploaded(path), desk.collection(name)
        return None, hits_html(collection.search(shown, min(int(k), MOST), RANKS[rank]), collection)

    with gr.Row():
        text = gr.Textbox("grinning cat", label="Look for", scale=4, min_width=240, elem_id="search-text")
        button = gr.Button("Search", variant="primary", scale=1, min_width=120, elem_id="search")
    with gr.Row():
        k = gr.Slider(1, MOST, 8, step=1, label="How many", scale=1, min_width=200, buttons=[], elem_id="search-k")
        rank = gr.Dropdown(list(RANKS), value=next(iter(RANKS)), label="In order of", scale=1, min_width=200)
        with gr.Column(scale=1, min_width=200):
            file = drop_box("search-upload", "or what is like a picture")
    shown = gr.HTML(page(quiet("Type what to look for.")), elem_id="found")
    asked = [model, text, k, rank]
    button.click(in_sentences(search, 0), asked, [shown], api_name="search")
    text.submit(in_sentences(search, 0), asked, [shown], api_visibility="private")
    file.upload(in_sentences(like, 1, cleared=0), [model, file, k, rank], [file, shown], api_visibility="private")
