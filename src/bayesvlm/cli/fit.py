"""`bayesvlm fit`: a posterior from image-text pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from bayesvlm.cli.engine import Actors, Address, CpusPerActor, Engine, GpusPerActor, ray_options
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
    limit: Annotated[
        int | None, typer.Option(help="How many pairs to read, from the first; after shuffling. [default: all]")
    ] = None,
    shuffle: Annotated[
        bool, typer.Option("--shuffle", help="Read the pairs in a shuffled order, the same on every machine.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Another order to shuffle to, with --shuffle. [default: 0]")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Processes that decode; 0 has threads do it. [default: by the cores]")
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(help="Read one of n shares of the pairs, such as 0/4, the first of four; `merge` adds them up."),
    ] = None,
    engine: Engine = "local",
    address: Address = None,
    actors: Actors = None,
    gpus_per_actor: GpusPerActor = None,
    cpus_per_actor: CpusPerActor = None,
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

    Images that cannot be read or have no caption are skipped, counted and named. A run that was interrupted or killed
    goes on from its last finished contrast batch when the same command is given again, to the same bits. A posterior
    that is there already is replaced with --overwrite only.

    Pairs are contrasted within groups: runs of shards, or of listed pairs, that hold at least as many as --negatives.
    So the groups can be shared out: --shard 0/4 to 3/4, each with an --out of its own, on machines that need not know
    of one another, and `bayesvlm merge` adds up what they find to what one machine would have found.

    With --engine ray the groups are shared out by a Ray cluster: tasks decode on any processor, actors that hold the
    model encode, and the factors are the same. The pairs must lie where every node sees them.

    Examples:

        bayesvlm fit emoji-clip train --out posterior/

        bayesvlm fit openai/clip-vit-base-patch32 pairs/ --out posterior/

        bayesvlm fit ./my-siglip pairs/ --captions train.tsv --out posterior/ --negatives 8192

        bayesvlm fit ./my-clip laion400m/ --out posterior/

        bayesvlm fit ./my-clip laion400m/ --limit 327680 --shuffle --seed 1 --out posterior/

        bayesvlm fit ./my-clip laion400m/ --shard 3/16 --out shards/3/

        bayesvlm fit ./my-clip /shared/laion400m/ --engine ray --address auto --out posterior/

        bayesvlm fit ./my-clip val2014/ --captions annotations/captions_val2014.json --out posterior/

        bayesvlm fit ./my-clip flickr30k-images/ --captions dataset_flickr30k.json --split train --out posterior/

        bayesvlm fit ./my-clip OWNER/NAME:train --captions-per-image 1 --out posterior/
    """
    from bayesvlm.artifacts.destination import posterior_destination
    from bayesvlm.data import resolve
    from bayesvlm.data.pairs import PairPlan
    from bayesvlm.engine import RayFit, cluster
    from bayesvlm.engine.groups import waiting_files
    from bayesvlm.fitting.stages import shares
    from bayesvlm.progress import duration
    from bayesvlm.vlm import BayesVLM

    part = None if shard is None else _part(shard)
    asked = ray_options(engine, address, actors, gpus_per_actor, cpus_per_actor, device, workers)
    checkpoint = out / "fit-in-progress.safetensors"
    context.with_resource(posterior_destination(out, overwrite, checkpoint))
    source = resolve(pairs, "pairs", root, split)
    found = source.open(
        captions,
        image_column=image_column,
        text_column=text_column,
        captions_per_image=captions_per_image,
        batch_size=batch_size,
        strict=strict,
    )
    plan = PairPlan.of(found, negatives, limit=limit, shuffle=shuffle, seed=seed)
    if limit is not None and plan.size < limit:
        remark(f"--limit {limit}: there are only {plan.size} pairs, and all are read")
    plan = plan if part is None else plan.share(*part)
    bare = BayesVLM.from_pretrained(model, device="cpu" if asked else device).without_posterior()
    vlm = bare.replace(tau=tau, structure=structure)  # type: ignore[arg-type]
    provenance = {"source": source.title, "fingerprint": plan.fingerprint()}
    if source.split is not None:
        provenance["split"] = source.split
    fitter = None if asked is None else RayFit(context.with_resource(cluster(asked)))
    try:
        with logged("bayesvlm.fitting"):
            vlm.fit(
                plan,
                negatives,
                workers=workers,
                engine=fitter,
                normalise=normalise,  # type: ignore[arg-type]
                precision=precision,  # type: ignore[arg-type]
                checkpoint=checkpoint,
                provenance=provenance,
            )
    except KeyboardInterrupt:
        what = "contrast batch" if fitter is None else "group"
        some = checkpoint.exists() or waiting_files(checkpoint)
        kept = f"the finished {what}{'es' if fitter is None else 's'} are kept" if some else f"no {what} was finished"
        remark(f"interrupted: {kept}; give the same command again to go on")
        raise typer.Exit(130) from None
    finally:
        if len(found.skipped):
            remark(str(found.skipped))
    if len(found.skipped):
        vlm = vlm.with_provenance(skipped_images=len(found.skipped))
    vlm.save_pretrained(out)
    for path in [*waiting_files(checkpoint), checkpoint]:  # that one last: a run that is killed here goes on from it
        path.unlink(missing_ok=True)
    used, seconds = vlm.factors["image"].n, vlm.provenance["seconds"]
    took = sum(seconds.values())
    result = {
        "posterior": str(out),
        "pairs": used,
        "skipped": found.skipped.reasons,
        "groups": len(plan.groups),
        "shard": shard,
        "seconds": seconds,
        "pairs_per_second": used / took,
        "tau": vlm.tau,
        "lam": vlm.lam,
        "structure": structure,
    }
    text = [
        f"posterior of {model} from {used} pairs saved to {out}",
        f"{used / took:,.3g} pairs/s{'' if fitter is None else ' per actor'} in {duration(took)}: {shares(seconds)}",
        f"tau = {vlm.tau:g}, lam = {vlm.lam['image']:.6g} (image), {vlm.lam['text']:.6g} (text), {structure}",
        f"next: bayesvlm tune {out} VALIDATION, or bayesvlm classify {out} IMAGE --classes 'cat,dog'"
        if part is None
        else "next: when all shards are there, bayesvlm merge them --out posterior/",
    ]
    emit(result, text, as_json)


def _part(shard: str) -> tuple[int, int]:
    """(i, n) of "i/n"."""
    from bayesvlm.core.errors import BayesVLMError

    part, _, parts = shard.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and int(part) < int(parts)):
        raise BayesVLMError(
            f"--shard is {shard!r}; expected i/n with i from 0 to n-1, such as 0/4, 1/4, 2/4 and 3/4 for four shards."
        )
    return int(part), int(parts)
