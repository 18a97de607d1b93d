"""An exported model in onnxruntime against torch eager, one image at a time, in turns on the same cores.

    python benchmarks/export.py

Torch answers with the probabilities alone: the image tower as the model has it, and `vlm.head(classes).probs`. The file
answers with the mean, the standard deviation and the entropy as well. ViT-B/32 has random weights and a random
posterior.
"""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from report import arguments, keep, machine, median_seconds
from torch import Tensor

from bayesvlm import BayesVLM, Features
from bayesvlm.serving import export_model
from bayesvlm.testing.tiny import VIT_B_32, save_tiny_clip

VIT = "ViT-B/32, random"
MODELS = ("emoji-clip", "emoji-siglip", VIT)
CLASSES = 100


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--batches", nargs="*", type=int, default=[1, 32])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=101)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{machine('cpu')}, {options.threads} threads, {CLASSES} classes, onnxruntime {onnxruntime.__version__}")
    found = {}
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = measured(name, Path(folder), options)
        gc.collect()
    figures = {"machine": machine("cpu"), "threads": options.threads, "onnxruntime": onnxruntime.__version__}
    keep({**figures, "classes": CLASSES, "repeats": options.repeats, "models": found}, options.out)


@torch.inference_mode()
def measured(name: str, folder: Path, options: Any) -> dict[str, Any]:
    """Milliseconds of both, batch by batch, their ratio, and the largest difference of a probability."""
    vlm = random_vit(folder / "vit") if name == VIT else BayesVLM.from_pretrained(name, device="cpu")
    classes = draw(vlm.text.activation_width, rows=CLASSES)
    export_model(vlm, Features(classes), folder / "model.onnx", progress=False)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    # Threads that spin between calls would be in torch's way, whose turn it is then.
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), settings, providers=["CPUExecutionProvider"])
    tower, head = vlm.encoder("images").image_tower(), vlm.head(Features(classes))
    shape = vlm.encoder("images").preprocessor.blank["pixel_values"].shape[1:]
    lines: dict[str, Any] = {}
    for batch in options.batches:
        pixels = draw(*shape, rows=batch)
        given = {"pixel_values": pixels.numpy()}
        runs = {
            "torch": lambda pixels=pixels: head.probs(*tower(pixels)),
            "onnxruntime": lambda given=given: session.run(None, given),
        }
        error = float((runs["torch"]() - torch.from_numpy(runs["onnxruntime"]()[0])).abs().max())
        repeats = options.repeats if batch == 1 else max(3, options.repeats // 10)
        seconds = median_seconds(runs, "cpu", repeats)
        ratio = seconds["onnxruntime"] / seconds["torch"]
        milliseconds = {way: 1e3 * each for way, each in seconds.items()}
        lines[str(batch)] = {"milliseconds": milliseconds, "ratio": ratio, "difference": error}
        said = ", ".join(f"{way} {each:.2f} ms" for way, each in milliseconds.items())
        print(f"{name:<17} batch {batch:>2}: {said}, ratio {ratio:.2f}; probabilities within {error:.0e}", flush=True)
    return lines


def random_vit(folder: Path) -> BayesVLM:
    """Of the published shape, its posterior from random activations."""
    save_tiny_clip(folder, image_size=224, vision=VIT_B_32, projection_dim=512)
    vlm = BayesVLM.from_pretrained(folder, device="cpu")
    pair = (Features(draw(width, rows=256)) for width in (vlm.image.activation_width, vlm.text.activation_width))
    return vlm.fit([tuple(pair)], progress=False).replace(tau=1.0, lam={"image": 200.0, "text": 200.0})  # type: ignore[list-item]


def draw(*shape: int, rows: int) -> Tensor:
    return torch.randn(rows, *shape, generator=torch.Generator().manual_seed(0))


if __name__ == "__main__":
    main()
