"""How the curvature's cost grows with K and d, ours and the per-sample form: docs/figures/scaling.png.

Both forms are linear in the number of rows n, so the time of one more row is what is compared: the time of many rows
less the time of few, over the rows between. That leaves out what is done once per contrast batch, which only ours has.
The per-sample form runs as far as it ends in reasonable time and memory. Exponents are least-squares slopes in log-log.

    python docs/figures/scaling.py [--device cuda]      # about four minutes on two CPU cores
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from curvature import SCALE, per_sample
from embeddings import clip_like
from report import arguments, keep, machine

from bayesvlm.core.curvature import infonce_curvature

matplotlib.use("agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
WIDTHS = [256, 384, 512, 768, 1024]
TARGETS = [2048, 4096, 8192, 16384, 32768, 65536, 131072]
WIDTH, COUNT = 512, {"cpu": 8192, "cuda": 32768}  # held fixed while the other grows
FEW = {"ours": {"cpu": (64, 576), "cuda": (4096, 32768)}, "per sample": {"cpu": (2, 10), "cuda": (5, 55)}}
FARTHEST = {"cpu": 32768, "cuda": 131072}  # targets for the per-sample form
REPEATS = {"cpu": 3, "cuda": 5}


def marginal(run: Callable[[int], Any], few: tuple[int, int], kind: str) -> float:
    """Milliseconds of one more row, medians of turns; on a CPU of processor time, which others lengthen less."""
    clock = time.process_time if kind == "cpu" else time.perf_counter
    times: dict[int, list[float]] = {rows: [] for rows in few}
    for _ in range(REPEATS[kind] + 1):
        for rows in few:
            if kind == "cuda":
                torch.cuda.synchronize()
            started = clock()
            run(rows)
            if kind == "cuda":
                torch.cuda.synchronize()
            times[rows].append(clock() - started)
    low, high = (statistics.median(times[rows][1:]) for rows in few)
    return 1e3 * (high - low) / (few[1] - few[0])


def measure(device: str) -> dict[str, Any]:
    kind = torch.device(device).type
    forms: dict[str, Callable[[Tensor, Tensor], Any]] = {
        "ours": lambda source, target: infonce_curvature(source, target, SCALE),
        "per sample": lambda source, target: per_sample(source, target, samples=1 if kind == "cpu" else 5),
    }
    lines: dict[str, Any] = {}
    for name, form in forms.items():
        few = FEW[name][kind]
        far = [count for count in TARGETS if name == "ours" or count <= FARTHEST[kind]]
        sizes = {"K": [(count, WIDTH) for count in far], "d": [(COUNT[kind], width) for width in WIDTHS]}
        for axis, grid in sizes.items():
            points = []
            for count, width in grid:
                source, target = (rows.to(device) for rows in clip_like(max(count, few[1]), width))
                target = target[:count]
                cost = marginal(lambda rows, s=source, t=target, f=form: f(s[:rows], t), few, kind)  # type: ignore[misc]
                points.append([count if axis == "K" else width, cost])
                print(f"{name}: K = {count}, d = {width}: {cost:.4g} ms per row", flush=True)
            x, y = np.log(np.array(points)).T
            lines.setdefault(axis, {})[name] = {"points": points, "exponent": float(np.polyfit(x, y, 1)[0])}
    return {
        "machine": machine(device),
        "precision": "float32",
        "clock": "processor" if kind == "cpu" else "wall",
        "fixed": {"d": WIDTH, "K": COUNT[kind]},
        "rows": {name: each[kind] for name, each in FEW.items()},
        "milliseconds_per_row": lines,
    }


def draw(figures: dict[str, Any], path: Path) -> None:
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True)
    where = (
        "one H200" if figures["machine"]["device"].startswith("cuda") else f"{figures['machine']['cores']} CPU cores"
    )
    fixed = figures["fixed"]
    titles = {"K": f"targets K (d = {fixed['d']})", "d": f"width d (K = {fixed['K']:,})"}
    colours = {"ours": "C0", "per sample": "C3"}
    for axis, (name, title) in zip(axes, titles.items(), strict=True):
        for form, line in figures["milliseconds_per_row"][name].items():
            x, y = np.array(line["points"]).T
            slope = line["exponent"]
            axis.loglog(x, y, "o", color=colours[form])
            fitted = np.exp(np.polyval(np.polyfit(np.log(x), np.log(y), 1), np.log(x)))
            axis.loglog(x, fitted, "-", color=colours[form], label=f"{form}: {name}$^{{{slope:.2f}}}$")
        ticks = [point[0] for point in figures["milliseconds_per_row"][name]["ours"]["points"]]
        axis.set_xticks(ticks, [f"{tick // 1024}k" if tick >= 2048 else str(int(tick)) for tick in ticks])
        axis.minorticks_off()
        axis.set_xlabel(title)
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    axes[0].set_ylabel(f"{figures['clock']} milliseconds per source row")
    figure.suptitle(f"Curvature of a contrast batch, float32, {where}", fontsize=11)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = arguments(__doc__ or "")
    options = parser.parse_args()
    out = options.out or HERE / "scaling.json"
    figures = measure(options.device)
    keep(figures, out)
    draw(figures, out.with_suffix(".png"))
    for axis, lines in figures["milliseconds_per_row"].items():
        print(axis, {name: round(line["exponent"], 2) for name, line in lines.items()})


if __name__ == "__main__":
    main()
