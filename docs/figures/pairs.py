"""The figures of "Fit, once per model" in docs/your-photos.md: `python docs/figures/pairs.py`, two minutes.

How many pairs the posterior needs and how many validation drawings tau does: NLPD on sets that the model was not
trained on, over random choices of the pairs, and of the drawings.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMWarning
from bayesvlm.core.features import Features
from bayesvlm.data import resolve
from bayesvlm.data.cache import FeatureCache
from bayesvlm.evaluation import Estimate, nlpd
from bayesvlm.experiments.feature_store import EncodedSet, FeatureStore
from bayesvlm.vlm import BayesVLM

HERE = Path(__file__).parent
MODEL = "emoji-clip"
SETS = ("new-drawing", "openmoji-black")  # drawings like those for validation, and a style that was never trained on
PAIRS = (97, 388, 1553, 3105, 6211)  # a 64th, a 16th, a quarter, half, all
PAIR_SEEDS = 3
DRAWINGS = (25, 50, 100, 200)
DRAWING_SEEDS = 20


def main() -> None:
    warnings.simplefilter("ignore", BayesVLMWarning)  # of fewer pairs than inputs, which is what is measured
    vlm = BayesVLM.from_pretrained(MODEL, device="cpu")
    store = FeatureStore(vlm, FeatureCache())
    splits = {name: resolve(name).open() for name in ("validation", *SETS)}
    found = {name: store.images(split) for name, split in splits.items()}
    classes = {name: store.texts(list(split.classes)) for name, split in splits.items()}
    held = found.pop("validation"), classes.pop("validation")
    numbers = {
        "pairs": of_pairs(vlm, store.pairs(resolve("train", "pairs").open()), held, found, classes),
        "drawings": of_drawings(vlm, held, found, classes),
    }
    (HERE / "pairs.json").write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")


def of_pairs(
    vlm: BayesVLM,
    pairs: tuple[Features, Features],
    held: tuple[EncodedSet, Features],
    sets: dict[str, EncodedSet],
    classes: dict[str, Features],
) -> dict[str, dict[str, Any]]:
    """NLPD by the number of pairs, tau chosen on all validation drawings each time."""
    images, texts = pairs
    result: dict[str, dict[str, Any]] = {}
    for count in PAIRS:
        scores: dict[str, list[float]] = {name: [] for name in (*SETS, "tau")}
        for seed in range(PAIR_SEEDS if count < len(images) else 1):
            rows = shuffled(len(images), seed)[:count]
            fitted = vlm.without_posterior().fit([(images[rows], texts[rows])], progress=False)
            fitted.tune(held[0].features, held[0].labels, held[1], progress=False)
            for name in SETS:
                scores[name].append(measured(fitted, sets[name], classes[name]))
            scores["tau"].append(fitted.tau)
        result[str(count)] = scores
        said = (f"{name} {Estimate.of(torch.tensor(values))}" for name, values in scores.items())
        print(count, "pairs:", ", ".join(said), flush=True)
    return result


def of_drawings(
    vlm: BayesVLM, held: tuple[EncodedSet, Features], sets: dict[str, EncodedSet], classes: dict[str, Features]
) -> dict[str, dict[str, Any]]:
    """How much the NLPD is above that of a tau from all validation drawings, by the number of them that chose it."""
    seen, prompts = held

    def chosen(rows: Tensor) -> dict[str, float]:
        tuned = vlm.copy().tune(seen.features[rows], seen.labels[rows], prompts, progress=False)
        return {"tau": tuned.tau, **{name: measured(tuned, sets[name], classes[name]) for name in SETS}}

    all_of_them = chosen(torch.arange(len(seen.labels)))
    result: dict[str, dict[str, Any]] = {str(len(seen.labels)): all_of_them}
    for count in DRAWINGS:
        scores = [chosen(shuffled(len(seen.labels), seed)[:count]) for seed in range(DRAWING_SEEDS)]
        above = {name: [score[name] - all_of_them[name] for score in scores] for name in SETS}
        result[str(count)] = {"above": above, "tau": [score["tau"] for score in scores]}
        said = (f"{name} {sum(of) / len(of):+.4f} ({min(of):+.4f} to {max(of):+.4f})" for name, of in above.items())
        print(count, "drawings:", ", ".join(said), flush=True)
    return result


def shuffled(count: int, seed: int) -> Tensor:  # [count]
    """The same order whatever is taken of it, so that smaller choices are parts of larger ones."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def measured(vlm: BayesVLM, data: EncodedSet, classes: Features) -> float:
    """NLPD of the Bayesian prediction."""
    return nlpd(vlm.classify(data.features, classes).probs.cpu(), data.labels).value


if __name__ == "__main__":
    main()
