"""How far ProbCosine and the probit are from Monte Carlo, over levels of uncertainty: docs/figures/approximation.png.

A synthetic model with the cosines of a real CLIP (matches about 0.30, the rest about 0.12, t = 100), whose embeddings
have a few strong directions, goes through the ordinary path: fit on pairs, then classify at many pseudo-data counts
tau, each of which gives another level of uncertainty.
The reference at each level is Monte Carlo over joint draws of both projections.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import matplotlib
import torch
from torch import Tensor

from bayesvlm import BayesVLM, Features
from bayesvlm.core.predict import sample_cosines
from bayesvlm.experiments.bench.generated import clip_like

matplotlib.use("agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
WIDTH, INPUTS, CLASSES, IMAGES, DRAWS = 64, 96, 40, 200, 2000
TAUS = [10 ** (k / 2) for k in range(-6, 11)]


def model_and_features() -> tuple[BayesVLM, Features, Features]:
    """A fitted model, images to classify and the prompts of their classes."""
    generator = torch.Generator().manual_seed(0)
    axes = torch.linalg.qr(torch.randn(WIDTH, WIDTH, generator=generator).double())[0]
    towers, activations = [], []
    for aligned in clip_like(4096, WIDTH, decay=0.5, seed=1):
        embeddings = aligned.double() @ axes  # real models do not align with the coordinate axes
        rows = torch.linalg.qr(torch.randn(INPUTS, INPUTS, generator=generator).double())[0][:WIDTH]
        noise = torch.randn(len(embeddings), INPUTS, generator=generator).double()
        towers.append(rows)  # orthonormal, so that W W^T g = g
        activations.append(embeddings @ rows + noise - noise @ rows.T @ rows)
    vlm = BayesVLM.from_projections(*towers, logit_scale=math.log(100))
    images, texts = (Features(phi) for phi in activations)
    vlm.fit([(images[IMAGES:], texts[IMAGES:])], negatives=2048)
    return vlm, images[:IMAGES], texts[:CLASSES]


def measure(vlm: BayesVLM, images: Features, classes: Features) -> dict[str, float]:
    """One level of uncertainty."""
    posterior = vlm.posterior
    total, squares, probs = (torch.zeros(parts, IMAGES, CLASSES).double() for parts in (1, 1, 2))
    for draw, cosine in enumerate(sample_cosines(posterior["image"], images, posterior["text"], classes, DRAWS)):
        total += cosine
        squares += cosine**2
        probs[draw % 2] += torch.softmax(100 * cosine, dim=1) / (DRAWS / 2)
    mean = total[0] / DRAWS
    std = (squares[0] / DRAWS - mean**2).sqrt()
    reference = (probs[0] + probs[1]) / 2
    level = posterior["image"].embed(images)
    result = {
        "uncertainty": float((level.covariance.trace() / level.mean.square().sum(dim=1)).sqrt().mean()),
        "noise": distance(probs[0], probs[1]) / 2,
        "plain": distance(vlm.plain(images, classes), reference),
    }
    for covariance in ("diagonal", "full"):
        moments = vlm.replace(covariance=covariance).similarity(images, classes)
        result[f"bias {covariance}"] = float(((moments.mean - mean) / std).abs().mean())
        result[f"ratio {covariance}"] = float((moments.std / std).mean())
        for link in ("probit", "centred"):
            changed = vlm.replace(covariance=covariance, link=link)
            result[f"{link} {covariance}"] = distance(changed.classify(images, classes).probs, reference)
    return result


def distance(p: Tensor, q: Tensor) -> float:
    """Mean total variation distance of rows of probabilities."""
    return float((p - q).abs().sum(dim=1).mean() / 2)


def main() -> None:
    vlm, images, classes = model_and_features()
    levels = [{"tau": tau} | measure(vlm.replace(tau=tau), images, classes) for tau in TAUS]
    levels.sort(key=lambda level: level["uncertainty"])
    (HERE / "approximation.json").write_text(json.dumps(levels, indent=1) + "\n")
    draw(levels)


def draw(levels: list[dict[str, float]]) -> None:
    x = [level["uncertainty"] for level in levels]

    def line(axis: plt.Axes, key: str, **style: object) -> None:
        axis.plot(x, [level[key] for level in levels], lw=2, **style)

    figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    line(axes[0], "bias full", color="#1f5fa8", label="full covariance")
    line(axes[0], "bias diagonal", color="#d1603d", ls="--", label="diagonal (the paper)")
    noise = math.sqrt(2 / math.pi / DRAWS)  # what a mean of so many draws is off by
    axes[0].axhline(noise, color="0.6", ls=":", lw=1.5, label="Monte Carlo noise")
    axes[0].set(title="expected cosine", ylabel="mean |error| / Monte Carlo std", ylim=(0, None))
    line(axes[1], "ratio full", color="#1f5fa8", label="full covariance")
    line(axes[1], "ratio diagonal", color="#d1603d", ls="--", label="diagonal (the paper)")
    axes[1].axhline(1, color="0.6", lw=1)
    axes[1].set(title="std of the cosine", ylabel="ProbCosine / Monte Carlo")
    line(axes[2], "plain", color="0.45", label="plain softmax")
    line(axes[2], "probit full", color="#1f5fa8", label="probit, full")
    line(axes[2], "centred full", color="#2a9d6e", label="centred probit, full")
    line(axes[2], "probit diagonal", color="#1f5fa8", ls="--", label="probit, diagonal (the paper)")
    line(axes[2], "centred diagonal", color="#2a9d6e", ls="--", label="centred probit, diagonal")
    line(axes[2], "noise", color="0.8", ls=":", label="Monte Carlo noise")
    axes[2].set(title="class probabilities", ylabel="total variation to Monte Carlo", yscale="log")
    for axis in axes:
        axis.set(xscale="log", xlabel="uncertainty of an embedding: sqrt(tr Cov) / |mean|")
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8.5)
    figure.savefig(HERE / "approximation.png", dpi=110)


if __name__ == "__main__":
    main()
