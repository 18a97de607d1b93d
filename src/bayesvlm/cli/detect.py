"""`bayesvlm detect`: a detector of unfamiliar images, calibrated on familiar ones, then run on others."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from bayesvlm.cli.options import (
    Cache,
    Classes,
    ClassesFile,
    Device,
    Json,
    Model,
    Overwrite,
    Root,
    StrictPosterior,
    Template,
    Templates,
    check_shares,
)
from bayesvlm.cli.output import emit, remark, table

if TYPE_CHECKING:
    from bayesvlm.cli.answers import Row
    from bayesvlm.cli.detecting import Judges
    from bayesvlm.core.features import Features

SHOWN = 10  # of the answers that go to a file, on the terminal
THUMBNAILS = 8  # on the page, at each end

detect = typer.Typer(
    name="detect",
    help="Flag images that are unlike the familiar ones, at a chosen rate of false alarms.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@detect.command()
def calibrate(
    posterior: Annotated[
        str, typer.Argument(help="A saved posterior (folder or Hub id), an embedded model, or with --plain any model.")
    ],
    images: Annotated[
        str,
        typer.Argument(
            help="Familiar images that tau was not tuned on: a folder, a table, or a set that `eval --list` shows."
        ),
    ],
    classes: Classes = None,
    classes_file: ClassesFile = None,
    template: Template = None,
    templates: Templates = None,
    false_alarms: Annotated[
        float, typer.Option(help="Share of familiar images that may be flagged, on average.")
    ] = 0.05,
    score: Annotated[
        str,
        typer.Option(
            help="How familiar an image is: entropy, msp, mcm, max-cosine, energy, neglabel, epistemic, variance, "
            "text-variance."
        ),
    ] = "entropy",
    plain: Annotated[bool, typer.Option("--plain", help="Score the model as it came, without its posterior.")] = False,
    temperature: Annotated[
        float | None, typer.Option(help="Score the plain model at this temperature, softmax(z / T).")
    ] = None,
    negatives: Annotated[
        Path | None, typer.Option(help="For neglabel: a file of words for what the images are not, one per line.")
    ] = None,
    sets: Annotated[
        float | None,
        typer.Option(help="Also prediction sets, without the right class at this rate at most; images need labels."),
    ] = None,
    kind: Annotated[str, typer.Option(help="Which prediction sets: lac, aps or raps.")] = "aps",
    by_class: Annotated[bool, typer.Option("--by-class", help="Keep the rate of --sets for each class.")] = False,
    risk: Annotated[
        float | None,
        typer.Option(help="Also when to answer, with this rate of wrong answers at most; images need labels."),
    ] = None,
    confidence: Annotated[float, typer.Option(help="How sure the promise of --risk is.")] = 0.95,
    half: Annotated[
        bool, typer.Option("--half", help="Calibrate on the half of a labelled set that `tune --half` leaves.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the detector.")] = Path("detector"),
    overwrite: Overwrite = False,
    root: Root = None,
    cache: Cache = None,
    model: Model = None,
    device: Device = None,
    strict: StrictPosterior = False,
    as_json: Json = False,
) -> None:
    """Calibrate a detector on familiar images: of images like these, at most so many will be flagged as unknown.

    The folder remembers the posterior, the classes and their prompts; `detect run` and `classify --unknown` read it.
    Without --classes the classes are those of the set. Labels are needed for --sets and --risk only.

    Examples:

        bayesvlm detect calibrate posterior/ familiar/ --classes "cat,dog,horse" --false-alarms 0.05

        bayesvlm detect calibrate posterior/ imagenet:val --half --sets 0.1 --risk 0.1 --out detector/

        bayesvlm detect calibrate posterior/ familiar/ --classes-file names.txt --score mcm --plain --out plain/
    """
    from bayesvlm.cli.calibrating import calibration_images, given_negatives
    from bayesvlm.cli.detecting import About, Judges, check_replaceable, loaded, remove_earlier, stored_name
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.data.cache import FeatureCache
    from bayesvlm.experiments.feature_store import FeatureStore
    from bayesvlm.images.files import SkippedImages
    from bayesvlm.safety import Detector, PredictionSets, Selector

    check_shares({"--false-alarms": false_alarms, "--sets": sets, "--risk": risk, "--confidence": confidence})
    check_replaceable(out, overwrite)
    if plain and temperature is not None:
        raise BayesVLMError("--plain is a temperature of 1; leave it out with --temperature.")
    predictive: Any = "plain" if plain else "bayes" if temperature is None else temperature
    words = given_negatives(score, negatives)
    skipped = SkippedImages(strict)
    vlm = loaded(posterior, model, device, strict)
    found = calibration_images(
        images,
        (classes, classes_file),
        (template, templates),
        FeatureStore(vlm, FeatureCache(cache)),
        root,
        skipped,
        labelled=sets is not None or risk is not None or half,
        half=half,
    )
    if skipped.reasons:
        remark(str(skipped))
    given: dict[str, Any] = {
        "templates": found.templates,
        "predictive": predictive,
        "source": found.source,
        "progress": False,
    }
    alike = (vlm, found.features)
    detector = Detector.calibrate(*alike, found.classes, false_alarms, score, negatives=words, **given)
    judges = Judges(detector)
    if sets is not None:
        assert found.labels is not None
        made = PredictionSets.calibrate(
            *alike,
            found.labels,
            found.classes,
            sets,
            kind,  # type: ignore[arg-type]
            by_class=by_class,
            **given,
        )
        judges = Judges(detector, made)
    if risk is not None:
        assert found.labels is not None
        selector = Selector.calibrate(*alike, found.labels, found.classes, risk, confidence, **given)
        judges = Judges(detector, judges.sets, selector)
    check_replaceable(out, overwrite)  # another command may have been here meanwhile
    remove_earlier(out)
    for judge in (judges.detector, judges.sets, judges.selector):
        if judge is not None:
            judge.save(_folder(out))
    About(stored_name(posterior), None if model is None else stored_name(model), found.name).save(out)
    result = {
        "detector": str(out),
        "posterior": posterior,
        "images": len(found.features),
        "classes": len(found.classes),
        **judges.facts(),
        "skipped": skipped.reasons,
    }
    text = [*judges.described(), f"saved to {out}; `bayesvlm detect run {out} photos/ --out answers.csv` asks it"]
    emit(result, text, as_json)


@detect.command()
def run(
    detector: Annotated[Path, typer.Argument(help="A folder that `detect calibrate` made.")],
    images: Annotated[list[Path], typer.Argument(help="Image files, folders of them, or a table that lists them.")],
    posterior: Annotated[
        str | None, typer.Option(help="Where the posterior is now, if it has moved: folder or Hub id.")
    ] = None,
    false_alarms: Annotated[
        float | None, typer.Option(help="Another rate of false alarms. [default: the one it was made with]")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", help="Write the answers here (.csv, .jsonl or .parquet), and a page beside them (.html)."
        ),
    ] = None,
    overwrite: Overwrite = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Images that go through the model at once.")] = 64,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Processes that read images; 0 uses threads. [default: by number and cores]"),
    ] = None,
    cache: Cache = None,
    model: Model = None,
    device: Device = None,
    strict: StrictPosterior = False,
    as_json: Json = False,
) -> None:
    """Say of images how familiar they are, with a p-value, and flag those that are unlike the familiar ones.

    Where the detector was made with --sets or --risk each image also has the classes it may be of, and whether to
    answer. With --out the answers are written as they come, and the same command after an interruption goes on where
    it was; a page shows how the images compare with the familiar ones, and the most and least familiar of them.

    Examples:

        bayesvlm detect run detector/ photo.jpg

        bayesvlm detect run detector/ photos/ --out answers.csv

        bayesvlm detect run detector/ photos/ --false-alarms 0.01 --posterior moved/posterior --json
    """
    from bayesvlm.cli.answering import Answering, stamp
    from bayesvlm.cli.answers import AnswerFile
    from bayesvlm.cli.detecting import About, Judges, loaded
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.data.cache import FeatureCache
    from bayesvlm.data.labelled.listed import with_tables
    from bayesvlm.experiments.feature_store import FeatureStore
    from bayesvlm.images.files import SkippedImages, find_all_images
    from bayesvlm.report.page import check_replaces

    check_shares({"--false-alarms": false_alarms})
    about = About.load(detector)
    answers = None if out is None else AnswerFile(out, overwrite)
    made_from = {"command": "detect run", "detector": str(detector.resolve()), "images": [str(path) for path in images]}
    page = None if out is None else out.with_suffix(".html")
    if page is not None:
        check_replaces(page, made_from, overwrite)
    skipped = SkippedImages(strict)
    paths = find_all_images(with_tables(images), skipped)
    if not paths:
        raise BayesVLMError(
            f"There are no images in {', '.join(map(str, images))}; give image files or folders of them"
            f"{skipped.beside}."
        )
    name, moved = posterior or about.posterior, model or about.model
    vlm = loaded(name, moved if posterior is None else model, device, strict)
    judges = Judges.load(detector, vlm).at(detector, false_alarms)
    question = {
        "images": stamp(*paths),
        "detector": stamp(detector),
        "files": stamp(*(Path(each) for each in (name, moved) if each)),
        "false_alarms": false_alarms,
    }
    asking = Answering(
        "looking",
        paths,
        FeatureStore(vlm, FeatureCache(cache), workers),
        skipped,
        answers,
        question,
        None,
        batch_size,
        forget=() if as_json or answers is None else ("set",),
    )
    found = asking.run(_describing(judges))
    summary = _summary(found.rows, judges)
    result = {
        "detector": str(detector),
        "posterior": name,
        "judged_by": judges.facts(),
        "summary": summary,
        "images": found.rows,
        "skipped": skipped.reasons,
    }
    shown = found.rows[:SHOWN] if answers else found.rows
    text: list[str | Table] = [_as_table(shown), *judges.described(), _sentence(summary, judges)]
    if page is not None:
        _write_page(page, judges, found.rows, paths, about, made_from)
        result["report"] = str(page)
        text.append(f"the answers are in {out} ({found.pace()}); the page is {page}")
    emit(result, text, as_json)


def _folder(out: Path) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    return out


def _describing(judges: Judges) -> Callable[[int], Callable[[list[Path], Features], list[Row]]]:
    from bayesvlm.images.files import shown_path

    def prepare(already: int) -> Callable[[list[Path], Features], list[Row]]:
        judge, names = judges.begin(already), judges.prompts.names
        assert judges.detector is not None
        scorer = judges.detector.basis.scorer

        def describe(paths: list[Path], features: Features) -> list[Row]:
            found, labels = scorer.answers(features, ["msp"])
            best = zip(paths, labels.tolist(), found["msp"].tolist(), judge(features), strict=True)
            return [
                {"image": shown_path(path), "top": [{"class": names[label], "prob": prob}], **said}
                for path, label, prob, said in best
            ]

        return describe

    return prepare


def _summary(rows: Sequence[Row], judges: Judges) -> dict[str, Any]:
    """Counts of all images."""
    found: dict[str, Any] = {"images": len(rows), "unknown": sum(bool(row["unknown"]) for row in rows)}
    if judges.sets is not None:
        sizes = [row["set_size"] for row in rows]
        found |= {"mean_set": sum(sizes) / len(sizes), "empty_sets": sizes.count(0)}
    if judges.selector is not None:
        found["answered"] = sum(bool(row["answered"]) for row in rows)
    return found


def _sentence(summary: dict[str, Any], judges: Judges) -> str:
    assert judges.detector is not None
    rate = judges.detector.false_alarms
    text = (
        f"{summary['unknown']} of {summary['images']} images are flagged as unknown; if all were familiar, "
        f"{rate * summary['images']:.3g} would be, on average"
    )
    if "mean_set" in summary:
        text += f"; a prediction set holds {summary['mean_set']:.3g} classes on average"
    if "answered" in summary:
        text += f"; {summary['answered']} are answered"
    return text


def _as_table(rows: Sequence[Row]) -> Table:
    from bayesvlm.cli.detecting import judged, judged_columns

    lines = []
    for row in rows:
        best = row["top"][0]
        lines.append([row["image"], best["class"], f"{best['prob']:.3f}", f"{row['familiarity']:.4g}", *judged(row)])
    return table("", ["image", "class", "prob.", "familiarity", *judged_columns(rows[0])], lines, texts=2)


def _write_page(
    page: Path, judges: Judges, rows: Sequence[Row], paths: Sequence[Path], about: Any, made_from: dict[str, Any]
) -> None:
    """The page of the answers, with the images at both ends of the score."""
    import torch

    from bayesvlm.experiments.thumbnails import extremes, of_files
    from bayesvlm.images.files import shown_path
    from bayesvlm.report.detection import DetectionReport, write_detection

    places = {shown_path(path): path for path in paths}
    values = torch.tensor([row["familiarity"] for row in rows], dtype=torch.float64)

    def ends(most: bool) -> list[Any]:
        chosen = [rows[index] for index in extremes(values, THUMBNAILS, most)]
        labels = [
            f"{row['top'][0]['class']} ({100 * row['top'][0]['prob']:.0f} %), p = {row['p_value']:.3g}"
            for row in chosen
        ]
        return of_files([places[row["image"]] for row in chosen], [row["familiarity"] for row in chosen], labels)

    assert judges.detector is not None
    report = DetectionReport(
        detector=judges.detector,
        calibrated_on=about.images,
        familiarity=values,
        p_values=torch.tensor([row["p_value"] for row in rows], dtype=torch.float64),
        sizes=None if judges.sets is None else torch.tensor([row["set_size"] for row in rows]),
        answered=None if judges.selector is None else torch.tensor([bool(row["answered"]) for row in rows]),
        least=ends(False),
        most=ends(True),
        sets=judges.sets,
        selector=judges.selector,
    )
    write_detection(report, page, shlex.join(["bayesvlm", *sys.argv[1:]]), made_from)
