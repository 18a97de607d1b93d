"""The README's picture of the page: all its tabs, and what Ask says of a drawing of what is none of the names.

Needs chromium (its path in CHROMIUM, else /usr/bin/chromium) and Playwright.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

from bayesvlm.app.desk import Desk
from bayesvlm.app.models import Models
from bayesvlm.app.page import launch

HERE = Path(__file__).parent
WIDTH, HEIGHT = 1160, 960
COLOURS = 64


def main() -> None:
    page = launch(Desk(Models(["emoji-clip"], device="cpu")), block=False)
    try:
        taken = _screenshot(page.local_url)
    finally:
        page.close()
    image = Image.open(io.BytesIO(taken)).convert("RGB")
    image.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE).save(
        HERE / "app-ask.png", optimize=True
    )


def _screenshot(address: str) -> bytes:
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        page.goto(address)
        page.locator("#answer .rows").wait_for()
        page.get_by_role("button", name="sailboat").click()
        page.locator("#answer .mark.doubt").wait_for()
        page.mouse.move(0, 0)
        page.wait_for_timeout(1000)  # letters and colours settle
        taken: bytes = page.screenshot(clip={"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT})
        browser.close()
    return taken


if __name__ == "__main__":
    main()
