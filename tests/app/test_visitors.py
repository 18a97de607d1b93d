"""What is a visitor's own stays theirs while they are there, and goes when they are gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("gradio", reason="the page needs Gradio: pip install 'bayesvlm[app]'")
from gradio_client import Client, handle_file

from bayesvlm.app import visitors

pytestmark = pytest.mark.xdist_group("app")


@pytest.fixture
def page(desk: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A page of its own, where an hour is a second."""
    from bayesvlm.app.page import launch

    monkeypatch.setattr(visitors, "CLOSED_SECONDS", 1)
    page = launch(desk, block=False)
    yield page
    page.close(verbose=False)


def _wait(until: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not until():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_a_picture_is_kept_while_the_page_is_open_and_then_forgotten(page: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.png"
    Image.fromarray(np.full((40, 40, 3), (0, 90, 200), dtype=np.uint8)).save(file)
    client = Client(page.local_url, verbose=False, analytics_enabled=False)
    assert "mine.png" in client.predict(handle_file(file), "cat, dog", api_name="/upload")[-1]
    time.sleep(4)
    assert "mine.png" in str(client.predict("cat, dog", api_name="/ask"))
    sessions = page.app.state_holder.session_data
    assert list(sessions) == [client.session_hash]
    sessions[client.session_hash].is_closed = True  # as after a connection that was lost
    for _ in range(4):
        time.sleep(0.5)
        assert "mine.png" in str(client.predict("cat, dog", api_name="/ask"))
    _wait(lambda: not sessions)


def test_a_page_that_is_closed_is_noticed(page: Any) -> None:
    import httpx

    client = Client(page.local_url, verbose=False, analytics_enabled=False)
    client.predict("cat, dog", api_name="/ask")
    client.close()
    visitor = page.app.state_holder.session_data[client.session_hash]
    with httpx.stream("GET", f"{page.local_url}gradio_api/heartbeat/{client.session_hash}") as heartbeat:
        next(heartbeat.iter_text())
    _wait(lambda: visitor.is_closed)
