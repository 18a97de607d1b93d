"""Taking time: ways that do the same take turns, and memory at its peak."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

Run = Callable[[], object]


def take_turns(runs: Mapping[str, Run], device: str, repeats: int, warm_ups: int = 1) -> dict[str, list[float]]:
    """Seconds by the clock of every way, turn by turn.

    In a turn each has one go, so that a busy moment of the machine meets them all; who goes first changes from turn to
    turn, so that none always comes after something slower.

    Args:
        runs: the ways by name.
        device: waited for before and after every go.
        repeats: turns that count.
        warm_ups: turns before them that do not.
    """
    taken: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(warm_ups + repeats):
        names = list(runs) if turn % 2 else list(runs)[::-1]
        for name in names:
            seconds = timed(runs[name], device)
            if turn >= warm_ups:
                taken[name].append(seconds)
    return taken


def timed(run: Run, device: str) -> float:
    """Seconds by the clock, until the device has done all of it."""
    wait(device)
    started = time.perf_counter()
    run()
    wait(device)
    return time.perf_counter() - started


def median_seconds(runs: Mapping[str, Run], device: str, repeats: int) -> dict[str, float]:
    """The median turn of every way."""
    return {name: statistics.median(taken) for name, taken in take_turns(runs, device, repeats).items()}


def wait(device: str) -> None:
    """Until a GPU has done what it was given; elsewhere nothing is left to wait for."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def peak_extra_mib(run: Run, device: str) -> float:
    """Memory a call takes beyond what was there before it, at its peak.

    On a GPU the allocator's; elsewhere the process's high-water mark, which Linux lets one lower first. Where it cannot
    be lowered, a call that needs less than an earlier one shows as zero.
    """
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # what earlier calls left behind would hide what this one takes
        Path("/proc/self/clear_refs").write_text("5")
    lowest = _high_water_mib()
    run()
    return _high_water_mib() - lowest


def _high_water_mib() -> float:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
