"""How familiar inputs are, against classifying them, in turns in one process: by entropy, by seven scores at once; and
the epistemic part of the entropy by draws and without.

python benchmarks/familiarity.py
"""

from __future__ import annotations

import math
from functools import partial

import torch
from report import arguments, keep, machine, median_seconds
from torch import Tensor

from bayesvlm import BayesVLM, Features
from bayesvlm.safety import familiarities, familiarity

SCALE, WIDTH = 100.0, 768
TOGETHER = ("msp", "mcm", "max_cosine", "energy", "entropy", "variance", "text_variance")


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--d", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--drawn", type=int, default=500, help="inputs for which parameters are drawn")
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(1)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(options.device)

    d = options.d
    vlm = BayesVLM.from_projections(draw(d, WIDTH) / WIDTH**0.5, draw(d, d) / d**0.5, math.log(SCALE))
    vlm.fit([(Features(draw(2048, WIDTH)), Features(draw(2048, d)))], negatives=2048, progress=False)
    inputs, classes = Features(draw(options.inputs, WIDTH)), Features(draw(options.classes, d))
    runs = {
        "classify": lambda: vlm.classify(inputs, classes).probs,
        "classify, entropy": lambda: vlm.classify(inputs, classes).entropy,
        "entropy": partial(familiarity, vlm, inputs, classes, "entropy"),
        "MCM": partial(familiarity, vlm, inputs, classes, "mcm"),
        "seven scores": partial(familiarities, vlm, inputs, classes, TOGETHER),
    }
    seconds = median_seconds(runs, options.device, options.repeats)
    ratios = {name: each / seconds["classify"] for name, each in seconds.items()}
    few = inputs[: options.drawn]
    parts = {
        "classify": lambda: vlm.classify(few, classes).probs,
        "128 draws": lambda: vlm.classify(few, classes).monte_carlo,
        "no draws": lambda: vlm.expanded_epistemic(few, classes),
    }
    apart = median_seconds(parts, options.device, max(3, options.repeats // 3))
    print(f"N = {options.inputs}, C = {options.classes}, d = {d}; {machine(options.device)}")
    print(f"classify: {1e3 * seconds['classify']:.1f} ms; the others against it:")
    for name, ratio in list(ratios.items())[1:]:
        print(f"  {name:<20} {ratio:.2f}x")
    print(f"epistemic of {options.drawn} inputs, against classifying them ({1e3 * apart['classify']:.1f} ms):")
    epistemic = {name: each / apart["classify"] for name, each in apart.items() if name != "classify"}
    for name, ratio in epistemic.items():
        print(f"  {name:<20} {ratio:.1f}x")
    sizes = {"N": options.inputs, "C": options.classes, "d": d, "drawn": options.drawn}
    kept = {"classify_ms": 1e3 * seconds["classify"], "ratios": ratios, "epistemic_ratios": epistemic}
    keep({"machine": machine(options.device), **sizes, **kept}, options.out)


if __name__ == "__main__":
    main()
