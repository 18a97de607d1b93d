"""A lab with a tiny model, and a few images of noise in the place of every data set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from bayesvlm import BayesVLM
from bayesvlm.data.cache import FeatureCache
from bayesvlm.testing.tiny import save_tiny_clip
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import Plan

CLASSES = ("cat", "dog", "horse")


def write_world(folder: Path) -> Plan:
    """A model, two labelled sets and one to tune on, 40 pairs to train on and 25 as a proxy.

    Three of four labels are what the model says: some uncertainty is right, and not all there can be.
    """
    save_tiny_clip(folder / "model")
    vlm = BayesVLM.from_pretrained(str(folder / "model"), device="cpu")
    random = np.random.default_rng(0)
    for name in ("first", "second", "validation"):
        for number in range(24):
            image = _noise(random)
            said = int(vlm.plain([image], [f"a photo of a {label}." for label in CLASSES]).argmax())
            place = folder / name / CLASSES[(said + (number % 4 == 0)) % 3]
            place.mkdir(parents=True, exist_ok=True)
            image.save(place / f"{number}.png")
    for name, count in (("training", 40), ("proxy", 25)):
        (folder / name).mkdir()
        for number in range(count):
            _noise(random).save(folder / name / f"{number:02d}.png")
            (folder / name / f"{number:02d}.txt").write_text(f"{CLASSES[number % 3]} number {number}")
    sets = (str(folder / "first"), str(folder / "second"))
    pairs = (str(folder / "training"), str(folder / "proxy"))
    return Plan((str(folder / "model"),), sets, str(folder / "validation"), pairs)


def open_lab(plan: Plan, out: Path) -> Lab:
    """With features beside the results."""
    return Lab(plan, out, FeatureCache(out / "features"), device="cpu")


def _noise(random: np.random.Generator) -> Image.Image:
    return Image.fromarray(random.integers(0, 256, (24, 24, 3), dtype=np.uint8))
