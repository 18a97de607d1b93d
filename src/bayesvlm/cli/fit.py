"""`bayesvlm fit`: a posterior from image-text pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bayesvlm.cli.options import Device, Json, Out, Overwrite, Root, Strict
from bayesvlm.cli.output import emit, logged, remark


def fit(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Hub id or folder of a CLIP, SigLIP or SigLIP2.")],
    pairs: Annotated[
        str,
        typer.Argument(
            help="A folder with images and captions, or with tar shards; OWNER/NAME:SPLIT of the Hub; a split of the "
            "embedded world, such as train."
        ),
    ],
    out: Out,
    captions: Annotated[
        Path | None,
        typer.Option(
            "--captions",
            help="A csv, tsv or jsonl file with the columns image and caption, or the json of COCO or of Karpathy's "
            "splits. [default: look for captions.csv and the like]",
        ),
    ] = None,
    split: Annotated[str | None, typer.Option(help="The split of a data set, or of Karpathy's json, to take.")] = None,
    image_column: Annotated[
        str | None, typer.Option(help="The column of the images. [default: one with a usual name]")
    ] = None,
    text_column: Annotated[
        str | None, typer.Option(help="The column of the captions. [default: one with a usual name]")
    ] = None,
    captions_per_image: Annotated[
        int | None, typer.Option(min=1, help="How many captions per image to use, the first ones. [default: all]")
    ] = None,
    negatives: Annotated[int, typer.Option(help="How many pairs are contrasted with each other.")] = 32768,
    tau: Annotated[
        float, typer.Option(help="Pseudo-data count: how much the pairs weigh; `bayesvlm tune` finds a better one.")
    ] = 1.0,
    structure: Annotated[str, typer.Option(help="The posterior's form: damped (the paper) or exact.")] = "damped",
    normalise: Annotated[
        str, typer.Option(help="Sigmoid loss only: divide by the batch size (paper) or not (sum).")
    ] = "paper",
    precision: Annotated[
        str | None, typer.Option(help="Precision of the curvature: float32, float64, tf32 or bf16. [default: float32]")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="How many pairs are encoded at a time.")] = 64,
    root: Root = None,
    overwrite: Overwrite = False,
    device: Device = None,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Estimate a posterior from image-text pairs and save it.

    A folder may hold images with captions.csv, .tsv, .jsonl or .json, or with image.txt beside each image; tar shards
    as img2dataset writes them (LAION, CC12M); or a data set of the package datasets. Instead of a folder, name tar
    files ('shards/{00000..00099}.tar'), a captions file, a data set on the Hub with its split, or splits of the
    embedded world, joined by +. Every caption of an image is a pair of its own: all the first captions come first,
    then all the second.

    Images that cannot be read or have no caption are skipped, counted and named. An interrupted run goes on from its
    last finished contrast batch when the same command is given again. A posterior that is there already is replaced
    with --overwrite only.

    Examples:

        bayesvlm fit emoji-clip train --out posterior/

        bayesvlm fit openai/clip-vit-base-patch32 pairs/ --out posterior/

        bayesvlm fit ./my-siglip pairs/ --captions train.tsv --out posterior/ --negatives 8192

        bayesvlm fit ./my-clip laion400m/ --out posterior/

        bayesvlm fit ./my-clip val2014/ --captions annotations/captions_val2014.json --out posterior/

        bayesvlm fit ./my-clip flickr30k-images/ --captions dataset_flickr30k.json --split train --out posterior/

        bayesvlm fit ./my-clip OWNER/NAME:train --captions-per-image 1 --out posterior/
    """
    from bayesvlm.artifacts.destination import posterior_destination
    from bayesvlm.data import resolve
    from bayesvlm.vlm import BayesVLM

    context.with_resource(posterior_destination(out, overwrite))
    source = resolve(pairs, "pairs", root, split)
    found = source.open(
        captions,
        image_column=image_column,
        text_column=text_column,
        captions_per_image=captions_per_image,
        batch_size=batch_size,
        strict=strict,
    )
    checkpoint = out / "fit-in-progress.safetensors"
    bare = BayesVLM.from_pretrained(model, device=device).without_posterior()
    vlm = bare.replace(tau=tau, structure=structure)  # type: ignore[arg-type]
    provenance = {"source": source.title, "fingerprint": found.fingerprint()}
    if source.split is not None:
        provenance["split"] = source.split
    try:
        with logged("bayesvlm.fitting"):
            vlm.fit(
                found,
                negatives,
                normalise=normalise,  # type: ignore[arg-type]
                precision=precision,  # type: ignore[arg-type]
                checkpoint=checkpoint,
                provenance=provenance,
                total=found.size,
            )
    except KeyboardInterrupt:
        kept = "the finished contrast batches are kept" if checkpoint.exists() else "no contrast batch was finished"
        remark(f"interrupted: {kept}; give the same command again to go on")
        raise typer.Exit(130) from None
    finally:
        if found.skipped.reasons:
            remark(str(found.skipped))
    if found.skipped.reasons:
        vlm = vlm.with_provenance(skipped_images=len(found.skipped))
    vlm.save_pretrained(out)
    checkpoint.unlink(missing_ok=True)
    used = vlm.factors["image"].n
    result = {
        "posterior": str(out),
        "pairs": used,
        "skipped": found.skipped.reasons,
        "tau": vlm.tau,
        "lam": vlm.lam,
        "structure": structure,
    }
    text = [
        f"posterior of {model} from {used} pairs saved to {out}",
        f"tau = {vlm.tau:g}, lam = {vlm.lam['image']:.6g} (image), {vlm.lam['text']:.6g} (text), {structure}",
        f"next: bayesvlm tune {out} VALIDATION, or bayesvlm classify {out} IMAGE --classes 'cat,dog'",
    ]
    emit(result, text, as_json)
