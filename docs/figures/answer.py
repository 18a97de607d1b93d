"""The picture of the README: what plain CLIP and the posterior say about three drawings, from familiar to strange."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from PIL import Image

from bayesvlm import BayesVLM, Features, world
from bayesvlm.report import save_png
from bayesvlm.report.plots import new_figure
from bayesvlm.report.theme import drawing_style

HERE = Path(__file__).parent
SHOWN = (
    ("new-drawing", "a new drawing, seen style"),
    ("openmoji-black", "a style never trained on"),
    ("flags", "none of the names is right"),
)
BEST = 4
PLAIN, BAYES, RANGE = "#9aa5b1", "#2f6fb5", "#d9822b"


def main() -> None:
    vlm = BayesVLM.from_pretrained("emoji-clip", device="cpu")
    names = list(world.load("new-drawing").classes)
    classes = vlm.text_features(names)
    with drawing_style():
        figure = new_figure(10.6, 4.3)
        for part, (split, title) in zip(figure.subfigures(1, 3), SHOWN, strict=True):
            _panel(part, vlm, _typical(vlm, split, classes), title, names, classes)
        save_png(figure, HERE / "answer.png")


def _typical(vlm: BayesVLM, split: str, classes: Features) -> bytes:
    """The drawing whose entropy is the median of its split's: chosen by rule, not by hand."""
    images = world.load(split).images[:300]
    entropy = vlm.classify(list(images), classes, progress=False).entropy
    return images[int(entropy.argsort()[len(images) // 2])]


def _panel(figure: SubFigure, vlm: BayesVLM, image: bytes, title: str, names: list[str], classes: Features) -> None:
    grid = figure.add_gridspec(2, 2, width_ratios=[0.7, 1.3])
    prediction = vlm.classify(image, classes)
    plain = vlm.plain(image, classes)[0]
    top = prediction.probs[0].topk(BEST).indices.tolist()
    low, high = prediction.moments.interval(0.95)
    shown = figure.add_subplot(grid[0, 0])
    shown.imshow(Image.open(BytesIO(image)).convert("RGB").resize((256, 256), Image.Resampling.LANCZOS))
    shown.set_axis_off()
    figure.suptitle(title, fontsize=10, x=0.03, ha="left", fontweight="bold")
    bars = figure.add_subplot(grid[0, 1])
    places = torch.arange(BEST).double().numpy()
    bars.barh(places - 0.2, [float(plain[k]) for k in top], 0.38, color=PLAIN, label="plain CLIP")
    bars.barh(places + 0.2, [float(prediction.probs[0, k]) for k in top], 0.38, color=BAYES, label="BayesVLM")
    bars.set_xlim(0, 1)
    _names(bars, places, [names[k] for k in top])
    bars.set_xlabel("probability", fontsize=8)
    if title == SHOWN[0][1]:
        bars.legend(fontsize=7, frameon=False, loc="lower right")
    split = figure.add_subplot(grid[1, 0])
    split.bar([0], [float(prediction.aleatoric[0])], 0.5, color=PLAIN)
    split.bar([0], [float(prediction.epistemic[0])], 0.5, bottom=[float(prediction.aleatoric[0])], color=RANGE)
    split.set_xlim(-0.8, 0.8)
    split.set_ylim(0, 7.4)
    split.set_xticks([0], ["entropy"])
    split.set_ylabel("nats", fontsize=8)
    split.tick_params(labelsize=8)
    if title == SHOWN[0][1]:
        split.text(0.0, 6.6, "epistemic", color=RANGE, fontsize=7, ha="center")
        split.text(0.0, 5.8, "aleatoric", color=PLAIN, fontsize=7, ha="center")
    cosines = figure.add_subplot(grid[1, 1])
    for place, k in zip(places, top, strict=True):
        cosines.plot([float(low[0, k]), float(high[0, k])], [place, place], color=RANGE, linewidth=3, alpha=0.6)
        cosines.plot([float(prediction.mean[0, k])], [place], "o", color=BAYES, markersize=4)
    _names(cosines, places, [names[k] for k in top])
    cosines.set_xlim(0, 0.7)
    cosines.set_xlabel("cosine, 95 % interval", fontsize=8)


def _names(axes: Axes, places: object, names: list[str]) -> None:
    axes.set_yticks(places, [name if len(name) < 19 else f"{name[:17]}..." for name in names], fontsize=7)
    axes.invert_yaxis()
    axes.tick_params(axis="x", labelsize=8)


if __name__ == "__main__":
    main()
