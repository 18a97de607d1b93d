"""The numbers and the picture of docs/probability.md: what softmax and sigmoid say of drawings whose names are known.

python docs/figures/probability.py            # about two minutes; probability.json and probability.png
"""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import torch
from matplotlib.axes import Axes
from torch import Tensor

from bayesvlm import BayesVLM, world
from bayesvlm.core.features import Features
from bayesvlm.evaluation import ece
from bayesvlm.report import save_png
from bayesvlm.report.plots import new_figure
from bayesvlm.report.theme import colour, drawing_style

HERE = Path(__file__).parent
LISTS = (2, 3, 10, 1531)  # names
STYLES = ("new-drawing", "openmoji-colour", "openmoji-black")
BINS = (0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0001)
TEMPLATES = ("{c}", "a photo of a {c}.", "a drawing of a {c}.")
SIGLIP = {
    "google/siglip-base-patch16-224": (117.3308, -12.9324),
    "google/siglip2-base-patch16-224": (112.6689, -16.7717),
}
BATCH = 32768  # of SigLIP's training


def main() -> None:
    clip, siglip = (BayesVLM.from_pretrained(name, device="cpu") for name in ("emoji-clip", "emoji-siglip"))
    numbers = {
        "lists": lists(clip, siglip),
        "arithmetic": {name: arithmetic(t, b) for name, (t, b) in SIGLIP.items()},
        "emoji-siglip": {"t": siglip.scale, "bias": siglip.logit_bias}
        | arithmetic(siglip.scale, siglip.logit_bias or 0),
        "pairs": {style: pairs(siglip, style) for style in STYLES},
        "calibration": {style: calibration(clip, style) for style in STYLES},
        "scale": scales(clip),
        "one": one(clip, siglip),
        "templates": templates(siglip),
    }
    (HERE / "probability.json").write_text(json.dumps(numbers, indent=1) + "\n")
    print(json.dumps({name: value for name, value in numbers.items() if name != "pairs"}, indent=1))
    draw(numbers)


def drawing(clip: BayesVLM) -> tuple[bytes, str, list[str]]:
    """A drawing whose entropy is the median among those named rightly, its name, and the other names of its group,
    the least like it first."""
    split = world.load("new-drawing").group("animals-nature")
    found = clip.classify(list(split.images), list(split.classes), progress=False)
    labels = torch.tensor(split.labels)
    right = (found.labels == labels).nonzero().flatten()
    row = int(right[found.entropy[right].argsort()[len(right) // 2]])
    name = split.classes[split.labels[row]]
    others = [split.classes[k] for k in found.probs[row].argsort(descending=True).tolist()]
    return split.images[row], name, [other for other in others if other != name][::-1]


def lists(clip: BayesVLM, siglip: BayesVLM) -> dict[str, object]:
    """One drawing among more and more names: an unlike one, then those that are most like it, then all there are."""
    image, name, others = drawing(clip)
    order = [name, others[0], *others[:0:-1]]
    everything = [name, *(other for other in world.load("new-drawing").classes if other != name)]
    steps = {count: order[:count] for count in LISTS[:-1]} | {LISTS[-1]: everything}
    wrong = [others[0], others[len(others) // 2]]  # neither is in the picture
    result: dict[str, object] = {"name": name, "lists": {count: steps[count] for count in LISTS[:-1]}, "wrong": wrong}
    for model, vlm in (("emoji-clip", clip), ("emoji-siglip", siglip)):
        entry: dict[str, object] = {}
        for count in LISTS:
            found = vlm.classify(image, steps[count])
            entry[f"among {count}"] = {
                "softmax": float(found.probs[0, 0]),
                "plain": float(vlm.plain(image, steps[count])[0, 0]),
                "label_prob": None if found.label_probs is None else float(found.label_probs[0, 0]),
            }
        found = vlm.classify(image, wrong)
        entry["wrong names"] = {
            "softmax": found.probs[0].tolist(),
            "plain": vlm.plain(image, wrong)[0].tolist(),
            "cosine": found.mean[0].tolist(),
            "label_prob": None if found.label_probs is None else found.label_probs[0].tolist(),
        }
        result[model] = entry
    return result


def arithmetic(t: float, bias: float) -> dict[str, float]:
    """What cosines a sigmoid model's probabilities stand for, sigma(t cos + bias)."""
    odds = 0.223 / (1 - 0.223)
    return {
        "probability at cosine 0": 1 / (1 + math.exp(-bias)),
        "cosine of 0.5": -bias / t,
        "cosine of 0.223": (math.log(odds) - bias) / t,
        "cosine of the base rate": (math.log(1 / (BATCH - 1)) - bias) / t,
        "odds of 0.223 over those of the base rate": odds * (BATCH - 1),
    }


def both(vlm: BayesVLM, style: str) -> tuple[dict[str, Tensor], Tensor, Features]:
    """The probability of every name by itself, plain and Bayesian, and which is the right one."""
    split = world.load(style)
    features, classes = vlm.image_features(list(split.images), progress=False), vlm.class_features(split.classes)
    scores = {
        "plain": vlm.plain_head(classes).label_probs(features),
        "bayes": vlm.head(classes).label_probs(features),
    }
    return scores, torch.tensor(split.labels), features


def pairs(vlm: BayesVLM, style: str) -> dict[str, object]:
    """Every drawing with every name: how probabilities of right and of wrong pairs are distributed."""
    scores, labels, _ = both(vlm, style)
    rows = torch.arange(len(labels))
    own = torch.zeros(next(iter(scores.values())).shape, dtype=torch.bool)
    own[rows, labels] = True
    result: dict[str, object] = {"images": len(labels), "names": own.shape[1]}
    for method, found in scores.items():
        right, wrong = found[rows, labels], found[~own]
        edges = torch.linspace(-9, 0, 46)
        bins = []
        for low, high in pairwise(BINS):
            inside = (found >= low) & (found < high)
            count = int(inside.sum())
            correct = int((inside & own).sum())
            mean = float(found[inside].mean()) if count else None
            bins.append({"from": low, "pairs": count, "right": correct, "mean": mean})
        result[method] = {
            "quantiles of right pairs": quantiles(right, (0.05, 0.25, 0.5, 0.75, 0.95)),
            "quantiles of wrong pairs": quantiles(wrong, (0.5, 0.99, 0.999)),
            "right pairs below 0.5": float((right < 0.5).float().mean()),
            "right pairs of the drawings named rightly, below 0.5": float(
                (right[found.argmax(dim=1) == labels] < 0.5).float().mean()
            ),
            "precision of 0.5": float((own & (found >= 0.5)).sum() / (found >= 0.5).sum()),
            "bins": bins,
            "histogram": {
                "edges": edges.tolist(),
                "right": torch.histogram(right.clamp_min(1e-9).log10(), edges).hist.tolist(),
                "wrong": torch.histogram(wrong.clamp_min(1e-9).log10(), edges).hist.tolist(),
            },
        }
    return result


def quantiles(values: Tensor, levels: tuple[float, ...]) -> dict[str, float]:
    ordered = values.sort().values
    return {str(level): float(ordered[min(int(level * len(ordered)), len(ordered) - 1)]) for level in levels}


def calibration(vlm: BayesVLM, style: str) -> dict[str, dict[str, float]]:
    """Mean confidence, accuracy and ECE of the softmax over all names."""
    split = world.load(style)
    features, classes, labels = vlm.image_features(list(split.images)), vlm.class_features(split.classes), split.labels
    found = {"plain": vlm.plain(features, classes), "bayes": vlm.classify(features, classes).probs}
    target = torch.tensor(labels)
    return {
        method: {
            "accuracy": float((probs.argmax(dim=1) == target).float().mean()),
            "mean confidence": float(probs.amax(dim=1).mean()),
            "ece": float(ece(probs, target)),
        }
        for method, probs in found.items()
    }


def scales(clip: BayesVLM) -> dict[str, float]:
    """The largest softmax of new drawings' cosines with all names, at the model's t and at t = 1."""
    split = world.load("new-drawing")
    logits = clip.logits(list(split.images), list(split.classes))
    own = logits[torch.arange(len(logits)), torch.tensor(split.labels)] / clip.scale
    return {
        "t": clip.scale,
        "at t": float(logits.softmax(dim=1).amax(dim=1).mean()),
        "at 1": float((logits / clip.scale).softmax(dim=1).amax(dim=1).mean()),
        "median cosine of the right name": float(own.median()),
    }


def one(clip: BayesVLM, siglip: BayesVLM) -> dict[str, object]:
    """Everything a prediction says of one drawing."""
    image, name, _ = drawing(clip)
    names = list(world.load("new-drawing").group("animals-nature").classes)
    result: dict[str, object] = {"name": name}
    for model, vlm in (("emoji-clip", clip), ("emoji-siglip", siglip)):
        found, place = vlm.classify(image, names), names.index(name)
        low, high = found.moments.interval(0.95)
        result[model] = {
            "prob": float(found.probs[0, place]),
            "label_prob": None if found.label_probs is None else float(found.label_probs[0, place]),
            "mean": float(found.mean[0, place]),
            "std": float(found.moments.std[0, place]),
            "interval": [float(low[0, place]), float(high[0, place])],
            "entropy": float(found.entropy),
            "epistemic": float(found.epistemic),
            "aleatoric": float(found.aleatoric),
        }
    return result


def templates(vlm: BayesVLM) -> dict[str, dict[str, float]]:
    """The same drawings and names in other words."""
    split = world.load("new-drawing")
    features, labels = vlm.image_features(list(split.images)), torch.tensor(split.labels)
    result = {}
    for template in TEMPLATES:
        found = vlm.classify(features, list(split.classes), templates=template)
        assert found.label_probs is not None
        result[template] = {
            "top-1": float((found.labels == labels).float().mean()),
            "median label_prob of the right name": float(found.label_probs[torch.arange(len(labels)), labels].median()),
        }
    return result


def draw(numbers: dict[str, dict]) -> None:
    with drawing_style():
        figure = new_figure(10.6, 3.4)
        for panel, axes in zip((_softmax, _distribution, _calibration), figure.subplots(1, 3), strict=True):
            panel(axes, numbers)
        save_png(figure, HERE / "probability.png")


def _softmax(axes: Axes, numbers: dict[str, dict]) -> None:
    """One drawing among more and more names."""
    found = numbers["lists"]["emoji-siglip"]
    places = torch.arange(len(LISTS)).double().numpy()
    for offset, key, shade, label in (
        (-0.2, "softmax", "plain", "probs: among these names"),
        (0.2, "label_prob", "bayes", "label_probs: by itself"),
    ):
        values = [found[f"among {count}"][key] for count in LISTS]
        bars = axes.bar(places + offset, values, 0.38, color=colour(shade), label=label)
        axes.bar_label(bars, [f"{value:.2f}" for value in values], fontsize=8, padding=1)
    axes.set_xticks(places, [f"{count:,}" for count in LISTS])
    axes.set_xlabel("names to choose from")
    axes.set_ylim(0, 1.4)
    axes.set_yticks([0, 0.5, 1])
    axes.set_title(f"a drawing of a {numbers['lists']['name']}")
    axes.set_ylabel("probability of its name")
    axes.legend(fontsize=8, loc="upper right")


def _distribution(axes: Axes, numbers: dict[str, dict]) -> None:
    """Probabilities of right and of wrong names."""
    histogram = numbers["pairs"][STYLES[0]]["bayes"]["histogram"]
    edges = torch.tensor(histogram["edges"]).double().numpy()
    for which, shade in (("wrong", "plain"), ("right", "bayes")):
        count = torch.tensor(histogram[which]).double()
        share = (count / count.sum()).numpy()
        axes.stairs(share, edges, fill=True, color=colour(shade), alpha=0.6, label=f"{which} names")
    axes.axvline(math.log10(0.5), color=colour("temperature"), linewidth=1.2, label="0.5")
    axes.set_xlim(-8, 0.1)
    axes.set_xticks(range(-8, 1, 2), ["10⁻⁸", "10⁻⁶", "10⁻⁴", "0.01", "1"])
    axes.set_xlabel("label_probs")
    axes.set_ylabel("share of the pairs")
    axes.set_ylim(0, 0.32)
    axes.set_title("new drawings, every name")
    axes.legend(fontsize=8, loc="upper left", ncols=3, handlelength=1.2, columnspacing=1)


def _calibration(axes: Axes, numbers: dict[str, dict]) -> None:
    """What is stated, against how often it is so."""
    axes.plot([0, 1], [0, 1], color=colour("muted"), linewidth=1, linestyle=":")
    for method, shade, marker, label in (
        ("plain", "plain", "o", "plain sigmoid"),
        ("bayes", "bayes", "D", "label_probs"),
    ):
        bins = [each for each in numbers["pairs"][STYLES[0]][method]["bins"] if each["pairs"]]
        stated, true = [each["mean"] for each in bins], [each["right"] / each["pairs"] for each in bins]
        axes.plot(stated, true, marker=marker, color=colour(shade), label=label)
    axes.set_xlabel("stated probability")
    axes.set_ylabel("share of the pairs that are right")
    axes.set_title("is it true?")
    axes.legend(fontsize=8, loc="upper left")


if __name__ == "__main__":
    main()
