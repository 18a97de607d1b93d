"""What every benchmark prints and keeps: the machine, and the figures as json."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="write the figures here as json")
    return parser


def median_seconds(runs: Mapping[str, Callable[[], object]], device: str, repeats: int) -> dict[str, float]:
    """Median wall time of each call after one warm-up; the calls take turns, so that a busy moment meets them all."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            _wait(device)
            started = time.perf_counter()
            run()
            _wait(device)
            times[name].append(time.perf_counter() - started)
    return {name: statistics.median(each[1:]) for name, each in times.items()}


def peak_extra_mib(run: Callable[[], object], device: str) -> float:
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
    before = _high_water_mib()
    run()
    return _high_water_mib() - before


def machine(device: str) -> dict[str, Any]:
    name = torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()
    return {"device": device, "name": name, "cores": os.cpu_count(), "torch": torch.__version__}


def keep(figures: dict[str, Any], out: Path | None) -> None:
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(figures, indent=2) + "\n")


def _high_water_mib() -> float:
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
