"""The page: its tabs, its looks, and the server behind it, which sends nothing anywhere else."""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import gradio as gr
from starlette.middleware import Middleware

from bayesvlm.app import ask_tab, break_tab, label_tab, model_tab, search_tab
from bayesvlm.app.desk import Desk
from bayesvlm.app.gradios import check_gradio, refuse_fetching, use_folder
from bayesvlm.app.guard import Guard, is_local
from bayesvlm.app.style import CSS
from bayesvlm.app.uploads import LARGEST
from bayesvlm.app.visitors import keep_while_used
from bayesvlm.report.theme import PALETTE

TITLE = "bayesvlm"
AT_ONCE = 4
"""Requests that are worked on at the same time, whatever they ask for; the others wait."""
WAITING = 256
"""Requests that may wait, and visitors whose own is kept."""
CLEARED_SECONDS = 600
"""How long an uploaded file is kept, at most twice that; what was read from it is with the visitor."""
_FONTS = ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica Neue", "Arial", "sans-serif"]
_MONO = ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"]


def build(desk: Desk) -> gr.Blocks:
    """The page with all its tabs."""
    page = gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(CLEARED_SECONDS, CLEARED_SECONDS))
    with page:
        gr.Markdown("# CLIP that knows what it does not know", elem_id="title")
        model = gr.State(desk.models.names[0])
        with gr.Tabs():
            for tab in (ask_tab, break_tab, search_tab, label_tab, model_tab):
                with gr.Tab(tab.TITLE, id=tab.TITLE.lower().replace(" ", "-")):
                    tab.build(desk, model)
    for event in page.fns.values():  # without a name in common each kind of event would have a limit of its own
        event.concurrency_id, event.concurrency_limit = "page", AT_ONCE
    page.queue(api_open=False, max_size=WAITING)  # open, its functions could be called past the queue
    return page


def theme() -> gr.themes.Base:
    """Gradio's plainest theme in the colours of the reports, with the fonts of the machine: none is fetched."""
    made = gr.themes.Base(primary_hue="blue", neutral_hue="slate", font=_FONTS, font_mono=_MONO)
    colours = {}
    for name, shade in {
        "body_background_fill": "paper",
        "background_fill_primary": "paper",
        "background_fill_secondary": "surface",
        "block_background_fill": "paper",
        "body_text_color": "ink",
        "body_text_color_subdued": "muted",
        "block_label_text_color": "ink",
        "block_title_text_color": "ink",
        "block_info_text_color": "muted",
        "border_color_primary": "grid",
        "button_primary_background_fill": "accent",
        "button_primary_background_fill_hover": "bayes",
    }.items():
        colours[name], colours[f"{name}_dark"] = PALETTE[shade]
    colours["button_primary_text_color"], colours["button_primary_text_color_dark"] = "#ffffff", "#14171a"
    return made.set(**colours)


def launch(
    desk: Desk,
    host: str = "127.0.0.1",
    port: int | None = None,
    *,
    block: bool = True,
    browser: bool = False,
    said: Callable[[str], None] = lambda address: None,
    ending: Callable[[], None] = lambda: None,
) -> gr.Blocks:
    """Serve the page until it is interrupted; without `block` return at once, and `.close()` ends it.

    Args:
        host: the address to listen on; 127.0.0.1 can be reached from this machine alone.
        port: None: the first free one from 7860 on.
        block: wait until it is interrupted.
        browser: open one.
        said: told the address.
        ending: called when it is interrupted.
    """
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["GRADIO_RUN_HISTORY"] = "False"  # which asks the Hub for a bucket to keep runs in
    check_gradio()
    if "GRADIO_TEMP_DIR" not in os.environ:  # uploads lie there until they were read
        folder = os.environ["GRADIO_TEMP_DIR"] = tempfile.mkdtemp(prefix="bayesvlm-app-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    use_folder(Path(os.environ["GRADIO_TEMP_DIR"]))
    refuse_fetching()
    page = build(desk)
    page.launch(
        server_name=host,
        server_port=port,
        share=False,
        inbrowser=browser,
        quiet=True,
        prevent_thread_lock=True,
        max_file_size=LARGEST,
        footer_links=[],
        state_session_capacity=WAITING,
        enable_monitoring=False,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        theme=theme(),
        css=CSS,
        app_kwargs={"middleware": [Middleware(Guard, local=is_local(host))], "lifespan": clearing},
    )
    keep_while_used(page)
    said(str(page.local_url))
    if block:
        try:
            while page.is_running:
                time.sleep(0.1)
        except KeyboardInterrupt:
            ending()
        finally:  # what is open is told first, so that nothing waits for pages that somebody still looks at
            page.close(verbose=False)
    return page


def check_address(host: str, port: int) -> None:
    """That somebody could listen there, before a model is loaded for it.

    Raises:
        OSError: where nobody can.
    """
    family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as tried:
        if os.name == "posix":
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tried.bind(address)


@asynccontextmanager
async def clearing(app: Any) -> AsyncIterator[None]:
    """While the server runs, delete folders that Gradio made for a file each and left when it deleted the file."""
    task = asyncio.create_task(_clear())
    try:
        yield
    finally:
        task.cancel()


async def _clear() -> None:
    while True:
        await asyncio.sleep(CLEARED_SECONDS)
        await asyncio.to_thread(clear_empty, Path(os.environ["GRADIO_TEMP_DIR"]), CLEARED_SECONDS)


def clear_empty(folder: Path, age: float) -> None:
    """Delete the empty folders in a folder that nothing was put into or taken from for some seconds."""
    for each in folder.iterdir():
        with suppress(OSError):  # it is no folder, not empty or gone
            if time.time() - each.lstat().st_mtime > age:
                each.rmdir()
