"""A visitor of the page, in a browser of their own; nothing is asked of another address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

LONG = 60_000  # milliseconds: machines that do other things at the same time


@pytest.fixture
def visit(browser: Any, address: str) -> Iterator[Callable[..., Any]]:
    """Opens the page as a visitor of their own, with `clock` at a time that a test can put forward."""
    contexts, asked = [], []

    def opened(*, clock: bool = False, **options: Any) -> Any:
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.set_default_timeout(LONG)
        # Playwright intercepts choosers only some time after the first listener came, and Chromium cancels the others.
        page.on("filechooser", lambda chooser: None)
        page.on("request", lambda request: asked.append(request.url))
        if clock:
            page.clock.install()
        page.goto(address)
        page.locator("#answer .rows").wait_for()
        page.locator("#ask-upload button").wait_for()
        page.locator("#ask-upload-refused .bv").wait_for(state="attached")  # what refuses large files listens by then
        return page

    yield opened
    for context in contexts:
        context.close()
    outside = [url for url in asked if not url.startswith((address, "data:", "blob:"))]
    assert not outside
