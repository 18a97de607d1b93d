"""`bayesvlm tune`: tau by validation NLPD."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from bayesvlm.cli.options import Device, Json, Model, Strict, Template
from bayesvlm.cli.output import emit, remark, table


def tune(
    posterior: Annotated[Path, typer.Argument(help="A saved posterior; its tau and lam are replaced.")],
    validation: Annotated[Path, typer.Argument(help="Labelled images: one subfolder a class, named as the class.")],
    template: Template = "a photo of a {}.",
    model: Model = None,
    device: Device = None,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Choose the pseudo-data count tau by the negative log predictive density on labelled images.

    lam is solved by the evidence at each tau. The grid is log-spaced from 0.01 to 10,000, then refined.

    Example:

        bayesvlm tune posterior/ validation/ --template "a photo of a {}."
    """
    from bayesvlm.cli.prompts import prompts
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.core.features import Features
    from bayesvlm.data import ImageFolder, decoded
    from bayesvlm.progress import progress_bar
    from bayesvlm.vlm import BayesVLM

    images = ImageFolder.open(validation, strict=strict)
    vlm = BayesVLM.from_pretrained(posterior, model=model, device=device)
    features, labels = [], []
    with progress_bar("encoding", total=images.size, unit="images") as advance:
        for batch in decoded(images):
            if batch.images:
                features.append(vlm.image_features(batch.images, progress=False))
                labels += batch.labels
            advance(batch.read)
    if images.skipped.reasons:
        remark(str(images.skipped))
    if not labels:
        raise BayesVLMError(f"None of the {images.size} image(s) in {validation} could be read.")
    before = vlm.tau
    grid = vlm.tune(Features.concatenate(features), labels, prompts(images.classes, template))
    vlm.save_pretrained(posterior, model=model)
    best = grid.best
    if grid.at_edge:
        way = "smaller" if best.tau == grid.points[0].tau else "larger"
        remark(f"the best tau, {best.tau:g}, is an end of the grid: the data may ask for a still {way} one")
    points = [{"tau": point.tau, "nlpd": point.nlpd, "lam": point.lam} for point in grid]
    result = {
        "posterior": str(posterior),
        "images": len(labels),
        "tau": best.tau,
        "nlpd": best.nlpd,
        "lam": vlm.lam,
        "grid": points,
        "skipped": images.skipped.reasons,
    }
    rows = [[f"{p.tau:.4g}", f"{p.nlpd:.4f}", f"{p.lam['image']:.5g}", f"{p.lam['text']:.5g}"] for p in grid]
    text: list[str | Table] = [
        table("validation NLPD", ["tau", "NLPD", "lam image", "lam text"], rows),
        f"tau = {best.tau:.4g} (was {before:g}), NLPD {best.nlpd:.4f} on {len(labels)} images; saved to {posterior}",
    ]
    emit(result, text, as_json)
