"""Keeping other libraries from talking over the caller."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any


@contextmanager
def quiet() -> Iterator[None]:
    """No progress bars or warnings of `transformers` in this block; its settings are put back afterwards."""
    logging: Any = import_module("transformers.utils.logging")  # here, because it takes seconds
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def brief(error: Exception) -> str:
    """The first line of another library's complaint, to quote in a sentence of ours; without addresses in memory."""
    line = re.sub(r" <[\w.]+ object at 0x[0-9a-f]+>", "", str(error).strip().split("\n")[0])
    return line.rstrip(".") or type(error).__name__
