"""What somebody does at the page, what it says then, and the files they bring along."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

UPLOAD = re.compile(r"/upload\b(?!_)")
LONG = 60  # seconds: machines that do other things at the same time
REACHES = """variance => {
    const shown = document.querySelector('#broken [data-variance]');
    return shown && Math.abs(Number(shown.dataset.variance) / variance - 1) < 1e-3;
}"""


def tab(page: Any, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()


def give(page: Any, box: str, file: Path) -> None:
    """Drop a file into a box."""
    page.locator(f"#{box}-upload input[type=file]").set_input_files(file)


def type_into(page: Any, box: str, text: str) -> None:
    """Have a box hold a text; the next key goes there."""
    page.locator(f"#{box} textarea, #{box} input").first.fill(text)


def slide(page: Any, name: str, *keys: str) -> None:
    """Move a slider of the tab Break it by keys."""
    page.locator(f"#break-{name} input[type=range]").focus()
    for key in keys:
        page.keyboard.press(key)


def settled(page: Any) -> None:
    """Wait until nothing is worked on: Gradio ignores whoever asks again before, though the answer may be there."""
    page.wait_for_function("() => !document.querySelector('[data-testid=status-tracker]:not(.hide)')")


def seen(page: Any, where: str, holds: str | re.Pattern[str] = "") -> Any:
    """A part of the page, once it is there, holds something and is finished."""
    part = page.locator(where).filter(has_text=holds)
    part.wait_for()
    settled(page)
    return part


def text_of(page: Any, where: str, holds: str | re.Pattern[str]) -> str:
    """What a part of the page says, once it holds something."""
    return plain(seen(page, where, holds).inner_text())


def reaches(page: Any, variance: Any) -> None:
    """Wait until the tab Break it shows a variance."""
    page.wait_for_function(REACHES, arg=float(variance))


def plain(text: str) -> str:
    return " ".join(text.split())


def blue(folder: Path, name: str = "mine.png") -> Path:
    """A picture of nothing."""
    Image.fromarray(np.full((40, 40, 3), (0, 90, 200), dtype=np.uint8)).save(folder / name)
    return folder / name


def large(folder: Path, megabytes: int) -> Path:
    """A file of that size."""
    with (folder / "large.png").open("wb") as file:
        file.truncate(megabytes * 2**20)
    return folder / "large.png"


def no_pictures(folder: Path) -> tuple[Path, Path]:
    """Files that are called like pictures: noise, and a page with a script."""
    noise, disguised = folder / "noise.jpg", folder / "page.png"
    noise.write_bytes(np.random.default_rng(0).bytes(3000))
    disguised.write_text("<html><script>document.title = 'taken over'</script></html>")
    return noise, disguised


class Gate:
    """In the place of a function: whoever calls it waits until it is opened."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self._reached, self._opened = function, threading.Event(), threading.Event()

    def __call__(self, *given: Any) -> Any:
        self._reached.set()
        assert self._opened.wait(LONG)
        return self._function(*given)

    def reached(self) -> None:
        assert self._reached.wait(LONG)

    def open(self) -> None:
        self._opened.set()


@contextmanager
def uploading(page: Any) -> Iterator[None]:
    """What is dropped in the block arrives after it, as where a connection is slow."""
    held: list[Any] = []
    page.route(UPLOAD, lambda route: held.append(route))
    yield
    held[0].continue_()
    page.unroute(UPLOAD)


def emptied(page: Any, box: str) -> None:
    """Wait until a box has given its file away."""
    page.locator(f"#{box}-upload input[type=file]").wait_for(state="attached")
