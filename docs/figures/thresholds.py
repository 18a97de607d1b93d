"""Fitted thresholds against 0.5, the plain sigmoid against the posterior's label_probs: a table of docs/probability.md.

Images show one drawing each, at a random place, size and brightness: of one of sixteen labels, or, as often, of
something else. They are drawn independently, so that images to fit on and to measure on are of one kind; a second kind
has black outlines, which the model knows less well, to see what becomes of a promise made for other images.

    python docs/figures/thresholds.py            # about two minutes; thresholds.json, and the table
"""

from __future__ import annotations

import json
from collections import defaultdict
from io import BytesIO
from pathlib import Path

import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from bayesvlm import BayesVLM, Features, world
from bayesvlm.safety.precision import NEVER, precision_thresholds

HERE = Path(__file__).parent
KINDS = {
    "colour": ("emojione-colour", "openmoji-colour", "validation", "new-drawing"),
    "black outlines": ("emojione-black", "openmoji-black"),
}
LABELS, IMAGES, FITTED, SPLITS, PRECISION, CONFIDENCE = 16, 4000, 2000, 20, 0.9, 0.95


def main() -> None:
    vlm = BayesVLM.from_pretrained("emoji-siglip", device="cpu")
    drawings = {kind: by_concept(splits) for kind, splits in KINDS.items()}
    both = [concept for concept in drawings["colour"] if concept in drawings["black outlines"]]
    labels = both[:: len(both) // LABELS][:LABELS]
    classes = vlm.class_features(labels)
    scores: dict[str, dict[str, Tensor]] = {}
    carried = {}
    for seed, (kind, found) in enumerate(drawings.items()):
        images, carried[kind] = sample(found, labels, IMAGES, torch.Generator().manual_seed(seed))
        features = vlm.image_features(images, progress=False)
        scores[kind] = both_scores(vlm, features, classes)
    results = {method: measure(method, scores, carried) for method in ("plain", "bayes")}
    apart, truth = sample(drawings["colour"], labels, FITTED, torch.Generator().manual_seed(2), beside=True)
    found = precision_thresholds(vlm.head(classes).label_probs(vlm.image_features(apart)), truth, PRECISION, None)
    two = float(found.correct.sum() / found.positives.sum())
    content = {"model": "emoji-siglip", "labels": labels, "images": IMAGES, "fitted_on": FITTED, "splits": SPLITS}
    content |= {"precision": PRECISION, "confidence": CONFIDENCE, "results": results}
    content["recall of two drawings side by side"] = two
    (HERE / "thresholds.json").write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    print(table(results), f"Two drawings side by side: recall {two:.3f} at a precision of {PRECISION}", sep="\n")


def by_concept(splits: tuple[str, ...]) -> dict[str, list[bytes]]:
    """The drawings of each concept."""
    found = defaultdict(list)
    for split in map(world.load, splits):
        for image, label in zip(split.images, split.labels, strict=True):
            found[split.classes[label]].append(image)
    return dict(sorted(found.items()))


def sample(
    drawings: dict[str, list[bytes]],
    labels: list[str],
    count: int,
    generator: torch.Generator,
    beside: bool = False,
) -> tuple[list[Image.Image], Tensor]:
    """Images of the labels and of other concepts, half and half, and which labels they carry, [N, C].

    Args:
        beside: each image has two of them, side by side.
    """
    others = [concept for concept in drawings if concept not in labels]
    images, carried = [], torch.zeros(count, len(labels), dtype=torch.bool)
    for row in range(count):
        shown = []
        for _ in range(1 + beside):
            kind, which, drawing, size, left, top, light = torch.rand(7, generator=generator).tolist()
            if kind < 0.5:
                carried[row, place := int(which * len(labels))] = True
                concept = labels[place]
            else:
                concept = others[int(which * len(others))]
            choice = drawings[concept][int(drawing * len(drawings[concept]))]
            shown.append(placed(Image.open(BytesIO(choice)).convert("RGB"), size, left, top, light))
        images.append(pair(*shown) if beside else shown[0])
    return images, carried


def pair(one: Image.Image, other: Image.Image) -> Image.Image:
    canvas = Image.new("RGB", (2 * one.width, 2 * one.height), "white")
    canvas.paste(one, (0, one.height // 2))
    canvas.paste(other, (one.width, one.height // 2))
    return canvas


def placed(drawing: Image.Image, size: float, left: float, top: float, light: float) -> Image.Image:
    """A drawing on white, of 60 to 100 % of the width, 80 to 120 % as bright."""
    side = round(drawing.width * (0.6 + 0.4 * size))
    canvas = Image.new("RGB", drawing.size, "white")
    room = drawing.width - side
    small = drawing.resize((side, side), Image.Resampling.BICUBIC)
    canvas.paste(ImageEnhance.Brightness(small).enhance(0.8 + 0.4 * light), (round(room * left), round(room * top)))
    return canvas


def both_scores(vlm: BayesVLM, features: Features, classes: Features) -> dict[str, Tensor]:
    """The probability of each label by itself, [N, C], without and with the posterior."""
    return {
        "plain": vlm.plain_head(classes).label_probs(features),
        "bayes": vlm.head(classes).label_probs(features),
    }


def measure(method: str, scores: dict[str, dict[str, Tensor]], carried: dict[str, Tensor]) -> dict[str, dict]:
    """Precision and recall over all labels of each way to choose thresholds, means over random halves."""
    generator, totals = torch.Generator().manual_seed(0), defaultdict(lambda: defaultdict(list))
    own = next(iter(scores))
    for _ in range(SPLITS):
        order = torch.randperm(IMAGES, generator=generator)
        fit, rest = order[:FITTED], order[FITTED:]
        given = scores[own][method][fit], carried[own][fit]
        chosen = {
            "0.5 for all": torch.full((LABELS,), 0.5).double(),
            "precision on the images": precision_thresholds(*given, PRECISION, None).thresholds,
            "with confidence": precision_thresholds(*given, PRECISION, CONFIDENCE).thresholds,
        }
        for way, thresholds in chosen.items():
            for kind in scores:
                rows = rest if kind == own else torch.arange(IMAGES)
                flags, truth = scores[kind][method][rows].double() >= thresholds, carried[kind][rows]
                entry = totals[f"{way}, {kind}"]
                entry["precision"].append(float((flags & truth).sum() / flags.sum()))
                entry["recall"].append(float((flags & truth).sum() / truth.sum()))
                each = (flags & truth).sum(dim=0) / flags.sum(dim=0)
                entry["labels below"].append(int((each < PRECISION).sum()))
                entry["labels with a threshold"].append(int((thresholds < NEVER).sum()))
                entry["median threshold"].append(float(thresholds[thresholds < NEVER].median()))
    return {way: {name: sum(values) / SPLITS for name, values in entry.items()} for way, entry in totals.items()}


def table(results: dict[str, dict[str, dict]]) -> str:
    lines = ["| measured on | thresholds | plain sigmoid | `label_probs` |", "|---|---|---|---|"]
    for kind in KINDS:
        for way in ("0.5 for all", "precision on the images", "with confidence"):
            cells = []
            for method in ("plain", "bayes"):
                found = results[method][f"{way}, {kind}"]
                cells.append(
                    f"{found['precision']:.3f} / {found['recall']:.3f}, {found['labels below']:.1f} of "
                    f"{found['labels with a threshold']:.1f}; median {found['median threshold']:.3f}"
                )
            lines.append(f"| {kind} | {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
