"""`bayesvlm classify`: calibrated probabilities for images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from bayesvlm.cli.options import Device, Json, Model, StrictPosterior, Template
from bayesvlm.cli.output import emit, remark, table

if TYPE_CHECKING:
    from bayesvlm.core.predict import Prediction

_NATS = ("entropy", "epistemic", "aleatoric")
_SPLIT = "entropy = epistemic + aleatoric, in nats: draws of the parameters say which share of it is which"


def classify(
    posterior: Annotated[
        str, typer.Argument(help="A saved posterior (folder or Hub id), or a model that brings its variances.")
    ],
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    classes: Annotated[str | None, typer.Option("--classes", help="Class names, separated by commas.")] = None,
    classes_file: Annotated[
        Path | None, typer.Option("--classes-file", help="A file of class names, one per line.")
    ] = None,
    template: Template = "a photo of a {c}.",
    top: Annotated[int, typer.Option(min=1, help="Classes to show for each image.")] = 1,
    level: Annotated[float, typer.Option(help="Probability that the interval of the cosine covers.")] = 0.95,
    link: Annotated[
        str | None, typer.Option(help="How cosines become probabilities: probit, centred or mc. [default: as saved]")
    ] = None,
    method: Annotated[
        str, typer.Option(help="What predicts: probcosine, mean (no variances), native (the model's own score).")
    ] = "probcosine",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="A file to write the results to as json lines.")
    ] = None,
    model: Model = None,
    device: Device = None,
    strict: StrictPosterior = False,
    as_json: Json = False,
) -> None:
    """Classify images, with calibrated probabilities and what the model does not know.

    For each image: the most probable class, its probability (for SigLIP also that of the label alone), its cosine with
    a credible interval, and in nats the entropy of the prediction in two parts: epistemic, what more data on the model
    would resolve, and aleatoric, what it would not. Draws of the model's parameters say which share is which; --json
    has their own entropy too.

    Examples:

        bayesvlm classify posterior/ photo.jpg --classes "cat,dog,horse"

        bayesvlm classify posterior/ photos/ --classes-file names.txt --top 5 --out results.jsonl
    """
    from bayesvlm.artifacts.files import write_together
    from bayesvlm.cli.prompts import prompts, read_classes
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.data import SkippedImages, find_images
    from bayesvlm.progress import progress_bar
    from bayesvlm.vlm import BayesVLM

    names = read_classes(classes, classes_file)
    paths = [path for given in images for path in (find_images(given) if given.is_dir() else [given])]
    if not paths:
        raise BayesVLMError(
            f"There are no images in {', '.join(map(str, images))}; give image files or folders of them."
        )
    vlm = BayesVLM.from_pretrained(posterior, model=model, device=device, strict=strict)
    if link is not None and method != "probcosine":
        raise BayesVLMError(f"--link {link} goes with --method probcosine; {method} has none.")
    if link is not None:
        vlm = vlm.replace(link=link)  # type: ignore[arg-type]
    texts = vlm.text_features(prompts(_unique(names), template), progress=False)
    skipped = SkippedImages(strict)
    rows: list[dict[str, Any]] = []
    with progress_bar("classifying", total=len(paths), unit="images") as advance:
        for start in range(0, len(paths), 256):
            chunk = paths[start : start + 256]
            decoded = zip(chunk, skipped.decode(chunk), strict=True)
            read = [(path, image) for path, image in decoded if image is not None]
            if read:
                prediction = vlm.classify(
                    [image for _, image in read],
                    texts,
                    method=method,  # type: ignore[arg-type]
                    progress=False,
                )
                rows += _describe([path for path, _ in read], prediction, names, top, level)
            advance(len(chunk))
    if skipped.reasons:
        remark(str(skipped))
    if not rows:
        raise BayesVLMError(f"None of the {len(paths)} image(s) could be read; the reasons are above.")
    if out is not None:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        out.parent.mkdir(parents=True, exist_ok=True)
        write_together(out.parent, {out.name: lines.encode()})
    result = {"posterior": posterior, "method": method, "scale": vlm.scale, "images": rows, "skipped": skipped.reasons}
    emit(result, [_as_table(rows, level), f"by {method}, temperature t = {vlm.scale:.4g}", _SPLIT], as_json)


def _unique(names: list[str]) -> list[str]:
    from bayesvlm.classes import class_names

    class_names(names)
    return names


def _describe(
    paths: list[Path], prediction: Prediction, names: list[str], top: int, level: float
) -> list[dict[str, Any]]:
    low, high = prediction.moments.interval(level)
    probs, order = prediction.probs.sort(dim=1, descending=True)
    nats = {
        "entropy": prediction.entropy.tolist(),
        "epistemic": prediction.epistemic.tolist(),
        "aleatoric": prediction.aleatoric.tolist(),
        "monte_carlo_entropy": prediction.monte_carlo.total.tolist(),
        "monte_carlo_epistemic": prediction.monte_carlo.epistemic.tolist(),
    }
    rows = []
    for i, path in enumerate(paths):
        best: list[dict[str, Any]] = [
            {
                "class": names[k],
                "prob": float(probs[i, rank]),
                "cosine": float(prediction.mean[i, k]),
                "interval": [float(low[i, k]), float(high[i, k])],
            }
            for rank, k in enumerate(order[i, :top].tolist())
        ]
        if prediction.label_probs is not None:  # SigLIP: each label by itself
            for entry, k in zip(best, order[i, :top].tolist(), strict=True):
                entry["label_prob"] = float(prediction.label_probs[i, k])
        rows.append({"image": str(path), "top": best, **{name: values[i] for name, values in nats.items()}})
    return rows


def _as_table(rows: list[dict[str, Any]], level: float) -> Table:
    lines = []
    for row in rows:
        for rank, best in enumerate(row["top"]):
            name = row["image"] if rank == 0 else ""
            label = [f"{best['label_prob']:.3f}"] if "label_prob" in best else []
            low, high = best["interval"]
            cosine = [f"{best['cosine']:.3f}", f"{low:.2f}..{high:.2f}"]
            nats = [f"{row[name]:.3f}" if rank == 0 else "" for name in _NATS]
            lines.append([name, best["class"], f"{best['prob']:.3f}", *label, *cosine, *nats])
    label_column = ["alone"] if "label_prob" in rows[0]["top"][0] else []
    columns = ["image", "class", "prob.", *label_column, "cosine", f"{100 * level:g} %", *_NATS]
    return table("", columns, lines, texts=2)
