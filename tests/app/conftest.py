"""One page for all tests of the app, and a browser to look at it with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

WHY_NOT = "the page needs Gradio: pip install 'bayesvlm[app]'"
CHROMIUM = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a posterior of its own in it, which may be named on the page."""
    from bayesvlm import BayesVLM

    root = tmp_path_factory.mktemp("posteriors")
    BayesVLM.from_pretrained("emoji-clip", device="cpu").replace(tau=2.0).save_pretrained(root / "wide")
    (root / "empty").mkdir()
    return root


@pytest.fixture(scope="session")
def desk(saved: Path) -> Iterator[Any]:
    """Searches in the drawings of the smallest split, which take seconds to encode, and measures models on a few."""
    pytest.importorskip("lancedb", reason="the tab Search needs LanceDB: pip install 'bayesvlm[retrieval]'")
    from bayesvlm.app import described, found
    from bayesvlm.app.desk import Desk
    from bayesvlm.app.drawings import drawings
    from bayesvlm.app.models import Models

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(found, "SPLIT", "validation")
        patch.setattr(described, "drawings", lambda split: drawings(split)[::8])
        yield Desk(Models(["emoji-clip", "emoji-clip-colour"], [saved], "cpu"))


@pytest.fixture(scope="session")
def address(desk: Any) -> Iterator[str]:
    pytest.importorskip("gradio", reason=WHY_NOT)
    from bayesvlm.app.page import launch

    page = launch(desk, block=False)
    yield page.local_url.rstrip("/")
    page.close(verbose=False)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if not CHROMIUM.exists():
        pytest.skip(f"there is no browser at {CHROMIUM}; name one with CHROMIUM, or apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="the browser is driven by Playwright")
    with playwright.sync_playwright() as started:
        launched = started.chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        yield launched
        launched.close()
