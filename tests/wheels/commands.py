"""Commands of the environment this runs in, as a user calls them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def bayesvlm(*words: object) -> subprocess.CompletedProcess[str]:
    """`bayesvlm ...`, with what it printed; no hub is asked."""
    command = [str(Path(sys.executable).parent / "bayesvlm"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())


def python(code: str) -> subprocess.CompletedProcess[str]:
    """A few lines of Python in a process of their own."""
    return subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=False, env=_environment()
    )


def check(right: bool, what: str, ran: subprocess.CompletedProcess[str]) -> None:
    """Print what holds; what does not ends the run with all that the command printed."""
    if not right:
        sys.exit(f"  WRONG {what}\n  exit {ran.returncode}\n{ran.stdout}\n{ran.stderr}")
    print(f"  {what}", flush=True)


def _environment() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
