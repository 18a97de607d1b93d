"""What every benchmark prints and keeps: the machine, and the figures as json."""

from __future__ import annotations

import argparse
import json
import os
import platform
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


def machine(device: str) -> dict[str, Any]:
    name = torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()
    return {"device": device, "name": name, "cores": os.cpu_count(), "torch": torch.__version__}


def keep(figures: dict[str, Any], out: Path | None) -> None:
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(figures, indent=2) + "\n")


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
