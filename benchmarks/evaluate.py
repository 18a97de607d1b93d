"""Evaluating cached features: Bayes with all metrics against the plain head with all metrics, in one run.

python benchmarks/evaluate.py
"""

from __future__ import annotations

import math

import torch
from report import arguments, keep, machine, median_seconds

from bayesvlm import BayesVLM, Features
from bayesvlm.experiments.methods import Methods

SCALE = 100.0


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--p", type=int, default=768)
    parser.add_argument("--d", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(options.device)

    p, d = options.p, options.d
    vlm = BayesVLM.from_projections(draw(d, p) / math.sqrt(p), draw(d, p) / math.sqrt(p), math.log(SCALE))
    vlm.fit([(Features(draw(2048, p)), Features(draw(2048, p)))], progress=False)
    classes = Features(draw(options.classes, p))
    labels = torch.randint(options.classes, (options.images,), generator=generator)
    images = Features(classes.activations[labels] + 2 * draw(options.images, p))
    methods = Methods(vlm, 1.5)

    def evaluated(method: str) -> object:
        return methods.scores(images, labels, classes, [method])[method].numbers()

    runs = {
        "plain head alone": lambda: vlm.plain(images, classes),
        "plain, all metrics": lambda: evaluated("plain"),
        "temperature, all metrics": lambda: evaluated("temperature"),
        "Bayes, all metrics": lambda: evaluated("Bayes"),
    }
    seconds = median_seconds(runs, options.device, options.repeats)
    base = seconds["plain, all metrics"]
    print(f"N = {options.images}, C = {options.classes}, p = {p}, d = {d}; {machine(options.device)}")
    for name, taken in seconds.items():
        print(f"  {name:<26} {1e3 * taken:8.1f} ms   {taken / base:.2f}x plain with all metrics")
    sizes = {"N": options.images, "C": options.classes, "p": p, "d": d}
    ratios = {name: taken / base for name, taken in seconds.items()}
    keep({"machine": machine(options.device), **sizes, "plain_ms": 1e3 * base, "ratios": ratios}, options.out)


if __name__ == "__main__":
    main()
