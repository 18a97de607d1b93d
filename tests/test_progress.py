"""What is shown while something takes long."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from bayesvlm import progress
from bayesvlm.progress import progress_bar


def test_a_line_below_the_bar_and_steps_of_an_earlier_run(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = StringIO()
    monkeypatch.setattr(progress, "Console", lambda **_: Console(file=screen, force_terminal=True, width=60))
    with progress_bar("reading", total=10, done=4, unit="pairs", show=True, note=lambda: "a note " * 20) as advance:
        assert advance.shown
        advance(2)
    assert "6/10" in screen.getvalue()
    notes = [line for line in screen.getvalue().splitlines() if "a note" in line]
    assert notes
    assert all(len(line) < 100 and "…" in line for line in notes), "it is cut at the end of the line, not wrapped"


def test_nothing_is_shown_where_nobody_looks() -> None:
    with progress_bar("reading", total=10, show=False) as advance:
        assert not advance.shown
