"""How long it takes to compare each of many pictures with each: made-up embeddings as wide as those of a ViT-B/32.

    python benchmarks/near_copies.py 20000 100000 [--device cuda] [--out docs/figures/near-copies-scale.json]

A tenth of the items are copies of another one, near or less near. On a CPU it is processor time that is measured.
Results of the device are replaced in the file.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import time
from pathlib import Path

import torch

from bayesvlm.core.duplicates import Neighbours, Reach, stars
from bayesvlm.core.embeddings import Shape
from bayesvlm.core.linearised import Directed

D, P, RATIO, SIMILARITY, HALF = 512, 768, 0.1, 0.95, 1.959964


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=int, nargs="+")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    name = (
        torch.cuda.get_device_name()
        if asked.device.startswith("cuda")
        else f"CPU, {torch.get_num_threads()} thread(s), processor time"
    )
    found = [measured(rows, asked.device) for rows in asked.rows]
    if asked.out is not None:
        kept = json.loads(asked.out.read_text()) if asked.out.exists() else {"d": D, "p": P, "runs": {}}
        kept["runs"][name] = found
        asked.out.write_text(json.dumps(kept, separators=(",", ":")) + "\n")


def measured(rows: int, device: str) -> dict[str, float]:
    mean, white, shape = made(rows, device)
    length = torch.linalg.vector_norm(white, dim=1, dtype=torch.float32)

    def directed(places: torch.Tensor) -> Directed:
        return Directed(mean[places].double(), white[places].double())

    wait(device)
    clock = time.perf_counter if device.startswith("cuda") else time.process_time  # others may share the processor
    begun = clock()
    keeper = stars(Neighbours(mean, length, directed, shape, Reach(SIMILARITY, HALF)))
    seconds = clock() - begun
    copies = int((keeper != torch.arange(rows)).sum())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    peak = torch.cuda.max_memory_allocated() if device.startswith("cuda") else peak
    print(
        f"{platform.machine()} {device}: {rows:,} items in {seconds:.1f} s, {copies:,} near-copies, {peak / 1e9:.1f} GB"
    )
    return {"rows": rows, "seconds": round(seconds, 1), "near_copies": copies, "gigabytes": round(peak / 1e9, 1)}


def made(rows: int, device: str) -> tuple[torch.Tensor, torch.Tensor, Shape]:
    """Means, whitened activations in half precision, R; variance a tenth of the squared length of a mean."""
    generator = torch.Generator(device).manual_seed(0)
    mean = torch.randn(rows, D, generator=generator, device=device) + 0.8 * torch.randn(
        D, generator=generator, device=device
    )
    white = torch.randn(rows, P, generator=generator, device=device)
    copies = rows // 10
    far = torch.rand(copies, 1, generator=generator, device=device)
    mean[-copies:] = mean[:copies] + 0.6 * far * torch.randn(copies, D, generator=generator, device=device)
    white[-copies:] = white[:copies] + 0.6 * far * torch.randn(copies, P, generator=generator, device=device)
    spectrum = torch.rand(D, generator=generator, device=device) + 0.5
    white *= (RATIO / spectrum.sum()).sqrt() * mean.norm(dim=1, keepdim=True) / white.norm(dim=1, keepdim=True)
    order = torch.randperm(rows, generator=generator, device=device)
    return mean[order], white[order].half(), Shape(spectrum)


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()


if __name__ == "__main__":
    main()
