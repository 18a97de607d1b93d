"""Features of a folder of images from the cache, against encoding them again.

The cached way is a whole call as the next command makes it: the model's weights and the files are hashed to find the
entry, and its rows are read.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from bayesvlm.core.features import Features
from bayesvlm.data.cache import FeatureCache
from bayesvlm.data.labelled.folders import ImageFolder
from bayesvlm.experiments.bench.generated import make_images, save_random
from bayesvlm.experiments.bench.measured import Measured, Plan, compared
from bayesvlm.experiments.bench.turns import take_turns
from bayesvlm.experiments.feature_store import FeatureStore
from bayesvlm.vlm import BayesVLM

REFERENCE = "encoded again"


def measure(plan: Plan) -> Measured:
    """With a small encoder where there is no GPU, which makes it harder for the cache."""
    shape = "tiny" if plan.quick else "ViT-B/32" if plan.cuda else "ViT-Ti/32"
    count = 24 if plan.quick else 5_000 if plan.cuda else 500
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "images"
        for name in ("clouds", "the same clouds"):  # a labelled set has two classes
            make_images(folder / name, count // 2)
        vlm = BayesVLM.from_pretrained(save_random(Path(scratch) / "model", shape), device=plan.device)
        cache = FeatureCache(Path(scratch) / "cache")
        fresh = features(vlm, folder, None)
        difference = float((features(vlm, folder, cache).activations - fresh.activations).abs().max())
        runs = {
            REFERENCE: lambda: features(vlm, folder, None),
            "ours": lambda: features(vlm, folder, cache),
        }
        seconds = take_turns(runs, plan.device, plan.repeats or 3)
    ways = compared(seconds, REFERENCE, dict.fromkeys(seconds, float(count)))
    return Measured(REFERENCE, "image", {"model": shape, "images": count}, ways, {"largest_difference": difference})


def features(vlm: BayesVLM, folder: Path, cache: FeatureCache | None) -> Features:
    """Features of a folder's images, every row of them looked at."""
    found = FeatureStore(vlm, cache).images(ImageFolder.open(folder)).features
    found.activations.sum().item()  # what is mapped from the disk is read now
    return found
