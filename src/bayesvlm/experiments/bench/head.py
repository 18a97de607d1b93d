"""`vlm.head(classes)` against plain cosine softmax: what the posterior adds to a prediction, from activations on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bayesvlm.core.features import Features
from bayesvlm.experiments.bench.measured import Comparison, Measured, Plan
from bayesvlm.experiments.bench.turns import take_turns
from bayesvlm.vlm import BayesVLM

SCALE = 100.0
REFERENCE = "plain cosine softmax"


def measure(plan: Plan) -> Measured:
    """Of many images at once, and of one image at a time."""
    d, p, classes, images, calls = (16, 24, 10, 50, 5) if plan.quick else (512, 768, 1_000, 10_000, 200)
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(plan.device)

    weight, pairs = draw(d, p) / math.sqrt(p), 4 * p
    vlm = BayesVLM.from_projections(weight, draw(d, d) / math.sqrt(d), math.log(SCALE))
    vlm.fit([(Features(draw(pairs, p)), Features(draw(pairs, d)))], progress=False)
    names = Features(draw(classes, d))
    activations = draw(images, p)
    head, plain = vlm.head(names).probs, plain_head(weight, vlm.embed_texts(names).mean)
    exact = vlm.classify(Features(activations[:100]), names).probs
    ways: dict[str, Comparison] = {}
    for what, given, times in (("all images at once", activations, 1), ("one image", activations[:1], calls)):
        runs = {REFERENCE: _again(plain, given, times), "ours": _again(head, given, times)}
        with torch.inference_mode():
            seconds = take_turns(runs, plan.device, plan.repeats or 15)
        each = {way: [turn / len(given) / times for turn in turns] for way, turns in seconds.items()}
        ways[what] = Comparison(each["ours"], each[REFERENCE])
    return Measured(
        REFERENCE,
        "image",
        {"images": images, "classes": classes, "d": d, "p": p},
        ways,
        {"largest_difference_to_classify": float((head(activations[:100]) - exact).abs().max())},
    )


def plain_head(weight: Tensor, classes: Tensor) -> Callable[[Tensor], Tensor]:  # [d, p], [C, d]
    """Project, normalise, multiply, softmax: from activations [N, p] to probabilities [N, C]."""
    unit = SCALE * functional.normalize(classes, dim=1).T

    def probs(activations: Tensor) -> Tensor:
        return torch.softmax(functional.normalize(activations @ weight.T, dim=1) @ unit, dim=1)

    return probs


def _again(call: Callable[[Tensor], Tensor], given: Tensor, times: int) -> Callable[[], Any]:
    """So many calls: one alone is shorter than a clock can say."""

    def run() -> None:
        for _ in range(times):
            call(given)

    return run
