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
        found[name] = times = run_times(name, device, options.runs)
        plain, bayes = (times["whole"][way]["median"] for way in ("plain", "bayes"))
        each = ", ".join(f"{way} {more:+.2f} %" for way, more in times["overhead by"].items() if more is not None)
        print(
            f"{name:<12} plain {plain:.3f} ms, Bayes {bayes:.3f} ms in {times['runs']} runs: {each}, "
            f"classify {times['overhead of classify']:+.2f} %"
        )
    keep({"machine": machine(device), "classes": CLASSES, "batch": 1, "dtype": "float32", "models": found}, options.out)


if __name__ == "__main__":
    main()
