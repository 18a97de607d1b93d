"""The Bayesian head against the plain one (normalise, multiply, softmax) and the three-product form, and with classes
of many templates against classes of one, in one run.

python benchmarks/predict.py
"""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from functools import partial

import torch
from report import arguments, keep, machine, median_seconds
from torch import Tensor

from bayesvlm import BayesVLM, Features
from bayesvlm.core.cosine import prob_cosine
from bayesvlm.core.embeddings import GaussianEmbeddings, Shape, SharedCovariance
from bayesvlm.core.ensemble import ensemble
from bayesvlm.core.predict import plain_softmax, probit
from bayesvlm.experiments.bench.generated import clip_like

SCALE = 100.0


def three_products(x: GaussianEmbeddings, y: GaussianEmbeddings) -> Tensor:  # [N, C]
    """The diagonal head with per-item variances written out: a product for each term of the variance."""
    vx, vy = x.covariance.per_item().variance, y.covariance.per_item().variance
    x_norm = (x.mean.square().sum(1) + vx.sum(1)).sqrt()[:, None]
    y_norm = (y.mean.square().sum(1) + vy.sum(1)).sqrt()
    mean = x.mean @ y.mean.T / x_norm / y_norm
    variance = (vx @ y.mean.square().T + x.mean.square() @ vy.T + vx @ vy.T) / x_norm**2 / y_norm**2
    return torch.softmax(SCALE * mean / (1 + math.pi / 8 * SCALE**2 * variance).sqrt(), dim=1)


def head(x: GaussianEmbeddings, y: GaussianEmbeddings) -> Tensor:  # [N, C]
    return probit(prob_cosine(x, y), SCALE)


def fresh_head(x: GaussianEmbeddings, y: GaussianEmbeddings) -> Tensor:  # [N, C]
    return head(replace(x, stored=None), replace(y, stored=None))  # norms and quadratic forms computed anew


def ensembles(options: argparse.Namespace) -> dict[str, float]:
    """Prediction time with classes of m templates over that with classes of one: a whole `classify`, a head's call."""
    d, p, m = options.d, 768, options.templates
    generator = torch.Generator().manual_seed(1)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator).to(options.device)

    vlm = BayesVLM.from_projections(draw(d, p) / p**0.5, draw(d, d) / d**0.5, math.log(SCALE))
    vlm.fit([(Features(draw(2048, p)), Features(draw(2048, d)))], negatives=2048, progress=False)
    inputs, prompts = Features(draw(options.inputs, p)), Features(draw(options.classes * m, d))
    groups = torch.arange(options.classes).repeat_interleave(m)
    asked = {"one": prompts[::m], "many": ensemble(vlm.text, prompts, groups)}
    heads = {name: vlm.head(classes) for name, classes in asked.items()}
    runs = {
        **{f"classify, {name}": partial(vlm.classify, inputs, classes) for name, classes in asked.items()},
        **{f"head, {name}": partial(head, inputs) for name, head in heads.items()},
    }
    seconds = median_seconds(runs, options.device, options.repeats)
    return {way: seconds[f"{way}, many"] / seconds[f"{way}, one"] for way in ("classify", "head")}


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--d", type=int, default=512)
    parser.add_argument("--templates", type=int, default=80)
    parser.add_argument("--repeats", type=int, default=25)
    options = parser.parse_args()
    device, d = options.device, options.d
    images, texts = (tensor.to(device) for tensor in clip_like(options.inputs, d))
    texts = texts[: options.classes].contiguous()
    generator = torch.Generator().manual_seed(0)

    def draw(*size: int) -> Tensor:
        return torch.rand(*size, generator=generator).to(device)

    def covariances(basis: bool) -> tuple[GaussianEmbeddings, GaussianEmbeddings]:
        shapes = [Shape(draw(d), torch.linalg.qr(draw(d, d) - 0.5)[0] if basis else None) for _ in range(2)]
        x = GaussianEmbeddings(images, SharedCovariance(draw(len(images)) / 100, shapes[0]))
        y = GaussianEmbeddings(texts, SharedCovariance(draw(len(texts)) / 100, shapes[1]))
        return x.against(shapes[1]), y.against(shapes[0])

    diagonal, full = covariances(False), covariances(True)
    runs = {
        "plain": lambda: plain_softmax(images, texts, SCALE),
        "diagonal, stored scalars": lambda: head(*diagonal),
        "full, stored scalars": lambda: head(*full),
        "diagonal, scalars computed": lambda: fresh_head(*diagonal),
        "full, scalars computed": lambda: fresh_head(*full),
        "diagonal, three products": lambda: three_products(*diagonal),
    }
    seconds = median_seconds(runs, device, options.repeats)
    ratios = {name: each / seconds["plain"] for name, each in seconds.items()}
    error = float((three_products(*diagonal) - head(*diagonal)).abs().max())
    print(f"N = {options.inputs}, C = {options.classes}, d = {d}; {machine(device)}")
    print(f"plain head (normalise, multiply, softmax): {1e3 * seconds['plain']:.2f} ms; the others against it:")
    for name, ratio in list(ratios.items())[1:]:
        print(f"  {name:<28} {ratio:.2f}x")
    print(f"largest difference of a probability to the three-product form: {error:.1e}")
    many = ensembles(options)
    print(f"classes of {options.templates} templates against classes of one, prediction alone:")
    print("  " + ", ".join(f"{way} {ratio:.3f}x" for way, ratio in many.items()))
    sizes = {"N": options.inputs, "C": options.classes, "d": d}
    keep(
        {"machine": machine(device), **sizes, "plain_ms": 1e3 * seconds["plain"], "ratios": ratios}
        | {"templates": options.templates, "ensemble_ratios": many},
        options.out,
    )


if __name__ == "__main__":
    main()
