"""What every script prints and keeps; `bayesvlm bench` takes time and knows the machine by the same functions."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from bayesvlm.experiments.bench.machine import machine
from bayesvlm.experiments.bench.turns import median_seconds, peak_extra_mib

__all__ = ["arguments", "keep", "machine", "median_seconds", "peak_extra_mib"]


def arguments(description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="write the figures here as json")
    return parser


def keep(figures: dict[str, Any], out: Path | None) -> None:
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(figures, indent=2) + "\n")
