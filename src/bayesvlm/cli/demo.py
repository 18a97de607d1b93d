"""`bayesvlm demo`: the main job end to end, on a model and pairs made on the spot."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesvlm.cli.options import Json
from bayesvlm.cli.output import emit, remark, table

if TYPE_CHECKING:
    from PIL import Image

COLOURS = ("red", "green", "blue", "yellow", "purple", "orange")
SHAPES = ("circle", "square", "triangle", "cross")


def demo(
    pairs: Annotated[int, typer.Option(min=2, help="Generated image-text pairs to fit on.")] = 480,
    seed: Annotated[int, typer.Option(help="Of the random weights and the drawings.")] = 0,
    as_json: Json = False,
) -> None:
    """Fit, tune, save, load and classify end to end on a tiny RANDOM model with generated pairs.

    It shows that everything works and what the calls look like. The weights were never trained, so the accuracy is
    that of guessing: nothing here says how good the method is.

    Example:

        bayesvlm demo
    """
    from bayesvlm.models.tiny import save_tiny_clip
    from bayesvlm.vlm import BayesVLM

    started = time.perf_counter()
    remark("A tiny CLIP with RANDOM weights and drawings of coloured shapes, both made on the spot:")
    remark("this runs the whole path, but the model was never trained and can only guess.\n")
    classes = [f"a {colour} {shape}" for colour in COLOURS for shape in SHAPES]
    images, labels = _drawings(pairs + 240, seed)
    with tempfile.TemporaryDirectory() as folder:
        model = save_tiny_clip(Path(folder) / "tiny-clip", seed=seed)
        vlm = BayesVLM.from_pretrained(model, device="cpu")
        remark(f"1. fit      {pairs} pairs, one pass, both towers")
        texts = [classes[label] for label in labels[:pairs]]
        vlm.fit([(images[:pairs], texts)], negatives=pairs, provenance={"source": "generated shapes"}, progress=False)
        remark("2. tune     tau by NLPD on 120 more drawings, lam by the evidence")
        validation, held_out = slice(pairs, pairs + 120), slice(pairs + 120, None)
        grid = vlm.tune(images[validation], labels[validation], classes)
        if grid.at_edge:
            remark(
                f"            the best tau, {grid.best.tau:g}, is an end of the grid: random weights deserve no trust"
            )
        remark("3. save     safetensors + json + model card; load it back, checked against the model's weights")
        vlm = BayesVLM.from_pretrained(vlm.save_pretrained(Path(folder) / "posterior"), device="cpu")
        remark("4. classify 120 held-out drawings, plain and Bayesian\n")
        result = _compare(vlm, images[held_out], labels[held_out], classes)
    result |= {"tau": grid.best.tau, "lam": vlm.lam, "pairs": pairs, "trained": False}
    rows = [[name, *(f"{result[name][metric]:.4f}" for metric in ("accuracy", "nlpd"))] for name in ("plain", "bayes")]
    text: list[Any] = [
        table("120 drawings, 24 classes", ["", "accuracy", "NLPD"], rows),
        f"guessing: accuracy {1 / len(classes):.4f}, NLPD {result['guessing_nlpd']:.4f}",
        f"tau = {grid.best.tau:.4g}, lam = {vlm.lam['image']:.4g} (image), {vlm.lam['text']:.4g} (text)",
        f"one drawing of {result['example']['truth']!r}: {result['example']['says']}",
        f"done in {time.perf_counter() - started:.1f} s. Next:",
        "  bayesvlm fit openai/clip-vit-base-patch32 PAIRS --out posterior/",
        "  bayesvlm tune posterior/ VALIDATION",
        "  bayesvlm classify posterior/ IMAGES --classes 'cat,dog'",
    ]
    emit(result, text, as_json)


def _compare(vlm: Any, images: list[Image.Image], labels: list[int], classes: list[str]) -> dict[str, Any]:
    import math

    import torch

    truth = torch.tensor(labels)
    bayes = vlm.classify(images, classes)
    result: dict[str, Any] = {"guessing_nlpd": math.log(len(classes))}
    for name, probs in (("plain", vlm.plain(images, classes)), ("bayes", bayes.probs)):
        chosen = probs[torch.arange(len(truth)), truth]
        accuracy = float((probs.argmax(dim=1) == truth).double().mean())
        result[name] = {"accuracy": accuracy, "nlpd": -float(chosen.clamp_min(1e-38).double().log().mean())}
    best = int(bayes.labels[0])
    low, high = (float(bound[0, best]) for bound in bayes.moments.interval(0.95))
    says = (
        f"{classes[best]!r} with probability {float(bayes.probs[0, best]):.3f}, cosine "
        f"{float(bayes.mean[0, best]):.3f} (95 %: {low:.3f} to {high:.3f}), "
        f"{float(bayes.epistemic[0]):.2f} of {float(bayes.total[0]):.2f} nats of its uncertainty epistemic"
    )
    result["example"] = {"truth": classes[labels[0]], "says": says}
    return result


def _drawings(count: int, seed: int) -> tuple[list[Image.Image], list[int]]:
    """Coloured shapes on noisy grey, and the index of each one's class."""
    import numpy as np
    from PIL import Image, ImageDraw

    random = np.random.default_rng(seed)
    images, labels = [], []
    for label in random.integers(len(COLOURS) * len(SHAPES), size=count).tolist():
        colour, shape = COLOURS[label // len(SHAPES)], SHAPES[label % len(SHAPES)]
        image = Image.fromarray(random.integers(150, 256, size=(48, 48, 3), dtype=np.uint8))
        draw = ImageDraw.Draw(image)
        x, y = random.integers(14, 34, size=2).tolist()
        r = int(random.integers(8, 14))
        if shape == "circle":
            draw.ellipse((x - r, y - r, x + r, y + r), fill=colour)
        elif shape == "square":
            draw.rectangle((x - r, y - r, x + r, y + r), fill=colour)
        elif shape == "triangle":
            draw.polygon(((x, y - r), (x - r, y + r), (x + r, y + r)), fill=colour)
        else:
            draw.line((x - r, y, x + r, y), fill=colour, width=5)
            draw.line((x, y - r, x, y + r), fill=colour, width=5)
        images.append(image)
        labels.append(label)
    return images, labels
