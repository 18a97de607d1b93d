"""`bayesvlm.serving.pipeline` against transformers' own, one image a call, with the same labels in every call.

    python benchmarks/pipeline.py

Both are made from the same folder and take turns, a block of images each, in one process; ours answers with all its
keys, `std`, `interval` and `epistemic` among them. The first call, in which ours encodes the labels and draws the text
projection, is counted with the rest and printed by itself. Then how far the scores are apart, plain mode against
transformers', which is told to load the weights in float32 as ours are: by itself it takes the half precision they are
stored in, which is slower still on a processor. On a GPU the model is a ViT-B/32 with random weights, elsewhere
emoji-clip.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from report import arguments, keep, machine
from transformers import pipeline as transformers_pipeline

from bayesvlm import BayesVLM, world
from bayesvlm.embedded import embedded_model
from bayesvlm.experiments.bench.generated import clouds, save_random
from bayesvlm.serving import pipeline

RANDOM = "ViT-B/32"
TASK = "zero-shot-image-classification"
LONGEST = 25  # characters of a label
Call = Callable[..., Any]


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--labels", type=int, default=1_000)
    parser.add_argument("--turn", type=int, default=20, help="images before the other has its turn")
    parser.add_argument("--model", help=f"an embedded model, a model's folder, or {RANDOM}: random weights")
    options = parser.parse_args()
    name = options.model or (RANDOM if options.device.startswith("cuda") else "emoji-clip")
    with tempfile.TemporaryDirectory() if name == RANDOM else nullcontext() as scratch:
        folder = save_random(Path(scratch) / "model", RANDOM) if scratch else embedded_model(name) or Path(name)
        given, vlm = pictures(options.images), fitted(folder if scratch else name, options.device)
        labels = names(options.labels)
        theirs = transformers_pipeline(TASK, model=str(folder), device=options.device, dtype=torch.float32)
        ours = pipeline(vlm)
        seconds = in_turns({"transformers": theirs, "bayesvlm": ours}, given, labels, options.turn)
        apart = difference(pipeline(vlm, plain=True), theirs, given[:3], labels)
    keys = list(ours(given[0], candidate_labels=labels)[0])
    per_image = {way: sum(each) / len(each) for way, each in seconds.items()}
    ratio = per_image["transformers"] / per_image["bayesvlm"]
    first = seconds["bayesvlm"][0]
    later = statistics.median(seconds["transformers"][1:]) / statistics.median(seconds["bayesvlm"][1:])
    print(f"{name}, {len(given)} images x {len(labels)} labels, one image a call; {machine(options.device)}")
    print(f"transformers {1e3 * per_image['transformers']:.0f} ms an image, ours {1e3 * per_image['bayesvlm']:.0f} ms")
    print(f"{ratio:.1f}x faster, first call ({first:.2f} s) included; {later:.1f}x by the medians of later calls")
    print(f"plain scores differ by at most {apart:.1e}")
    figures = {
        "machine": machine(options.device),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg(),
        "model": name,
        "images": len(given),
        "labels": len(labels),
        "keys": keys,
        "seconds_per_image": per_image,
        "seconds_of_the_first_call": {way: each[0] for way, each in seconds.items()},
        "ratio": ratio,
        "ratio_of_later_calls": later,
        "largest_difference_of_a_plain_score": apart,
    }
    keep(figures, options.out)


def in_turns(
    pipes: dict[str, Call], images: Sequence[Image.Image], labels: list[str], turn: int
) -> dict[str, list[float]]:
    """Seconds of every call. Each was called once before, with other labels."""
    for pipe in pipes.values():
        pipe(images[0], candidate_labels=["this", "that"])
    taken: dict[str, list[float]] = {way: [] for way in pipes}
    for start in range(0, len(images), turn):
        for way, pipe in pipes.items():
            for image in images[start : start + turn]:
                started = time.perf_counter()
                pipe(image, candidate_labels=labels)
                taken[way].append(time.perf_counter() - started)
    return taken


def difference(ours: Call, theirs: Call, images: Sequence[Image.Image], labels: list[str]) -> float:
    """The largest, of all labels of some images."""
    largest = 0.0
    for image in images:
        found, expected = (
            {each["label"]: each["score"] for each in pipe(image, candidate_labels=labels)} for pipe in (ours, theirs)
        )
        largest = max(largest, *(abs(found[label] - expected[label]) for label in labels))
    return largest


def fitted(name: str | Path, device: str) -> BayesVLM:
    """The model with its posterior, which is fitted to a few pictures where none came with it."""
    vlm = BayesVLM.from_pretrained(name, device=device)
    if vlm.fitted:
        return vlm
    return vlm.fit([([clouds(seed) for seed in range(64)], names(64))], progress=False)


def pictures(count: int) -> list[Image.Image]:
    files = world.load("openmoji-colour").images
    return [Image.open(BytesIO(files[number % len(files)])).convert("RGB") for number in range(count)]


def names(count: int) -> list[str]:
    """Names of the embedded drawings, then numbered ones; short ones, as transformers' pipeline truncates no texts."""
    known = [name for name in world.load("openmoji-colour").classes if len(name) <= LONGEST]
    return [*known, *(f"thing {number}" for number in range(max(0, count - len(known))))][:count]


if __name__ == "__main__":
    main()
