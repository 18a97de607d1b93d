"""What is loaded and when: help loads nothing that takes seconds, and threads wait quietly before torch has any."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

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


WHEN_TORCH_COMES = """
import os, sys

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            sys.exit(f"waiting is {os.environ.get('OMP_WAIT_POLICY')}")

sys.meta_path.insert(0, Watch())
sys.argv = ["bayesvlm", "info", "nowhere"]
from bayesvlm.cli import main
main()
"""


@pytest.mark.parametrize(("set_by_the_user", "found"), [(None, "passive"), ("ACTIVE", "ACTIVE")])
def test_threads_wait_without_spinning_unless_the_user_says_otherwise(set_by_the_user: str | None, found: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if set_by_the_user:
        environment["OMP_WAIT_POLICY"] = set_by_the_user
    command = [sys.executable, "-c", WHEN_TORCH_COMES]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.stderr.strip().splitlines()[-1] == f"waiting is {found}"
