"""The paper's table of run times: one image from pixels to probabilities, plain and with the posterior, in turns.

    python benchmarks/runtime.py

The paper's architectures with random weights, 100 classes, float32; 1000 runs on a GPU.
"""

from __future__ import annotations

import torch
from report import arguments, keep

from bayesvlm_paper.architectures import ARCHITECTURES
from bayesvlm_paper.timing import CLASSES, machine, run_times


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--models", nargs="*", default=list(ARCHITECTURES), choices=list(ARCHITECTURES))
    parser.add_argument("--runs", type=int, help="1000 on a GPU, elsewhere what fits into ten seconds")
    options = parser.parse_args()
    device = torch.device(options.device)
    found = {}
    print(machine(device))
    for name in options.models:
        times = run_times(name, device, runs=options.runs)
        found[name] = times.to_json()
        plain, bayes = times.whole["plain"].median, times.whole["bayes"].median
        captured = "" if times.by_capture() is None else f", captured {times.by_capture():+.2f} %"
        print(
            f"{name:<12} plain {plain:.3f} ms, Bayes {bayes:.3f} ms in {times.runs} runs: {times.by_median():+.2f} % "
            f"(means {times.by_mean():+.2f} %, heads {times.by_head():+.2f} %{captured}, "
            f"classify {times.classify_overhead:+.2f} %)"
        )
    keep({"machine": machine(device), "classes": CLASSES, "batch": 1, "dtype": "float32", "models": found}, options.out)


if __name__ == "__main__":
    main()
