"""One command at a time in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.locks import locked

LOCK = ".bayesvlm-lock"


@contextmanager
def only_command_in(folder: Path) -> Iterator[None]:
    """Refuse while another process is in this block with the same folder, which is made; left empty it goes again."""

    def refuse() -> None:
        raise BayesVLMError(
            f"Another command is writing to {folder} at this moment; wait until it is done, or name another folder."
        )

    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with locked(folder / LOCK, busy=refuse):
            yield
    finally:
        for path in missing:
            with suppress(OSError):  # not empty
                path.rmdir()
