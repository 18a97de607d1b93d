"""The Bayesian head against the plain one (normalise, multiply, softmax) and the three-product form, in one run.

python benchmarks/predict.py
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from embeddings import clip_like
from report import arguments, keep, machine, median_seconds
from torch import Tensor

from bayesvlm.core.cosine import prob_cosine
from bayesvlm.core.embeddings import GaussianEmbeddings, Shape, SharedCovariance
from bayesvlm.core.predict import plain_softmax, probit

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


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--classes", type=int, default=1_000)
    parser.add_argument("--d", type=int, default=512)
    options = parser.parse_args()
    device, d = options.device, options.d
    images, texts = (tensor.to(device) for tensor in clip_like(options.inputs, d))
    texts = texts[: options.classes].contiguous()
    generator = torch.Generator().manual_seed(0)

    def draw(*size: int) -> Tensor:
        return torch.rand(*size, generator=generator).to(device)

    def timed(run: object) -> float:
        return median_seconds(run, device, 15)  # type: ignore[arg-type]

    plain = timed(lambda: plain_softmax(images, texts, SCALE))
    figures = {"machine": machine(device), "N": options.inputs, "C": options.classes, "d": d, "plain_ms": 1e3 * plain}
    print(f"N = {options.inputs}, C = {options.classes}, d = {d}; {machine(device)}")
    print(f"plain head: {1e3 * plain:.2f} ms")
    for covariance in ("diagonal", "full"):
        shapes = [
            Shape(draw(d), torch.linalg.qr(draw(d, d) - 0.5)[0] if covariance == "full" else None) for _ in range(2)
        ]
        x = GaussianEmbeddings(images, SharedCovariance(draw(len(images)) / 100, shapes[0]))
        y = GaussianEmbeddings(texts, SharedCovariance(draw(len(texts)) / 100, shapes[1]))
        stored = (x.against(shapes[1]), y.against(shapes[0]))
        ratios = {
            "stored_scalars": timed(lambda s=stored: head(*s)) / plain,
            "scalars_computed": timed(lambda a=x, b=y: fresh_head(a, b)) / plain,
        }
        if covariance == "diagonal":
            ratios["three_products"] = timed(lambda a=x, b=y: three_products(a, b)) / plain
            error = float((three_products(x, y) - head(x, y)).abs().max())
            print(f"largest difference to the three-product form: {error:.1e}")
        figures[covariance] = ratios
        print(f"{covariance}: " + ", ".join(f"{name.replace('_', ' ')} {ratio:.2f}x" for name, ratio in ratios.items()))
    keep(figures, options.out)


if __name__ == "__main__":
    main()
