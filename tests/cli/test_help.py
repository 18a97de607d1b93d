"""Help is for people in a hurry: it loads nothing that takes seconds."""

from __future__ import annotations

import subprocess
import sys

EVERY_HELP = """
import sys
from contextlib import redirect_stdout
from io import StringIO

from typer.main import get_command

from bayesvlm.cli import app, main

asked = [[], *([name] for name in get_command(app).commands)]
for words in asked:
    sys.argv = ["bayesvlm", *words, "--help"]
    with redirect_stdout(StringIO()) as shown:
        try:
            main()
        except SystemExit as stop:
            assert not stop.code, words
    assert "Usage" in shown.getvalue(), words
    loaded = {"torch", "transformers", "scipy", "matplotlib", "numpy"} & set(sys.modules)
    assert not loaded, f"{' '.join(sys.argv)} loads {', '.join(sorted(loaded))}"
print(len(asked))
"""


def test_help_of_every_command_loads_nothing_heavy() -> None:
    ran = subprocess.run([sys.executable, "-c", EVERY_HELP], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) >= 12
