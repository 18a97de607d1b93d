"""Programs run where neither torch nor this package can be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BLOCKED = ("torch", "transformers", "bayesvlm", "bayesvlm_world")

_GUARD = """
import sys

class Guard:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} may not be imported here")

sys.meta_path.insert(0, Guard())
for name in {blocked!r}:
    assert name not in sys.modules
    sys.modules[name] = None
"""


def run_without(program: str, folder: Path, blocked: tuple[str, ...] = BLOCKED) -> str:
    """What a program prints in `folder`; it must end well, and none of the blocked packages may be imported in it."""
    source = _GUARD.format(blocked=blocked) + program
    ran = subprocess.run([sys.executable, "-c", source], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
