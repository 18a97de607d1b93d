"""The door to the embedded world, which is a distribution of its own: `bayesvlm-world`."""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from bayesvlm.core.errors import BayesVLMError

PACKAGE = "bayesvlm_world"
MODELS = ("emoji-clip", "emoji-clip-colour", "emoji-prolip", "emoji-siglip")
"""The ids `from_pretrained` knows without a hub, where the world is installed."""
PROMPTS = ("{c}",)
"""What they were trained with: names as they are."""
SPLITS = (
    "train",
    "validation",
    "new-drawing",
    "set-aside",
    "emojione-colour",
    "emojione-black",
    "openmoji-colour",
    "openmoji-black",
    "fluent-high-contrast",
    "unseen-concepts",
    "flags",
)
"""Its splits, so that their names are known where the world is not installed."""
_NEAR = 0.8  # how alike two names are, by difflib, where one is taken for a misspelling of the other


@cache
def world_folder() -> Path | None:
    """Where the embedded models, posteriors and drawings are; None where the world is not installed."""
    found = find_spec(PACKAGE)
    return None if found is None or found.origin is None else Path(found.origin).parent


def world(what: str) -> ModuleType:
    """The package itself.

    Args:
        what: that is asked for, to begin the sentence with where the world is not installed.
    """
    if world_folder() is None:
        raise BayesVLMError(
            f"{what} comes with the embedded world, which is not installed: `pip install 'bayesvlm[world]'`."
        )
    return import_module(PACKAGE)


def embedded_model(name: str | Path) -> Path | None:
    """The folder of an embedded model; None for any other name, and where a local folder of that name holds a model."""
    if str(name) not in MODELS or _is_model(Path(name)):
        return None
    world(str(name))
    return _inside("models", name)


def embedded_posterior(name: str | Path) -> Path | None:
    """The folder of the posterior that comes with an embedded model; None for any other name."""
    if embedded_model(name) is None:
        return None
    folder = _inside("posteriors", name)
    return folder if folder.is_dir() else None


@contextmanager
def looking_up(name: str | Path) -> Iterator[None]:
    """Around the look for a name on the Hub: it refuses an embedded model that is misspelt, which costs no network.

    Another name without an owner is more likely a mistake than an id: the Hub's client does not report its retries.
    """
    from huggingface_hub.utils.logging import get_verbosity, set_verbosity

    if "/" in str(name):
        yield
        return
    if near := difflib.get_close_matches(str(name).lower(), MODELS, n=1, cutoff=_NEAR):
        raise BayesVLMError(f"There is no model {str(name)!r}; did you mean {near[0]!r}?")
    verbosity = get_verbosity()
    set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        set_verbosity(verbosity)


def _inside(*parts: str | Path) -> Path:
    folder = world_folder()
    assert folder is not None
    return folder.joinpath(*parts)


def _is_model(folder: Path) -> bool:
    try:
        return "model_type" in json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False
