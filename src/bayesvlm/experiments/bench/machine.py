"""On what something was measured: processor, GPU, versions, and who else was at work there."""

from __future__ import annotations

import os
import platform
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

_SETS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "asimd", "sve")  # that products use
_PACKAGES = ("torch", "transformers", "pillow", "bayesvlm")


def machine(device: str) -> dict[str, Any]:
    """What the machine is, as json; "name" is the processor's, or the GPU's where that does the work."""
    about = _cpuinfo()
    sets = set(about.get("flags", about.get("Features", "")).split())
    found: dict[str, Any] = {
        "device": device.split(":")[0],
        "name": about.get("model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": [name for name in _SETS if name in sets],
        "torch_instructions": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
        "torch": torch.__version__,
    }
    if device.startswith("cuda"):
        processor, gpu = found["name"], torch.cuda.get_device_properties(device)
        found |= {"name": gpu.name, "processor": processor, "memory_gib": round(gpu.total_memory / 2**30, 1)}
        found |= {"cuda": torch.version.cuda}
    return found


def versions() -> dict[str, str]:
    """Of Python and of what decides the speed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


class Neighbours:
    """How many cores others kept busy between two moments: what the load average knows only minutes later."""

    def __init__(self) -> None:
        self._before = self._now()

    def busy(self) -> float | None:
        """Cores that were busy since this object was made, without this process and its children that ended.

        Time that the host of a virtual machine gave to somebody else counts as theirs. None where nobody knows.
        """
        after = self._now()
        if self._before is None or after is None:
            return None
        elapsed, all_cores, own = (now - then for now, then in zip(after, self._before, strict=True))
        return max(0.0, (all_cores - own) / elapsed) if elapsed > 0 else None

    @staticmethod
    def _now() -> tuple[float, float, float] | None:
        """The clock, seconds that cores were busy, and those that were this process's."""
        with suppress(OSError, ValueError, IndexError):
            fields = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
            busy = sum(fields) - fields[3] - fields[4]  # without idle and waiting for a disk
            return time.monotonic(), busy / os.sysconf("SC_CLK_TCK"), sum(os.times()[:4])
        return None


def load() -> list[float] | None:
    """The load averages of 1, 5 and 15 minutes, where the system has them."""
    with suppress(OSError, AttributeError):
        return [round(each, 2) for each in os.getloadavg()]
    return None


def _cpuinfo() -> dict[str, str]:
    """What Linux says about the first core."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return {}
