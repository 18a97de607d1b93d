"""`vlm.stream` from image files to probabilities, against a plain loop: read a batch, encode it, predict."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from bayesvlm.core.features import Features
from bayesvlm.experiments.bench.generated import make_images, save_random
from bayesvlm.experiments.bench.measured import Fact, Measured, Plan, compared
from bayesvlm.experiments.bench.turns import take_turns
from bayesvlm.vlm import BayesVLM

REFERENCE = "one thing after another"
_CLASSES = 100


def measure(plan: Plan) -> Measured:
    """With a small encoder where there is no GPU, so that reading files is a part of the work worth hiding."""
    shape = "tiny" if plan.quick else "ViT-B/32" if plan.cuda else "ViT-Ti/32"
    count, batch = (40, 16) if plan.quick else (20_000 if plan.cuda else 1_000, 64)
    with tempfile.TemporaryDirectory() as scratch:
        paths = make_images(Path(scratch) / "images", count, min(count, 500))
        vlm = fitted(save_random(Path(scratch) / "model", shape), plan.device)
        classes = vlm.text_features([f"a photo of thing {number}" for number in range(_CLASSES)], progress=False)
        runs = {
            REFERENCE: lambda: one_after_another(vlm, paths, classes, batch),
            "ours": lambda: streamed(vlm, paths, classes, batch),
        }
        seconds = take_turns(runs, plan.device, plan.repeats or 3)
        stages = reading_rates(vlm, paths[: min(count, 256)], batch)
    ways = compared(seconds, REFERENCE, dict.fromkeys(seconds, float(count)))
    return Measured(
        REFERENCE, "image", {"model": shape, "images": count, "batch size": batch, "classes": _CLASSES}, ways, stages
    )


def fitted(folder: Path, device: str, pairs: int = 1_000) -> BayesVLM:
    """The model with the posterior of random activations, which costs what any other does."""
    vlm = BayesVLM.from_pretrained(folder, device=device)
    generator = torch.Generator().manual_seed(0)
    widths = vlm.image.activation_width, vlm.text.activation_width
    images, texts = (Features(torch.randn(pairs, width, generator=generator).to(device)) for width in widths)
    return vlm.fit([(images, texts)], progress=False)


def one_after_another(vlm: BayesVLM, paths: Sequence[Path], classes: Features, batch_size: int) -> Tensor:  # [N, C]
    """The loop that everybody writes first."""
    adapter, found = vlm.encoder("images"), []
    for start in range(0, len(paths), batch_size):
        images = [adapter.read_image(path) for path in paths[start : start + batch_size]]
        features = adapter.encode_pixels(adapter.preprocessor.to_pixels(images))
        found.append(vlm.classify(features, classes).probs.cpu())
    return torch.cat(found)


def streamed(vlm: BayesVLM, paths: Sequence[Path], classes: Features, batch_size: int) -> Tensor:  # [N, C]
    """The same by `vlm.stream`."""
    predictions = vlm.stream(paths, classes, batch_size=batch_size, strict=True)
    return torch.cat([prediction.probs.cpu() for prediction in predictions])


def reading_rates(vlm: BayesVLM, paths: Sequence[Path], batch_size: int) -> dict[str, Fact]:
    """Images that one core decodes, and makes ready for the encoder, per second of processor time."""
    adapter = vlm.encoder("images")
    started = time.process_time()
    images = [adapter.read_image(path) for path in paths]
    decoded = time.process_time()
    for start in range(0, len(images), batch_size):
        adapter.preprocessor.to_pixels(images[start : start + batch_size])
    ready = time.process_time()
    return {
        "decoded_per_core_second": len(paths) / max(decoded - started, 1e-9),
        "made_ready_per_core_second": len(paths) / max(ready - decoded, 1e-9),
    }
