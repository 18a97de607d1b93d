"""Pictures of docs/concepts: crosses, densities of cosines, entropy in two parts; and what overlap says."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from PIL import Image

from bayesvlm import BayesVLM, Features, world
from bayesvlm.core.predict import sample_cosines

HERE = Path(__file__).parent
BLUE, ORANGE, GREY = "#33658a", "#d9822b", "#8a8a8a"
STYLES = {
    "new-drawing": "styles it learnt",
    "openmoji-colour": "colour, unseen style",
    "openmoji-black": "line art, unseen style",
    "unseen-concepts": "unseen concepts",
    "flags": "flags",
}
COUNT = 150
"""Drawings of each split: evenly spaced ones, chosen by nobody."""


def save(figure: Figure, name: str) -> None:
    """A small picture: 64 colours are enough for lines and letters."""
    held = BytesIO()
    figure.savefig(held, dpi=90, facecolor="white")
    Image.open(held).convert("RGB").quantize(64).save(HERE / f"{name}.png", optimize=True)
    plt.close(figure)


def drawings(vlm: BayesVLM, split: str) -> tuple[Features, list[str]]:
    """Encoded drawings of a split, and what each shows."""
    of = world.load(split)
    rows = list(range(0, len(of.images), max(1, len(of.images) // COUNT)))[:COUNT]
    names = [of.classes[of.labels[row]] for row in rows]
    return vlm.image_features([of.images[row] for row in rows], progress=False), names


def crosses(vlm: BayesVLM) -> None:
    """Every unseen style's drawing of two concepts: its cosines with both names, a point with 95 % intervals."""
    figure, axis = plt.subplots(figsize=(5, 3.2), layout="constrained")
    names = ["cat face", "hamburger"]
    for name, colour in zip(names, (BLUE, ORANGE), strict=True):
        splits = [world.load(split) for split in STYLES if split != "flags"]
        images = [i for of in splits for i, n in zip(of.images, of.labels, strict=True) if of.classes[n] == name]
        found = vlm.similarity(images, names)
        reach = (1.96 * found.std).numpy()
        axis.errorbar(*found.mean.numpy().T, reach[:, 1], reach[:, 0], fmt="o", ms=4, lw=1, color=colour, label=name)
    axis.set(xlabel=f"cosine with “{names[0]}”", ylabel=f"cosine with “{names[1]}”")
    axis.legend(frameon=False, title="drawings of")
    save(figure, "concept-posterior")


def densities(vlm: BayesVLM, seen: dict[str, tuple[Features, list[str]]]) -> None:
    """Of the middle drawing of two splits: densities of its cosine with the right text and with the best wrong one."""
    figure, axes = plt.subplots(1, 2, figsize=(7, 2.4), sharex=True, layout="constrained")
    classes = list(world.load("openmoji-black").classes)
    for axis, split in zip(axes, ("new-drawing", "openmoji-black"), strict=True):
        features, names = seen[split]
        prediction = vlm.classify(features, classes, progress=False)
        row = int(prediction.entropy.argsort()[len(names) // 2])
        wrong = next(int(c) for c in prediction.probs[row].argsort(descending=True) if classes[c] != names[row])
        grid = np.linspace(-0.1, 0.6, 300)
        for name, colour in ((names[row], BLUE), (classes[wrong], ORANGE)):
            at = classes.index(name)
            mean, std = float(prediction.mean[row, at]), float(prediction.variance[row, at]) ** 0.5
            axis.fill_between(
                grid, np.exp(-(((grid - mean) / std) ** 2) / 2) / std, alpha=0.45, color=colour, label=name
            )
        axis.set(title=STYLES[split], xlabel="cosine", yticks=[], xlim=(-0.1, 0.6), ylim=(0, 12))
        axis.legend(frameon=False, loc="upper left", fontsize=8)
    save(figure, "concept-interval")


def parts(vlm: BayesVLM, seen: dict[str, tuple[Features, list[str]]]) -> dict[str, dict[str, float]]:
    """Mean entropy of each split, in its two parts."""
    classes = vlm.class_features(world.load("openmoji-black").classes)
    found = {}
    for split, (features, _) in seen.items():
        prediction = vlm.classify(features, classes, progress=False)
        found[split] = {
            "aleatoric": float(prediction.aleatoric.mean()),
            "epistemic": float(prediction.epistemic.mean()),
            "image_variance": float(torch.mean(prediction.variance)),
        }
    figure, axis = plt.subplots(figsize=(6, 2.2), layout="constrained")
    places = np.arange(len(found))
    left = np.array([one["aleatoric"] for one in found.values()])
    axis.barh(places, left, color=BLUE, label="aleatoric: of the image")
    model = [one["epistemic"] for one in found.values()]
    axis.barh(places, model, left=left, color=ORANGE, label="epistemic: of the model")
    axis.set(yticks=places, yticklabels=[STYLES[split] for split in found], xlabel="entropy in nats")
    axis.invert_yaxis()
    figure.legend(frameon=False, loc="outside upper center", ncols=2)
    save(figure, "concept-doubt")
    return found


def orders(vlm: BayesVLM, split: str, draws: int = 2000) -> dict[str, float]:
    """Drawings of food: whether the intervals of the two best names overlap, and how often draws keep their order."""
    food = world.load(split).group("food-drink")
    images, texts = vlm.image_features(food.images), vlm.class_features(food.classes)
    cosines = vlm.similarity(images, texts)
    best = cosines.mean.topk(2).indices  # [N, 2]
    low, high = (end.gather(1, best) for end in cosines.interval(0.95))
    overlap = low[:, 0] < high[:, 1]
    drawn = sample_cosines(vlm.posterior["image"], images, vlm.posterior["text"], texts, draws)
    pairs = torch.stack([one.gather(1, best) for one in drawn]).double()  # [draws, N, 2]
    kept = (pairs[..., 0] > pairs[..., 1]).double().mean(0)
    centred = (pairs - pairs.mean(0)) / pairs.std(0)
    return {
        "drawings": len(kept),
        "overlap": int(overlap.sum()),
        "overlap, and kept in 97.5 % of draws": int((overlap & (kept >= 0.975)).sum()),
        "least kept without overlap": float(kept[~overlap].min()),
        "correlation": float(centred.prod(2).mean()),
    }


def main() -> None:
    vlm = BayesVLM.from_pretrained("emoji-clip")
    seen = {split: drawings(vlm, split) for split in STYLES}
    crosses(vlm)
    densities(vlm, seen)
    found = {"model": "emoji-clip", "count": COUNT, "entropy": parts(vlm, seen)}
    found["orders"] = {split: orders(vlm, split) for split in ("new-drawing", "openmoji-black")}
    (HERE / "concepts.json").write_text(json.dumps(found, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
