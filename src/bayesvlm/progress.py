"""Progress on long work: a bar on a terminal, silence elsewhere; how long it took or will take, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text


class _Speed(ProgressColumn):
    """Steps per second, once that is known."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.3g} {self.unit}/s" if self.unit and task.speed else "")


class _Bar(Progress):
    """A bar with a line below it."""

    note: Callable[[], str] | None = None

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        if self.note is not None and (said := self.note()):
            yield Text(said, style="dim", no_wrap=True, overflow="ellipsis")


@dataclass(frozen=True)
class Advance:
    """Advances a bar by so many steps; whether it is shown at all."""

    by: Callable[[int], None]
    shown: bool

    def __call__(self, steps: int) -> None:
        self.by(steps)


@contextmanager
def progress_bar(
    description: str,
    *,
    total: int | None,
    done: int = 0,
    unit: str = "",
    show: bool | None = None,
    note: Callable[[], str] | None = None,
) -> Iterator[Advance]:
    """A function that advances the bar by so many steps.

    Args:
        description: what is being done.
        total: number of steps, None when it is not known.
        done: steps that an earlier run did; they do not count for the speed.
        unit: what a step is.
        show: None shows the bar when the error stream is a terminal.
        note: what to say below it, asked several times per second.
    """
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        _Speed(unit),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    enabled = console.is_terminal if show is None else show
    with _Bar(*columns, console=console, disable=not enabled, transient=True) as bar:
        bar.note = note
        task = bar.add_task(description, total=total, completed=done)
        yield Advance(lambda steps: bar.advance(task, steps), enabled)


def duration(seconds: float) -> str:
    """Seconds, minutes, hours or days, whichever a person would say.

    >>> [duration(seconds) for seconds in (0.42, 89, 1000, 20_000, 48_789_720)]
    ['0.4 s', '89 s', '17 min', '5.6 h', '565 days']
    """
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:,.0f} days"
