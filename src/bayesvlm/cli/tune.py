"""`bayesvlm tune`: tau by validation NLPD."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from bayesvlm.cli.options import Cache, Device, Json, Model, Root, SetClasses, StrictPosterior, Template, Templates
from bayesvlm.cli.output import emit, remark, table


def tune(
    context: typer.Context,
    posterior: Annotated[Path, typer.Argument(help="The folder of a saved posterior; its tau and lam are replaced.")],
    validation: Annotated[
        str,
        typer.Argument(
            help="Labelled images: a folder with a subfolder per class, a table of images and labels, or a set that "
            "`eval --list` shows."
        ),
    ],
    classes_file: SetClasses = None,
    half: Annotated[
        bool,
        typer.Option("--half", help="Use half of the set; `detect calibrate --half` takes the other half of it."),
    ] = False,
    template: Template = None,
    templates: Templates = None,
    root: Root = None,
    cache: Cache = None,
    model: Model = None,
    device: Device = None,
    strict: StrictPosterior = False,
    as_json: Json = False,
) -> None:
    """Choose the pseudo-data count tau by the negative log predictive density on labelled images.

    At each tau the prior precision lam is the one that maximises the evidence. The grid of taus is log-spaced from 0.01
    to 10,000, then refined.

    Examples:

        bayesvlm tune posterior/ validation/ --template "a photo of a {c}."

        bayesvlm tune posterior/ imagenet:val

        bayesvlm tune posterior/ photos/ --half

        bayesvlm tune posterior/ photos.csv --classes-file names.txt
    """
    from bayesvlm.artifacts.destination import posterior_destination
    from bayesvlm.cli.prompts import templates_given
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.data import resolve
    from bayesvlm.data.cache import FeatureCache
    from bayesvlm.data.labelled import set_prompts
    from bayesvlm.data.labelled.templates import chosen_templates, shown_templates
    from bayesvlm.experiments.feature_store import FeatureStore
    from bayesvlm.images.files import describe_skipped
    from bayesvlm.pretrained import own_templates
    from bayesvlm.safety import halves
    from bayesvlm.vlm import BayesVLM

    if not posterior.is_dir():
        raise BayesVLMError(
            f"{posterior} is not a folder on this machine; tune writes the new tau into it, so give a folder."
        )
    prompts = templates_given(template, templates)
    context.with_resource(posterior_destination(posterior, overwrite=True))
    images = resolve(validation, root=root).open(strict=strict, classes=classes_file)
    _ = set_prompts(images, prompts)  # a mistake in them is said before anything is loaded
    vlm = BayesVLM.from_pretrained(posterior, model=model, device=device, strict=strict)
    _ = vlm.factors  # nothing is encoded for a model without a posterior
    encoder = FeatureStore(vlm, FeatureCache(cache))
    found = encoder.images(images)
    features, labels, name = found.features, found.labels.tolist(), images.name
    if half:
        rows = halves(labels)[0].tolist()
        features, labels, name = features[rows], [labels[row] for row in rows], f"{name}, first half"
    if found.skipped:
        remark(describe_skipped(found.skipped))
    before = vlm.tau
    used = chosen_templates(images, prompts, own_templates(vlm))
    about = {"tuned_on": name, "tuned_with": used}
    grid = vlm.tune(
        features, labels, encoder.classes(set_prompts(images, prompts, own_templates(vlm))), provenance=about
    ).tuning
    assert grid is not None  # just tuned
    vlm.save_pretrained(posterior, model=model)
    best = grid.best
    points = [{"tau": point.tau, "nlpd": point.nlpd, "lam": point.lam} for point in grid]
    result = {
        "posterior": str(posterior),
        "images": len(labels),
        "tau": best.tau,
        "nlpd": best.nlpd,
        "lam": vlm.lam,
        "grid": points,
        "skipped": dict(found.skipped),
    }
    rows = [[f"{p.tau:.4g}", f"{p.nlpd:.4f}", f"{p.lam['image']:.5g}", f"{p.lam['text']:.5g}"] for p in grid]
    result["templates"] = used
    text: list[str | Table] = [
        table("validation NLPD", ["tau", "NLPD", "lam image", "lam text"], rows),
        f"tau = {best.tau:.4g} (was {before:g}), NLPD {best.nlpd:.4f} on {len(labels)} images; saved to {posterior}",
        f"prompts: {shown_templates(used)}",
    ]
    emit(result, text, as_json)
