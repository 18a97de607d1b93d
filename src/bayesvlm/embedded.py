"""Where the models that ship inside the package are: the one thing about the world that loading must know."""

from __future__ import annotations

from pathlib import Path

WORLD = Path(__file__).parent / "world"


def embedded_names() -> list[str]:
    """The ids `from_pretrained` knows without a hub."""
    return sorted(path.name for path in (WORLD / "models").iterdir() if (path / "config.json").is_file())


def embedded_model(name: str | Path) -> Path | None:
    """The folder of an embedded model; None for any other name."""
    return WORLD / "models" / name if str(name) in embedded_names() else None


def embedded_posterior(name: str | Path) -> Path | None:
    """The folder of the posterior that ships with an embedded model; None for any other name."""
    folder = WORLD / "posteriors" / str(name)
    return folder if str(name) in embedded_names() and folder.is_dir() else None
