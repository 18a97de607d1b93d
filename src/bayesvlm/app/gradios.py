"""Parts of Gradio that are its own business and are replaced here all the same; another version may be without them."""

from __future__ import annotations

import atexit
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bayesvlm.core.errors import BayesVLMError

_PARTS = (
    ("safehttpx", "get"),
    ("safehttpx", "async_validate_url"),
    ("gradio.routes", "DEFAULT_TEMP_DIR"),
    ("gradio.utils", "get_upload_folder"),
    ("gradio.state_holder", "StateHolder"),
    ("gradio.state_holder", "StateHolder.delete_all_expired_state"),
    ("gradio.state_holder", "StateHolder.set_blocks"),
)


def check_gradio() -> None:
    """That what is replaced is there: else it would be replaced in vain, and the page fetch what it says it does not.

    Raises:
        BayesVLMError: where it is not.
    """
    for module, name in _PARTS:
        found: Any = import_module(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is None:
            raise BayesVLMError(
                f"Gradio {version('gradio')} has no {module}.{name}, which the page relies on; install the version it "
                "was made for: pip install 'bayesvlm[app]' 'gradio>=6.20,<7'."
            )


def refuse_fetching() -> None:
    """Have Gradio's own fetcher refuse, so that nothing is fetched by a way that is not known here.

    This holds for all that Gradio serves in this process.
    """
    import safehttpx

    async def refused(*given: Any, **more: Any) -> Any:
        raise ValueError("This server fetches nothing from elsewhere.")

    safehttpx.get = safehttpx.async_validate_url = refused


def use_folder(folder: Path) -> None:
    """Have Gradio make folders below this one, though it chose when it was imported, and leave none of them empty."""
    routes: Any = import_module("gradio.routes")
    routes.DEFAULT_TEMP_DIR = str(folder)
    atexit.register(_leave_none, folder / "vibe_edit_history")


def _leave_none(folder: Path) -> None:
    with suppress(OSError):  # somebody keeps something there
        folder.rmdir()
