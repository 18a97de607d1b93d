"""Epistemic without draws against epistemic by draws, for docs/unknown.md.

    python docs/figures/unknown_epistemic.py       # ten minutes; unknown-epistemic.json

The form was chosen on emoji-clip-colour (which p to expand at, and how to keep it below the entropy), and the two other
models judge it. Of every set 500 images; 512 draws are the reference, and 128, the default, are judged by it as well.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from scipy.stats import spearmanr
from torch import Tensor
from unknown_data import KNOWN, MODELS, SEVEN, Seen

from bayesvlm import Features
from bayesvlm.core.predict import entropy, monte_carlo
from bayesvlm.evaluation import auroc

HERE = Path(__file__).parent
IMAGES, DRAWS, REFERENCE = 500, 128, 512
OUT = ("unseen-concepts", "flags")


def main() -> None:
    path = HERE / "unknown-epistemic.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for name in MODELS:
        if name not in found:
            found[name] = measure(Seen(name))
            path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def measure(seen: Seen) -> dict[str, dict[str, dict[str, float]]]:
    """By set and way: rank correlation with the reference, mean over its mean; and AUROCs of unfamiliar images."""
    ranks: dict[str, dict[str, dict[str, float]]] = {}
    scores: dict[str, dict[str, Tensor]] = {}
    for name in (*SEVEN, *(f"{out}, known names" for out in OUT)):
        of = seen.set(name.split(",")[0])
        rows = torch.randperm(len(of.images), generator=torch.Generator().manual_seed(0))[:IMAGES]
        classes = seen.known.classes if "known names" in name else of.classes
        ways = all_ways(seen, of.images[rows], classes)
        scores[name] = ways
        reference = ways[f"{REFERENCE} draws"]
        ranks[name] = {
            way: {
                "correlation": float(spearmanr(values, reference).statistic),
                "ratio": float(values.mean() / reference.mean()),
            }
            for way, values in ways.items()
            if values is not reference
        }
        print(seen.name, name, ranks[name], flush=True)
    for out in OUT:
        for way, familiar in scores[KNOWN].items():
            both = torch.cat([familiar, scores[f"{out}, known names"][way]])
            outside = torch.arange(len(both)) >= len(familiar)
            ranks[f"{out}, known names"].setdefault(way, {})["auroc"] = auroc(both, outside)
    return ranks


def all_ways(seen: Seen, images: Features, classes: Features) -> dict[str, Tensor]:  # [N] each
    """The mutual information by draws and without; and, beside them, the entropy of the prediction."""
    vlm = seen.vlm
    inputs = vlm.posterior["image"], images, vlm.posterior["text"], classes, vlm.scale
    return {
        f"{REFERENCE} draws": monte_carlo(*inputs, REFERENCE, seed=1).epistemic.double(),
        f"{DRAWS} draws": monte_carlo(*inputs, DRAWS, seed=0).epistemic.double(),
        "no draws": vlm.expanded_epistemic(images, classes),
        "entropy": entropy(vlm.classify(images, classes).probs.double()),
    }


if __name__ == "__main__":
    main()
