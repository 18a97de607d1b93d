"""`bayesvlm ...` in this process, through the entry point of the console script."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any, NamedTuple

import pytest

from bayesvlm.cli import main


class Result(NamedTuple):
    """How a command ended, and what it wrote to both streams."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """What a command that went well wrote with --json."""
        assert self.code == 0, self.err
        found: dict[str, Any] = json.loads(self.out)
        return found


Run = Callable[..., Result]


def run_command(*arguments: object) -> Result:
    """`bayesvlm ARGUMENTS` on a terminal 200 columns wide."""
    out, err = StringIO(), StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["bayesvlm", *map(str, arguments)])
        patch.setenv("COLUMNS", "200")
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Result(code, out.getvalue(), err.getvalue())


@pytest.fixture
def run() -> Run:
    """Run `bayesvlm ...`; a module of tests may have its own, for one command."""
    return run_command


@pytest.fixture
def refuse(run: Run) -> Run:
    """Run a command that must end in one sentence on the error stream: no traceback, nothing on standard output."""

    def call(*arguments: object) -> Result:
        result = run(*arguments)
        assert result.code == 2, f"exit {result.code}: {result.out}{result.err}"
        assert result.out == ""
        assert "Traceback" not in result.err
        lines = [line for line in result.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, result.err
        return result

    return call
