"""How fast the embedded models read images: decoded, preprocessed, encoded, on this machine.

    python benchmarks/encode.py

Reads 10,000 images of the world through `BayesVLM.image_features`, as any user's images go, twice.
"""

from __future__ import annotations

import time

import torch
from report import arguments, keep

from bayesvlm.embedded import MODELS
from bayesvlm.vlm import BayesVLM
from bayesvlm_world import load

IMAGES = 10_000


def main() -> None:
    options = arguments(__doc__ or "").parse_args()
    images = list(load("train").images + load("openmoji-colour").images + load("openmoji-black").images)
    images += list(load("emojione-colour").images)
    measured: dict[str, list[float]] = {}
    for name in MODELS:
        vlm = BayesVLM.from_pretrained(name, device=options.device)
        vlm.image_features(images[:256], progress=False)  # warm up
        measured[name] = []
        for _ in range(2):
            started = time.perf_counter()
            vlm.image_features(images[:IMAGES], progress=False)
            measured[name].append(round(time.perf_counter() - started, 1))
        print(f"{name}: {IMAGES:,} images in {measured[name]} s on {torch.get_num_threads()} threads")
    result = {"images": IMAGES, "threads": torch.get_num_threads(), "seconds": measured}
    keep(result, options.out)


if __name__ == "__main__":
    main()
