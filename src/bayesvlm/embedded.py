"""Where the models that ship inside the package are: the one thing about the world that loading must know."""

from __future__ import annotations

import json
from pathlib import Path

WORLD = Path(__file__).parent / "world"


def embedded_names() -> list[str]:
    """The ids `from_pretrained` knows without a hub."""
    return sorted(path.parent.name for path in (WORLD / "models").glob("*/config.json"))


def embedded_model(name: str | Path) -> Path | None:
    """The folder of an embedded model; None for any other name, and where a local folder of that name holds a model."""
    return WORLD / "models" / name if str(name) in embedded_names() and not _is_model(Path(name)) else None


def embedded_posterior(name: str | Path) -> Path | None:
    """The folder of the posterior that ships with an embedded model; None for any other name."""
    folder = WORLD / "posteriors" / name
    return folder if embedded_model(name) is not None and folder.is_dir() else None


def _is_model(folder: Path) -> bool:
    try:
        return "model_type" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False
