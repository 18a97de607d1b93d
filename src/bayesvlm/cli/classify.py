"""`bayesvlm classify`: calibrated probabilities for images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from bayesvlm.cli.engine import Actors, Address, CpusPerActor, Engine, GpusPerActor, ray_options
from bayesvlm.cli.options import (
    Cache,
    Classes,
    ClassesFile,
    Device,
    Json,
    Model,
    Overwrite,
    OwnTemplates,
    StrictPosterior,
    Template,
    check_shares,
)
from bayesvlm.cli.output import emit, remark, table

if TYPE_CHECKING:
    from bayesvlm.cli.answers import Row
    from bayesvlm.cli.detecting import Judges
    from bayesvlm.core.features import Features
    from bayesvlm.core.prediction import Prediction
    from bayesvlm.vlm import BayesVLM

_NATS = ("entropy", "epistemic", "aleatoric")
_SPLIT = "entropy = epistemic + aleatoric, in nats: the shares come from draws of the parameters"
SHOWN = 10  # of the answers that go to a file, on the terminal


def classify(
    context: typer.Context,
    posterior: Annotated[
        str,
        typer.Argument(
            help="A saved posterior (folder or Hub id), an embedded model, or one with variances of its own (ProLIP)."
        ),
    ],
    images: Annotated[list[Path], typer.Argument(help="Image files, folders of them, or a table that lists them.")],
    classes: Classes = None,
    classes_file: ClassesFile = None,
    template: Template = None,
    templates: OwnTemplates = None,
    top: Annotated[int, typer.Option(min=1, help="Classes to show for each image.")] = 1,
    level: Annotated[float, typer.Option(help="Probability that the interval of the cosine covers.")] = 0.95,
    link: Annotated[
        str | None, typer.Option(help="How cosines become probabilities: probit, centred or mc. [default: as saved]")
    ] = None,
    method: Annotated[
        str, typer.Option(help="What predicts: probcosine, mean (no variances), native (the model's own score).")
    ] = "probcosine",
    unknown: Annotated[
        Path | None,
        typer.Option(
            "--unknown",
            help="A folder that `detect calibrate` made: flag unfamiliar images by it. It brings classes and prompts.",
        ),
    ] = None,
    sets: Annotated[
        float | None,
        typer.Option(
            help="With --unknown, made from labelled images: the classes an image may be of, without the right one at "
            "this rate at most."
        ),
    ] = None,
    risk: Annotated[
        float | None,
        typer.Option(help="As --sets: answer as many images as this rate of wrong answers allows, and no others."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the answers here: .csv, .jsonl (json lines) or .parquet.")
    ] = None,
    overwrite: Overwrite = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Images that go through the model at once.")] = 64,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Processes that read images; 0 uses threads. [default: by number and cores]"),
    ] = None,
    engine: Engine = "local",
    address: Address = None,
    actors: Actors = None,
    gpus_per_actor: GpusPerActor = None,
    cpus_per_actor: CpusPerActor = None,
    cache: Cache = None,
    model: Model = None,
    device: Device = None,
    strict: StrictPosterior = False,
    as_json: Json = False,
) -> None:
    """Classify images, with calibrated probabilities and what the model does not know.

    For each image: the most probable class, its probability (for SigLIP also that of the label alone), its cosine with
    a credible interval, and in nats the entropy of the prediction in two parts: epistemic, what more data on the model
    would resolve, and aleatoric, what it would not. The shares come from draws of the model's parameters; --json has
    the entropy of the draws too.

    With --out the answers are written as they come, and the first ten are shown; the same command after an
    interruption goes on where it was. Features are kept, so that other class names encode nothing again.

    With --engine ray a Ray cluster reads the files, which every node must see, and encodes them.

    With --unknown images that are unlike the familiar ones are flagged, with a p-value; with --sets and --risk each
    image has the set of classes that it may be of, and whether to answer at all.

    Examples:

        bayesvlm classify posterior/ photo.jpg --classes "cat,dog,horse"

        bayesvlm classify posterior/ photos/ --unknown detector/ --sets 0.1 --risk 0.05 --out results.csv

        bayesvlm classify posterior/ photos/ --classes-file names.txt --top 5 --out results.csv
    """
    from bayesvlm.cli.answering import Answering, stamp
    from bayesvlm.cli.answers import AnswerFile
    from bayesvlm.cli.prompts import read_classes, templates_given, tuned_otherwise
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.data.cache import FeatureCache
    from bayesvlm.data.labelled.listed import with_tables
    from bayesvlm.data.labelled.templates import shown_templates
    from bayesvlm.engine import cluster, ray_encoder
    from bayesvlm.experiments.feature_store import FeatureStore
    from bayesvlm.images.files import SkippedImages, find_all_images
    from bayesvlm.pretrained import own_templates
    from bayesvlm.prompts import ClassPrompts
    from bayesvlm.vlm import BayesVLM

    asked_of_ray = ray_options(engine, address, actors, gpus_per_actor, cpus_per_actor, device, workers)
    said = templates_given(template, templates, ())
    remembered = unknown is not None and classes is None and classes_file is None
    _check_judging(unknown, sets, risk, remembered and bool(template or templates))
    listed = None if remembered else read_classes(classes, classes_file)
    answers = None if out is None else AnswerFile(out, overwrite)
    skipped = SkippedImages(strict)
    paths = find_all_images(with_tables(images), skipped)
    if not paths:
        raise BayesVLMError(
            f"There are no images in {', '.join(map(str, images))}; give image files or folders of them"
            f"{skipped.beside}."
        )
    if link is not None and method != "probcosine":
        raise BayesVLMError(f"--link {link} goes with --method probcosine; leave it out for {method}.")
    settings = {"method": method, "link": link, "top": top, "level": level}
    models = {
        "posterior": posterior,
        "model": model,
        "files": stamp(*(Path(name) for name in (posterior, model) if name)),
    }
    here = "cpu" if asked_of_ray else device
    vlm = BayesVLM.from_pretrained(posterior, model=model, device=here, strict=strict)
    if link is not None:
        vlm = vlm.replace(link=link)  # type: ignore[arg-type]
    used = said or own_templates(vlm)
    judges = None if unknown is None else _judges(unknown, vlm, listed, used, sets, risk, method)
    if listed is not None:
        asked = ClassPrompts.of(listed, used)
        if note := tuned_otherwise(vlm, used):
            remark(note)
    else:
        assert judges is not None  # it is from there that the classes come
        asked = judges.prompts
    names = list(asked.names)
    question = {
        **models,
        "images": stamp(*paths),
        "names": names,
        "prompts": asked.texts,
        "groups": asked.groups,
        **settings,
        **({} if unknown is None else {"unknown": stamp(unknown), "sets": sets, "risk": risk}),
    }
    if len(names) == 1:
        alone = "; `alone` (label_prob in files) is that of the label by itself" if vlm.loss == "sigmoid" else ""
        remark(f"there is one class only, so the probability of {names[0]!r} is always 1 and says nothing{alone}")
    encoder = None
    if asked_of_ray is not None:
        resources = context.with_resource(cluster(asked_of_ray))
        encoder = context.with_resource(ray_encoder(vlm.encoder("images"), resources))
    store = FeatureStore(vlm, FeatureCache(cache), workers, encoder)
    asking = Answering(
        "classifying",
        paths,
        store,
        skipped,
        answers,
        question,
        None if as_json or answers is None else SHOWN,
        batch_size,
    )

    def prepare(already: int) -> Callable[[list[Path], Features], list[Row]]:
        texts = store.classes(asked) if not asked.single else vlm.text_features(asked.texts, progress=False)
        judge = None if judges is None else judges.begin(already)

        def describe(paths: list[Path], features: Features) -> list[Row]:
            prediction = vlm.classify(features, texts, method=method)  # type: ignore[arg-type]
            rows = _describe(paths, prediction, names, top, level)
            return rows if judge is None else [row | said for row, said in zip(rows, judge(features), strict=True)]

        return describe

    found = asking.run(prepare)
    rows = found.rows
    result = {
        "posterior": posterior,
        "method": method,
        "templates": None if remembered else used,
        "scale": vlm.scale,
        **({} if judges is None else {"judged_by": judges.facts()}),
        "images": rows,
        "skipped": skipped.reasons,
    }
    prompts = f"those of {unknown}" if remembered else shown_templates(used)
    how = f"by {method}, temperature t = {vlm.scale:.4g}, prompts: {prompts}"
    text: list[str | Table] = [_as_table(rows, level), how, _SPLIT, *([] if judges is None else judges.described())]
    if answers:
        text.append(f"{found.answered} images classified; the answers are in {out} ({found.pace()})")
    emit(result, text, as_json)


def _check_judging(
    unknown: Path | None,
    sets: float | None,
    risk: float | None,
    prompted: bool,
) -> None:
    """Refuse options that do not go together; `prompted`: there are prompts and no classes to put in them."""
    from bayesvlm.core.errors import BayesVLMError

    check_shares({"--sets": sets, "--risk": risk})
    if unknown is None and (sets is not None or risk is not None):
        option, value = ("--sets", sets) if sets is not None else ("--risk", risk)
        raise BayesVLMError(
            f"{option} {value:g} needs calibration images: make a folder with `bayesvlm detect calibrate POSTERIOR "
            f"IMAGES {option} {value:g} --out detector/` and name it with --unknown detector/."
        )
    if unknown is not None and prompted:
        raise BayesVLMError(
            f"The classes and their prompts come from {unknown}; leave --template and --templates out, or give "
            "--classes too."
        )


def _judges(
    folder: Path,
    vlm: BayesVLM,
    classes: list[Sequence[str]] | None,
    templates: list[str],
    sets: float | None,
    risk: float | None,
    method: str,
) -> Judges:
    """The detector of a folder, and what else is asked of it."""
    from bayesvlm.cli.detecting import Judges
    from bayesvlm.core.errors import BayesVLMError

    found = Judges.load(folder, vlm, classes, templates).at(folder, miss=sets, risk=risk)
    selector = found.selector if risk is not None else None
    if selector is not None and (selector.predictive, method) != ("bayes", "probcosine"):
        raise BayesVLMError(
            f"{folder} promises a risk for the answers by {selector.basis.described()}, and these are by {method}, "
            f"which may be others; ask `bayesvlm detect run {folder}`, or leave --risk out."
        )
    return found.only(sets=sets is not None, selector=risk is not None)


def _describe(
    paths: list[Path], prediction: Prediction, names: list[str], top: int, level: float
) -> list[dict[str, Any]]:
    from bayesvlm.images.files import shown_path

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
        rows.append({"image": shown_path(path), "top": best, **{name: values[i] for name, values in nats.items()}})
    return rows


def _as_table(rows: list[dict[str, Any]], level: float) -> Table:
    from bayesvlm.cli.detecting import judged, judged_columns

    lines = []
    for row in rows:
        for rank, best in enumerate(row["top"]):
            name = row["image"] if rank == 0 else ""
            label = [f"{best['label_prob']:.3f}"] if "label_prob" in best else []
            low, high = best["interval"]
            cosine = [f"{best['cosine']:.3f}", f"{low:.2f}..{high:.2f}"]
            nats = [f"{row[name]:.3f}" if rank == 0 else "" for name in _NATS]
            said = judged(row) if rank == 0 else [""] * len(judged(row))
            lines.append([name, best["class"], f"{best['prob']:.3f}", *label, *cosine, *nats, *said])
    label_column = ["alone"] if "label_prob" in rows[0]["top"][0] else []
    columns = ["image", "class", "prob.", *label_column, "cosine", f"{100 * level:g} %", *_NATS]
    columns += judged_columns(rows[0])
    return table("", columns, lines, texts=2)
