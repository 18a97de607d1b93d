"""`bayesvlm classify`: calibrated probabilities for images."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from bayesvlm.cli.options import Device, Json, Model, Strict, Template
from bayesvlm.cli.output import emit, remark, table

if TYPE_CHECKING:
    from bayesvlm.core.predict import Prediction


def classify(
    posterior: Annotated[
        str, typer.Argument(help="A saved posterior (folder or Hub id), or a model that brings its variances.")
    ],
    images: Annotated[list[Path], typer.Argument(help="Image files, or folders of them.")],
    classes: Annotated[str | None, typer.Option("--classes", help="Class names, separated by commas.")] = None,
    classes_file: Annotated[Path | None, typer.Option("--classes-file", help="Class names, one a line.")] = None,
    template: Template = "a photo of a {c}.",
    top: Annotated[int, typer.Option(min=1, help="Classes to show for each image.")] = 1,
    level: Annotated[float, typer.Option(help="Of the credible interval of the cosine.")] = 0.95,
    link: Annotated[str | None, typer.Option(help="probit, centred or mc. [default: the posterior's]")] = None,
    method: Annotated[
        str, typer.Option(help="probcosine; mean, without variances; native, of models that predict variances.")
    ] = "probcosine",
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write the results here, json lines.")] = None,
    model: Model = None,
    device: Device = None,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Classify images, with calibrated probabilities and what the model does not know.

    For each image: the most probable class, its probability (for SigLIP also that of the label alone), its cosine with
    a credible interval, and in nats the entropy of the prediction and how much of it is epistemic (what the model does
    not know, by Monte Carlo).

    Examples:

        bayesvlm classify posterior/ photo.jpg --classes "cat,dog,horse"

        bayesvlm classify posterior/ photos/ --classes-file names.txt --top 5 --out results.jsonl
    """
    from bayesvlm.artifacts.files import write_together
    from bayesvlm.cli.prompts import prompts, read_classes
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.data.images import ImageFile, SkippedImages, decoded_batches, find_all_images, read_stored
    from bayesvlm.progress import progress_bar
    from bayesvlm.vlm import BayesVLM

    names = read_classes(classes, classes_file)
    skipped = SkippedImages(strict)
    paths = find_all_images(images, skipped)
    if not paths:
        raise BayesVLMError(
            f"There are no images in {', '.join(map(str, images))}; give image files or folders of them"
            f"{skipped.beside}."
        )
    vlm = BayesVLM.from_pretrained(posterior, model=model, device=device)
    if link is not None and method != "probcosine":
        raise BayesVLMError(f"--link {link} goes with --method probcosine; {method} has none.")
    if link is not None:
        vlm = vlm.replace(link=link)  # type: ignore[arg-type]
    texts = vlm.text_features(prompts(_unique(names), template), progress=False)
    rows: list[dict[str, Any]] = []
    with progress_bar("classifying", total=len(paths), unit="images") as advance:
        read = partial(read_stored, read=vlm.read_image)
        for batch in decoded_batches(map(ImageFile, paths), skipped, read, batch_size=256):
            if batch.images:
                prediction = vlm.classify(
                    batch.images,
                    texts,
                    method=method,  # type: ignore[arg-type]
                    progress=False,
                )
                rows += _describe([file.image for file in batch.items], prediction, names, top, level)
            advance(batch.read)
    if skipped.reasons:
        remark(str(skipped))
    if not rows:
        raise BayesVLMError(f"None of the {len(paths)} image(s) could be read.")
    if out is not None:
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        out.parent.mkdir(parents=True, exist_ok=True)
        write_together(out.parent, {out.name: lines.encode()})
    result = {"posterior": posterior, "method": method, "scale": vlm.scale, "images": rows, "skipped": skipped.reasons}
    emit(result, [_as_table(rows, level), f"by {method}, temperature t = {vlm.scale:.4g}"], as_json)


def _unique(names: list[str]) -> list[str]:
    from bayesvlm.classes import class_names

    class_names(names)
    return names


def _describe(
    paths: list[Path], prediction: Prediction, names: list[str], top: int, level: float
) -> list[dict[str, Any]]:
    low, high = prediction.moments.interval(level)
    probs, order = prediction.probs.sort(dim=1, descending=True)
    entropy, total, epistemic = (each.tolist() for each in (prediction.entropy, prediction.total, prediction.epistemic))
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
        nats = {"entropy": entropy[i], "monte_carlo_entropy": total[i], "epistemic": epistemic[i]}
        rows.append({"image": str(path), "top": best, **nats})
    return rows


def _as_table(rows: list[dict[str, Any]], level: float) -> Table:
    lines = []
    for row in rows:
        for rank, best in enumerate(row["top"]):
            name = row["image"] if rank == 0 else ""
            label = [f"{best['label_prob']:.3f}"] if "label_prob" in best else []
            low, high = best["interval"]
            cosine = [f"{best['cosine']:.3f}", f"{low:.2f}..{high:.2f}"]
            nats = [f"{row['entropy']:.3f}", f"{row['epistemic']:.3f}"] if rank == 0 else ["", ""]
            lines.append([name, best["class"], f"{best['prob']:.3f}", *label, *cosine, *nats])
    label_column = ["alone"] if "label_prob" in rows[0]["top"][0] else []
    columns = ["image", "class", "prob.", *label_column, "cosine", f"{100 * level:g} %", "entropy", "epistemic"]
    return table("", columns, lines, texts=2)
