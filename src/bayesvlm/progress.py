"""Progress on long work: a bar on a terminal, silence elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def progress_bar(
    description: str, *, total: int | None, unit: str = "", show: bool | None = None
) -> Iterator[Callable[[int], None]]:
    """A function that advances the bar by so many steps.

    Args:
        description: what is being done.
        total: number of steps, None when it is not known.
        unit: what a step is.
        show: None shows the bar when the error stream is a terminal.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    enabled = console.is_terminal if show is None else show
    with Progress(*columns, console=console, disable=not enabled, transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda steps: bar.advance(task, steps)
