"""`bayesvlm select`: which images of a pool to label, so that a model gets better at a target."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from bayesvlm.cli.options import (
    Cache,
    Classes,
    ClassesFile,
    Device,
    Json,
    Model,
    Overwrite,
    OwnTemplates,
    Root,
    StrictPosterior,
    Template,
)
from bayesvlm.cli.output import emit, remark, table

if TYPE_CHECKING:
    from bayesvlm.core.features import Features
    from bayesvlm.data import SkippedImages
    from bayesvlm.experiments.feature_store import FeatureStore

SHOWN = 10  # of the choices, on the terminal


def select(
    posterior: Annotated[str, typer.Argument(help="A saved posterior (folder or Hub id), or an embedded model.")],
    pool: Annotated[
        list[str],
        typer.Option(
            "--pool",
            "-p",
            help="Images to choose from: files, folders, a table of images, or a set of `eval --list`; repeatable.",
        ),
    ],
    target: Annotated[
        list[str],
        typer.Option("--target", "-t", help="Images like those the model should get right, named the same way."),
    ],
    classes: Classes = None,
    classes_file: ClassesFile = None,
    template: Template = None,
    templates: OwnTemplates = None,
    strategy: Annotated[
        str,
        typer.Option(help="How to choose: epig, bald, entropy, random or targeted-bald, -entropy, -random."),
    ] = "epig",
    budget: Annotated[int, typer.Option("--budget", "-n", help="How many images to choose.")] = 200,
    labelled: Annotated[
        list[Path] | None,
        typer.Option(
            "--labelled",
            help="Images that have labels already, in the pool or not: a table, or Label Studio's export; repeatable. "
            "EPIG learns them first. None of them is chosen.",
        ),
    ] = None,
    exclude: Annotated[
        list[Path] | None,
        typer.Option(
            "--exclude", help="A table of images that are not to be chosen, such as an earlier list; repeatable."
        ),
    ] = None,
    oracle: Annotated[
        bool,
        typer.Option("--oracle", help="A pool image's folder, or its set, says its class; EPIG learns what it chose."),
    ] = False,
    metric: Annotated[
        str, typer.Option(help="How nearness to the target is measured: cosine, wasserstein.")
    ] = "cosine",
    worth: Annotated[float, typer.Option("--worth", help="Nats that a hundred more labels must gain.")] = 0.02,
    draws: Annotated[int, typer.Option(help="Random draws of the weights, for bald and epig.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the random draws.")] = 0,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="The file to write: .csv, .jsonl, or .json for Label Studio.")
    ] = Path("to-label.csv"),
    root: Root = None,
    overwrite: Overwrite = False,
    cache: Cache = None,
    model: Model = None,
    device: Device = None,
    strict: StrictPosterior = False,
    as_json: Json = False,
) -> None:
    """Choose what to label: the images of a pool that tell most about a target.

    Writes them in the order they were chosen, each with its score (in nats; for targeted strategies that of the target
    image it was chosen for) and the class that the model would give it.

    In a second round give what was labelled with --labelled, beside the same posterior: the choice goes on where the
    first ended, and says how much a further label is expected to tell.

    Examples:

        bayesvlm select posterior/ --pool archive/ --target camera/ --classes-file names.txt --budget 200

        bayesvlm select posterior/ -p archive/ -t camera/ --classes "cat,dog" --strategy targeted-bald -o tasks.json

        bayesvlm select posterior/ -p archive/ -t camera/ --classes "cat,dog" --labelled labels.csv -o next.csv

        bayesvlm select emoji-clip --pool emojione-black --target openmoji-black --classes-file names.txt
    """
    from bayesvlm.active import STRATEGIES, outlook, rank
    from bayesvlm.active.selection import better_without_epig
    from bayesvlm.active.targeting import Metric
    from bayesvlm.artifacts.files import check_new_file
    from bayesvlm.cli.prompts import class_names, templates_given, to_ask_for
    from bayesvlm.cli.seeds import check_file, excluded, expectation, seed_set
    from bayesvlm.core.errors import BayesVLMError, check_choice, check_positive
    from bayesvlm.data import SkippedImages
    from bayesvlm.data.cache import FeatureCache
    from bayesvlm.embedded import PROMPTS
    from bayesvlm.experiments.feature_store import FeatureStore
    from bayesvlm.pretrained import own_templates
    from bayesvlm.prompts import ClassPrompts
    from bayesvlm.report.writing import write_whole
    from bayesvlm.vlm import BayesVLM

    if out.suffix not in _FORMS:
        raise BayesVLMError(f"--out {out}: the list can be a {', '.join(_FORMS)} file; choose one of these endings.")
    check_new_file(out, overwrite)
    called = class_names(classes, classes_file)
    said = templates_given(template, templates, ())
    names = list(ClassPrompts.of(to_ask_for(called), said or PROMPTS).names)
    check_choice("strategy", strategy, STRATEGIES)
    check_choice("metric", metric, get_args(Metric))
    check_positive("--worth", worth)
    for file in [*(labelled or []), *(exclude or [])]:
        check_file(file)
    vlm = BayesVLM.from_pretrained(posterior, model=model, device=device, strict=strict)
    skipped = SkippedImages(strict)
    encoder = FeatureStore(vlm, FeatureCache(cache))
    texts = encoder.classes(ClassPrompts.of(to_ask_for(called), said or own_templates(vlm)))
    images = _encoded(encoder, pool, root, skipped, "pool")
    aimed = _encoded(encoder, target, root, skipped, "target").features
    known = _labels(images, names) if oracle else None
    begun = seed_set(encoder, labelled or [], images, called, root, skipped)
    if skipped.reasons:
        remark(str(skipped))
    left_out = sorted(excluded(exclude or [], images, root) | begun.rows)
    if begun.learnt is not None and (before := vlm.provenance.get("fine_tuned_on")) is not None:
        remark(
            f"{posterior} was fine-tuned on {before} images already: what --labelled names of them is learnt twice; "
            "give the posterior before"
        )
    if strategy == "epig" and budget <= len(images.features) and (advice := better_without_epig(budget, len(aimed))):
        remark(advice)
    chosen = rank(
        vlm, images.features, aimed, texts, strategy, budget, known, seed,  # type: ignore[arg-type]
        draws=draws, metric=metric, labelled=begun.learnt, exclude=left_out,  # type: ignore[arg-type]
    )  # fmt: skip
    predicted = vlm.classify(images.features[chosen.indices], texts)
    rows: list[dict[str, Any]] = [
        {
            "rank": place,
            "image": images.names[index],
            "score": None if score != score else score,  # random strategies have none
            "predicted": names[label],
            "probability": prob,
        }
        for place, (index, score, label, prob) in enumerate(
            zip(
                chosen.indices.tolist(),
                chosen.scores.tolist(),
                predicted.labels.tolist(),
                predicted.probs.amax(dim=1).tolist(),
                strict=True,
            ),
            start=1,
        )
    ]
    write_whole(out, _FORMS[out.suffix](rows, strategy).encode())
    shown = [
        [str(row["rank"]), row["image"], "" if row["score"] is None else f"{row['score']:.3g}", row["predicted"]]
        for row in rows[:SHOWN]
    ]
    result = {"strategy": strategy, "chosen": rows, "out": str(out), "skipped": skipped.reasons}
    text: list[Any] = [
        table("", ["rank", "image", "score", "taken for"], shown, texts=2),
        f"{len(rows)} of {len(images.names)} images chosen by {strategy}; the list is {out}",
    ]
    online = not vlm.predicts_variance and vlm.settings.structure == "damped"  # what the outlook is defined for
    if begun.learnt is not None and len(names) > 1 and online:
        expected = outlook(vlm, images.features, aimed, texts, begun.learnt, exclude=left_out, seed=seed)
        result["outlook"] = {"labels": len(begun.learnt[1]), "first": expected.first, "now": expected.now}
        text.append(expectation(expected, worth))
    emit(result, text, as_json)


@dataclass(frozen=True)
class _Images:
    """Images that can be read: what each is called, the folder it lies in or its class, its features."""

    names: list[str]
    folders: list[str]
    features: Features


def _encoded(encoder: FeatureStore, given: list[str], root: Path | None, skipped: SkippedImages, what: str) -> _Images:
    """The images of the files, folders, tables and sets that were named; a name that is two is refused by `resolve`."""
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.core.features import Features
    from bayesvlm.data import resolve
    from bayesvlm.data.labelled.listed import listed_rows
    from bayesvlm.data.names import own_path
    from bayesvlm.embedded import SPLITS
    from bayesvlm.images.files import SUFFIXES

    names: list[str] = []
    folders: list[str] = []
    parts: list[Features] = []
    tables = {name: rows for name in given if (rows := listed_rows(name, root)) is not None}
    labels = {row.path: row.label for rows in tables.values() for row in rows if row.label is not None}
    files = [
        path
        for name in given
        if name not in SPLITS and name not in tables
        if (path := own_path(name)).exists() or path.suffix.lower() in SUFFIXES
    ]
    listed = [row.path for rows in tables.values() for row in rows]
    for paths, features in _files(encoder, [*files, *listed], skipped, what):
        names += map(str, paths)
        folders += [labels.get(path, path.parent.name) for path in paths]
        parts.append(features)
    for name in dict.fromkeys(name for name in given if name not in tables and own_path(name) not in files):
        data = resolve(name, root=root).open(strict=skipped.strict)
        found = encoder.images(data)
        names += [f"{data.name}/{key}" for key in found.keys]
        folders += [data.classes[label] for label in found.labels.tolist()]
        parts.append(found.features)
        skipped.reasons.update(found.skipped)
    if not parts:
        raise BayesVLMError(
            f"The {what} ({', '.join(given)}) has no image that can be read; give image files or folders"
            f"{skipped.beside}."
        )
    return _Images(names, folders, Features.concatenate(parts))


def _files(
    encoder: FeatureStore, given: list[Path], skipped: SkippedImages, what: str
) -> Iterator[tuple[list[Path], Features]]:
    """The files that can be read and their features, a batch at a time."""
    from bayesvlm.experiments.image_files import encode_files
    from bayesvlm.images.files import find_all_images
    from bayesvlm.progress import progress_bar

    found = find_all_images(given, skipped)
    paths = list({path.resolve(): path for path in reversed(found)}.values())[::-1]  # each file once
    with progress_bar(f"encoding the {what}", total=len(paths), unit="images") as advance:
        for batch in encode_files(encoder, paths, skipped):
            if batch.paths:
                yield batch.paths, batch.features
            advance(batch.seen)


def _labels(images: _Images, names: list[str]) -> list[int]:
    """Each image's folder, or its class in its set, as its label."""
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.data.labelled.folders import spaced

    index = {name: place for place, name in enumerate(names)}
    found = []
    for image, folder in zip(images.names, images.folders, strict=True):
        label = index.get(folder, index.get(spaced(folder)))
        if label is None:
            raise BayesVLMError(
                f"{image} lies in the folder {folder!r}, which is not among the {len(names)} classes; with --oracle "
                "a pool image's folder is its class."
            )
        found.append(label)
    return found


# The list -------------------------------------------------------------------------------------------------------------


def _csv(rows: list[dict[str, Any]], strategy: str) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, [*rows[0], "label"], lineterminator="\n")  # the last column is to be filled in
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _jsonl(rows: list[dict[str, Any]], strategy: str) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _label_studio(rows: list[dict[str, Any]], strategy: str) -> str:
    """Tasks for Label Studio: an <Image name="image"/> with <Choices name="label"/>, what the model says filled in."""
    tasks = [
        {
            "data": {"image": row["image"], "rank": row["rank"], "score": row["score"], "strategy": strategy},
            "predictions": [
                {
                    "model_version": "bayesvlm",
                    "score": row["probability"],
                    "result": [
                        {
                            "from_name": "label",
                            "to_name": "image",
                            "type": "choices",
                            "value": {"choices": [row["predicted"]]},
                        }
                    ],
                }
            ],
        }
        for row in rows
    ]
    return json.dumps(tasks, indent=2) + "\n"


_FORMS = {".csv": _csv, ".jsonl": _jsonl, ".json": _label_studio}
