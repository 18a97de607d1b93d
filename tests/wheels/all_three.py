"""Run where all three distributions are installed: the world's models answer, the paper's command is there."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from commands import bayesvlm, check


def main() -> None:
    """One drawing through an embedded model, and the list of what can be reproduced."""
    from bayesvlm import world

    split = world.load("openmoji-black")
    classes = split.classes[:4]
    with tempfile.TemporaryDirectory() as folder:
        drawing = Path(folder) / "drawing"
        drawing.write_bytes(split.images[0])
        ran = bayesvlm("classify", "emoji-clip", drawing, "--classes", ",".join(classes))
    answered = any(name in ran.stdout for name in classes)
    check(ran.returncode == 0 and answered, "bayesvlm classify emoji-clip, one drawing", ran)
    ran = bayesvlm("reproduce", "--list")
    check(ran.returncode == 0 and "table" in ran.stdout.lower(), "bayesvlm reproduce --list", ran)
    ran = bayesvlm("--help")
    check(ran.returncode == 0 and "reproduce" in ran.stdout, "bayesvlm --help lists reproduce", ran)


if __name__ == "__main__":
    main()
