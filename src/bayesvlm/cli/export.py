"""`bayesvlm export`: a model for fixed classes as a file that runs without torch and without this package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bayesvlm.cli.options import Classes, ClassesFile, Json, Model, Overwrite, OwnTemplates, Template
from bayesvlm.cli.output import emit


def export(
    posterior: Annotated[str, typer.Argument(help="A saved posterior (folder or Hub id), or an embedded model.")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file to write: .onnx (opset 20), or .pt2 for torch.export.")
    ],
    classes: Classes = None,
    classes_file: ClassesFile = None,
    template: Template = None,
    templates: OwnTemplates = None,
    link: Annotated[
        str | None, typer.Option(help="How cosines become probabilities: probit or centred. [default: as saved]")
    ] = None,
    head_only: Annotated[
        bool, typer.Option("--head-only", help="Write the head alone to --out, for people who keep their own encoder.")
    ] = False,
    overwrite: Overwrite = False,
    model: Model = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at a posterior that was made with another encoder.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Export a model for fixed classes: from pixels to probabilities, mean, standard deviation and entropy.

    The file takes any number of images at once, in float32, and runs with onnxruntime alone. Its metadata has the
    class names, the preprocessing and how the posterior was read. Beside model.onnx lies model.head.onnx, the head
    alone: from what enters the image tower's last linear layer to the same answers. Both are compared with torch
    before they are kept. docs/serving.md shows how to run them.

    Examples:

        bayesvlm export posterior/ --classes-file names.txt --out model.onnx

        bayesvlm export emoji-siglip --classes "cat,dog" --templates imagenet --out model.pt2
    """
    from bayesvlm.artifacts.files import check_new_file
    from bayesvlm.cli.prompts import read_classes, templates_given
    from bayesvlm.embedded import PROMPTS
    from bayesvlm.pretrained import own_templates
    from bayesvlm.prompts import ClassPrompts
    from bayesvlm.serving.export import export_model, export_paths
    from bayesvlm.vlm import BayesVLM

    names = read_classes(classes, classes_file)
    said = templates_given(template, templates, ())
    _ = ClassPrompts.of(names, said or PROMPTS)  # a mistake in them is said before anything is loaded
    for path in export_paths(out, head_only).values():
        check_new_file(path, overwrite)
    vlm = BayesVLM.from_pretrained(posterior, model=model, device="cpu", strict=strict)
    if link is not None:
        vlm = vlm.replace(link=link)  # type: ignore[arg-type]
    written = export_model(vlm, names, out, templates=said or own_templates(vlm), head_only=head_only)
    sizes = {str(file): file.stat().st_size for file in written.files}
    about = written.metadata
    result = {
        "model": None if written.model is None else str(written.model),
        "head": str(written.head),
        "bytes": sizes,
        "difference": written.difference,
        "metadata": about.as_json(),
    }
    kind = "torch.export" if about.opset is None else f"ONNX, opset {about.opset}"
    text = [
        f"{len(about.classes)} classes, {kind}; {about.structure} posterior, covariance {about.covariance}, link "
        f"{about.link}; probabilities within {max(written.difference, 1e-8):.0e} of torch's",
        *(f"saved to {file} ({size / 2**20:.1f} MiB)" for file, size in sizes.items()),
    ]
    emit(result, text, as_json)
