"""`bayesvlm fit`: a posterior from a folder of image-text pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bayesvlm.cli.options import Device, Json, Out, Strict
from bayesvlm.cli.output import emit, remark


def fit(
    model: Annotated[str, typer.Argument(help="Hub id or folder of a CLIP, SigLIP or SigLIP2.")],
    pairs: Annotated[Path, typer.Argument(help="Folder with images and captions.")],
    out: Out,
    captions: Annotated[
        Path | None,
        typer.Option("--captions", help="csv, tsv or jsonl with the columns image and caption. [default: look]"),
    ] = None,
    negatives: Annotated[int, typer.Option(help="Pairs in a contrast batch.")] = 32768,
    tau: Annotated[float, typer.Option(help="Pseudo-data count; `bayesvlm tune` finds a better one.")] = 1.0,
    structure: Annotated[str, typer.Option(help="damped (the paper) or exact.")] = "damped",
    normalise: Annotated[str, typer.Option(help="Sigmoid loss only: paper (divide by the batch) or sum.")] = "paper",
    precision: Annotated[
        str | None, typer.Option(help="Of the curvature's products: float32, float64, tf32, bf16. [default: float32]")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Pairs encoded at a time.")] = 64,
    device: Device = None,
    strict: Strict = False,
    as_json: Json = False,
) -> None:
    """Estimate a posterior from image-text pairs and save it.

    The captions are looked for in the folder: captions.csv, captions.tsv or captions.jsonl, else image.txt beside each
    image. An interrupted run goes on from its last finished contrast batch when the same command is given again.

    Examples:

        bayesvlm fit openai/clip-vit-base-patch32 pairs/ --out posterior/

        bayesvlm fit ./my-siglip pairs/ --captions train.tsv --out posterior/ --negatives 8192
    """
    from bayesvlm.artifacts.saved import check_destination
    from bayesvlm.data import PairFolder
    from bayesvlm.vlm import BayesVLM

    folder = PairFolder.open(pairs, captions, batch_size, strict)
    checkpoint = check_destination(out) / "fit-in-progress.safetensors"
    bare = BayesVLM.from_pretrained(model, device=device).without_posterior()
    vlm = bare.replace(tau=tau, structure=structure)  # type: ignore[arg-type]
    if checkpoint.exists():
        remark(f"going on from {checkpoint}")
    try:
        vlm.fit(
            folder,
            negatives,
            normalise=normalise,  # type: ignore[arg-type]
            precision=precision,  # type: ignore[arg-type]
            checkpoint=checkpoint,
            provenance={"source": pairs.resolve().name, "fingerprint": folder.fingerprint()},
            total=len(folder),
        )
    except KeyboardInterrupt:
        kept = "the finished contrast batches are kept" if checkpoint.exists() else "no contrast batch was finished"
        remark(f"interrupted: {kept}; give the same command again to go on")
        raise typer.Exit(130) from None
    finally:
        if folder.skipped.reasons:
            remark(str(folder.skipped))
    if folder.skipped.reasons:
        vlm.provenance["skipped_images"] = len(folder.skipped)
    vlm.save_pretrained(out)
    checkpoint.unlink(missing_ok=True)
    used = vlm.factors["image"].n
    result = {
        "posterior": str(out),
        "pairs": used,
        "skipped": folder.skipped.reasons,
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
