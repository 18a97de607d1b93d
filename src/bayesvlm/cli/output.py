"""Printing: results to standard output (text or json), remarks to the error stream."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def emit(result: Mapping[str, Any], text: str | Table | Sequence[str | Table], as_json: bool) -> None:
    """Print `result` as json, or the text and tables made from it."""
    if as_json:
        print(json.dumps(finite(result), indent=2))
        return
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=160)  # in a file or a pipe nothing needs to be wrapped for a screen
    for part in [text] if isinstance(text, (str, Table)) else text:
        console.print(part, soft_wrap=isinstance(part, str), markup=False)


def finite(value: Any) -> Any:
    """As json has it, which knows no Infinity and no NaN: null in their place."""
    if isinstance(value, Mapping):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def remark(text: str) -> None:
    """Say something beside the result, on the error stream."""
    Console(stderr=True, highlight=False).print(text, soft_wrap=True, markup=False)


@contextmanager
def logged(name: str) -> Iterator[None]:
    """What a module of the package logs in this block is said as a remark."""
    logger, handler = logging.getLogger(name), logging.Handler()
    handler.emit = lambda record: remark(record.getMessage())  # type: ignore[method-assign]
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> Table:
    """A table whose first columns (`texts` of them) are text, which folds where it must, and the others numbers."""
    result = Table(
        title=Text(_printable(title)),
        title_justify="left",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for index, column in enumerate(columns):
        if index < texts:
            result.add_column(column, overflow="fold", min_width=8)
        else:
            result.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        result.add_row(*(Text(_printable(cell)) for cell in row))
    return result


def _printable(text: str) -> str:
    """Without what would command a terminal: names of files may hold anything."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "\N{REPLACEMENT CHARACTER}" for letter in text)
