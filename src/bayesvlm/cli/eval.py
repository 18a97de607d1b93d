"""`bayesvlm eval`: accuracy, NLPD and calibration of every method, for models x data sets."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesvlm.cli.engine import Actors, Address, CpusPerActor, Engine, GpusPerActor, ray_options
from bayesvlm.cli.options import (
    Cache,
    Device,
    Json,
    Model,
    Overwrite,
    Root,
    SetClasses,
    StrictPosterior,
    Template,
    Templates,
)
from bayesvlm.cli.output import emit, remark, table

if TYPE_CHECKING:
    from bayesvlm.data import LabelledSet
    from bayesvlm.data.labelled.class_names import ClassNames
    from bayesvlm.experiments.zero_shot import ZeroShot


def evaluate(
    context: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(help="Embedded models, saved posteriors (folders, Hub ids), or plain models."),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data",
            "-d",
            help="Images to test on: a name shown by --list, a folder, or a table of images and labels; NAME:SPLIT; "
            "repeatable.",
        ),
    ] = None,
    validation: Annotated[
        str | None,
        typer.Option(
            help="A labelled set to find temperatures on; without one temperature and raised-temperature are left out. "
            "[default for emoji models: their validation split]"
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="Methods to compare, comma-separated: plain, temperature, raised-temperature (as high as one standard "
            "error of the validation NLPD allows), tta, bayes, bayes+tta; or all; for models that predict variances "
            "mean, native, probcosine. [default: plain,temperature,raised-temperature,bayes or these three]"
        ),
    ] = None,
    views: Annotated[int, typer.Option(help="How many random crops of an image vote (tta).")] = 64,
    keep: Annotated[float, typer.Option(help="Share of the crops that vote: the surest.")] = 0.3,
    classes_file: SetClasses = None,
    template: Template = None,
    templates: Templates = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for results, tables and the page.")] = Path(
        "results"
    ),
    form: Annotated[str | None, typer.Option("--table", help="Print only a table: md, latex or csv.")] = None,
    engine: Engine = "local",
    address: Address = None,
    actors: Actors = None,
    gpus_per_actor: GpusPerActor = None,
    cpus_per_actor: CpusPerActor = None,
    root: Root = None,
    cache: Cache = None,
    skip_existing: Annotated[
        bool, typer.Option("--skip-existing", help="Keep results that were measured from the same inputs.")
    ] = False,
    overwrite: Overwrite = False,
    model: Model = None,
    ood: Annotated[
        list[str] | None,
        typer.Option(
            "--ood",
            help="Unknown things to tell from the known ones of --data: a set shown by --list, a folder of images or a "
            "table; repeatable. The first --data is what is familiar, further ones are its classes under a shift.",
        ),
    ] = None,
    selective: Annotated[
        bool, typer.Option("--selective", help="Measure how well wrong answers are found, instead of the usual tables.")
    ] = False,
    retrieval: Annotated[
        bool,
        typer.Option(
            "--retrieval",
            help="Measure search on caption sets, both ways: --data names a split of the world, a folder or file of "
            "captions (COCO, Karpathy, Flickr, csv, jsonl).",
        ),
    ] = False,
    negatives: Annotated[
        Path | None,
        typer.Option(help="With --ood: a file of words for what the images are not, one per line, for NegLabel."),
    ] = None,
    keep_known: Annotated[
        bool, typer.Option("--keep-known", help="With --ood: known classes in such a set are unknown all the same.")
    ] = False,
    false_alarms: Annotated[
        float | None,
        typer.Option(help="With --ood: share of familiar images that may be flagged. [default: 0.05]"),
    ] = None,
    miss: Annotated[
        float | None,
        typer.Option(help="With --ood: how often a prediction set may lack the right class. [default: 0.1]"),
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="Show the sets there are, and where each was found.")] = False,
    device: Device = None,
    strict: StrictPosterior = False,
    as_json: Json = False,
) -> None:
    """Measure models on labelled sets: top-1, NLPD and calibration, with standard errors and significance.

    Writes one json (and the numbers behind it) for each model and set, and a table and a page of everything that is in
    the folder. Features are encoded once and kept, so that a second call takes seconds; with --engine ray the images
    are encoded by a Ray cluster. A result that was made from other inputs is replaced with --overwrite only.

    With --ood or --selective it measures what the model does not know: how well each score tells unknown things from
    known ones (AUROC, FPR95, AUPR with bootstrap intervals, DeLong's test against MCM), and how well wrong answers are
    found (AURC, E-AURC, AUGRC, coverage at a risk). The page is unknown.html.

    With --retrieval texts search images and images search texts: recall, R-precision, mAP@R, which first answers each
    doubt finds wrong, and which says that nothing matches. The page is retrieval.html.

    Examples:

        bayesvlm eval emoji-clip emoji-siglip -d new-drawing -d openmoji-black

        bayesvlm eval emoji-prolip -d new-drawing -d openmoji-black --methods mean,native,probcosine

        bayesvlm eval posterior/ -d food101 -d data/my-images --validation imagenet --table latex

        bayesvlm eval posterior/ -d photos.csv --classes-file names.csv

        bayesvlm eval emoji-clip -d new-drawing -d openmoji-black --ood flags --ood photos/

        bayesvlm eval posterior/ -d imagenet --ood inaturalist --ood sun --ood places --ood textures

        bayesvlm eval emoji-clip -d new-drawing -d openmoji-black --selective

        bayesvlm eval posterior/ --retrieval -d coco:val2017 -d photos/captions.csv

        bayesvlm eval --list
    """
    from bayesvlm.artifacts.files import check_writable
    from bayesvlm.cli.earlier import check_places, earlier_result
    from bayesvlm.cli.eval_retrieval import caption_sets, evaluate_retrieval, refuse_beside
    from bayesvlm.cli.eval_unknown import evaluate_unknown, unknown_options
    from bayesvlm.cli.prompts import templates_given
    from bayesvlm.core.errors import BayesVLMError, check_count
    from bayesvlm.data import resolve
    from bayesvlm.data.cache import FeatureCache
    from bayesvlm.data.labelled.class_names import ClassNames
    from bayesvlm.data.views import Views
    from bayesvlm.embedded import embedded_model
    from bayesvlm.engine import cluster, ray_encoder
    from bayesvlm.experiments.feature_store import FeatureStore
    from bayesvlm.experiments.methods import TEMPERED
    from bayesvlm.experiments.zero_shot import Result, ZeroShot, place
    from bayesvlm.report.page import check_replaces
    from bayesvlm.report.tables import FORMATS, render_table
    from bayesvlm.report.writing import write_whole
    from bayesvlm.report.zero_shot import MADE_FROM, prompts_used, write_zero_shot
    from bayesvlm.vlm import BayesVLM

    if listed:
        _list(root, as_json)
        return
    if not models or not data:
        raise BayesVLMError(
            "Name at least one model and one set, such as `bayesvlm eval emoji-clip -d openmoji-black`; "
            "`bayesvlm eval --list` shows the sets."
        )
    if form is not None and form not in FORMATS:
        raise BayesVLMError(f"--table {form!r} is not known; use {' or '.join(FORMATS)}.")
    if model is not None and len(models) > 1:
        raise BayesVLMError(f"--model {model} goes with one posterior, and there are {len(models)}; name one.")
    check_count("--views", views)
    asked = ray_options(engine, address, actors, gpus_per_actor, cpus_per_actor, device)
    prompts = templates_given(template, templates)
    chosen = None if methods is None else _methods(methods)
    usual = {"--table": form is not None, "--skip-existing": skip_existing}
    if retrieval:
        refuse_beside(ood, selective, validation, methods, classes_file, template, templates, form, views, keep)
    unknown = unknown_options(ood, selective, negatives, keep_known, false_alarms, miss, usual)
    check_writable(out)
    if unknown is None and not retrieval:
        check_replaces(out / "report.html", MADE_FROM, overwrite)

    names = None if classes_file is None else ClassNames.of(classes_file)
    captions = caption_sets(data, root, strict) if retrieval else []
    sets = [] if retrieval else [resolve(name, root=root).open(strict=strict, classes=names) for name in data]
    check_places(out, models, [each.name for each in captions] + [each.name for each in sets])
    if not retrieval:
        _check_models(models, chosen, validation)
    store = FeatureCache(cache)
    resources = None if asked is None else context.with_resource(cluster(asked))

    def loaded(name: str) -> tuple[BayesVLM, FeatureStore]:
        vlm = BayesVLM.from_pretrained(name, model=model, device="cpu" if asked else device, strict=strict)
        if resources is None:
            return vlm, FeatureStore(vlm, store)
        images = context.with_resource(ray_encoder(vlm.encoder("images"), resources))
        return vlm, FeatureStore(vlm, store, images=images)

    if retrieval:
        evaluate_retrieval(loaded, models, captions, out, overwrite, skip_existing, as_json)
        return

    def ready(name: str) -> ZeroShot:
        vlm, encoder = loaded(name)
        tuned_on = validation or ("validation" if embedded_model(name) else None)
        tempered = not vlm.predicts_variance if chosen is None else bool(set(TEMPERED) & set(chosen))
        return ZeroShot(
            vlm,
            name,
            methods=chosen,
            validation=_validation(tuned_on, root, strict, names if validation else None)
            if tempered and tuned_on
            else None,
            views=Views(views),
            keep=keep,
            cache=store,
            templates=prompts,
            encoder=encoder,
        )

    if unknown is not None:
        evaluate_unknown(map(ready, models), models, sets, unknown, root, out, strict, overwrite, as_json)
        return
    results, skipped = [], []
    for run in map(ready, models):
        name = run.name
        paths = [place(out, name, labelled.name) for labelled in sets]
        before = [
            earlier_result(path, run.inputs(data), overwrite, Result.load)
            for path, data in zip(paths, sets, strict=True)
        ]
        for labelled, path, result in zip(sets, paths, before, strict=True):
            if result is not None and skip_existing and not (strict and result.facts["skipped"]):
                remark(f"{name} on {labelled.name}: measured already, kept in {path}")
                skipped.append(str(path))
            else:
                result = run.run(labelled)
                earlier_result(
                    path, result.inputs, overwrite, Result.load
                )  # another command may have been here meanwhile
                result.save(out)
            _remarks(result, path)
            results.append(result)
    everything = _with_earlier(results, out)
    for kind in FORMATS:
        write_whole(out / f"table.{'tex' if kind == 'latex' else kind}", render_table(everything, kind).encode())
    command = shlex.join(["bayesvlm", *sys.argv[1:]])
    page = write_zero_shot(everything, out / "report.html", command)
    if form is not None and not as_json:
        print(render_table(everything, form), end="")
        return
    emit(
        {"results": [result.numbers for result in results], "skipped": skipped, "report": str(page)},
        [*_tables(results), prompts_used(results), f"results, tables and pictures are in {out}; the page is {page}"],
        as_json,
    )


def _validation(name: str, root: Path | None, strict: bool, names: ClassNames | None) -> LabelledSet:
    """The set that the temperature is found on, which may have classes of its own."""
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.data import resolve

    source = resolve(name, root=root)
    if names is None:
        return source.open(strict=strict)
    try:
        return source.open(strict=strict, classes=names)
    except BayesVLMError as misfit:
        try:
            own = source.open(strict=strict)
        except BayesVLMError:
            raise misfit from None
        remark(f"the validation set {own.name} keeps its own class names: {misfit}")
        return own


def _check_models(models: list[str], methods: list[str] | None, validation: str | None) -> None:
    """Refuse what a method needs and a model lacks, before the first of them is measured."""
    from bayesvlm.artifacts.hub import find_posterior
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.embedded import embedded_model
    from bayesvlm.experiments.methods import SINGLE, TEMPERED
    from bayesvlm.models.loading import brings_variances
    from bayesvlm.models.probabilistic import probabilistic_family

    for name in models:
        folder = embedded_model(name) or Path(name).expanduser()
        if methods is None and (not folder.is_dir() or probabilistic_family(folder) is not None):
            continue  # which methods suit it is known when it is loaded
        asked = SINGLE if methods is None else methods
        if set(asked) <= set(TEMPERED) and validation is None and embedded_model(name) is None:
            raise BayesVLMError(
                f"{name}: the method {asked[0]} needs labelled images to find it on; name a set with --validation."
            )
        bayesian = any("Bayes" in method for method in asked)
        if bayesian and find_posterior(name) is None and folder.is_dir() and not brings_variances(folder):
            raise BayesVLMError(
                f"{name} has no posterior; fit one with `bayesvlm fit`, or leave the Bayesian methods out."
            )


def _with_earlier(results: list[Any], out: Path) -> list[Any]:
    """These results, then all others that lie in the folder."""
    from bayesvlm.experiments.zero_shot import load_results, place

    kept, reasons = load_results(out)
    for reason in reasons:
        remark(f"left out of the table and the page: {reason}")
    own = {place(out, result.model, result.data) for result in results}
    return [*results, *(result for result in kept if place(out, result.model, result.data) not in own)]


def _remarks(result: Any, path: Path) -> None:
    """What a reader of the figures should know of the data."""
    from bayesvlm.images.files import describe_skipped

    facts = result.facts
    for sentence in result.left_out:
        remark(f"{result.model} on {result.data}: {sentence}")
    if facts["skipped"]:
        remark(f"{result.data}: {describe_skipped(facts['skipped'])}\n{path} names them")
    if absent := facts["classes_without_images"]:
        remark(f"{result.data}: {len(absent)} of {facts['classes']} classes have no image, such as {absent[0]!r}")
    if repeated := facts["repeated_prompts"]:
        remark(f"{result.data}: {len(repeated)} prompts stand for several classes, such as {repeated[0]!r}")


def _methods(listed: str) -> list[str]:
    """The methods a user named, by their names in tables."""
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.experiments.methods import METHODS, PREDICTED

    def plainly(name: str) -> str:
        return "".join(letter for letter in name.lower() if letter not in " -_")

    if plainly(listed) == "all":
        return list(METHODS)
    known = {plainly(method): method for method in (*METHODS, *PREDICTED)}
    named = [plainly(name) for name in listed.split(",") if name.strip()]
    if not named or not set(named) <= set(known):
        shown = ", ".join(method.lower().replace(" + ", "+").replace(" ", "-") for method in known.values())
        raise BayesVLMError(f"--methods {listed!r}: use some of {shown}, separated by commas, or all.")
    return [method for name, method in known.items() if name in named]


def _tables(results: list[Any]) -> list[Any]:
    """One table per model, for the terminal."""
    rows: dict[str, list[list[str]]] = {}
    scales = {result.model: result.facts["scale"] for result in results}
    for result in results:
        best = {metric: result.winners(metric) for metric in ("top1", "nlpd", "ece")}
        for method, found in result.scores.items():
            star = {metric: "*" if method in best[metric] else " " for metric in best}
            rows.setdefault(result.model, []).append(
                [
                    result.data,
                    method,
                    f"{100 * found.top1.value:.1f} ± {100 * found.top1.standard_error:.1f}{star['top1']}",
                    f"{found.nlpd.value:.2f} ± {found.nlpd.standard_error:.2f}{star['nlpd']}",
                    f"{100 * found.ece:.1f}{star['ece']}",
                ]
            )
    columns = ["set", "method", "top-1 %", "NLPD", "ECE %"]
    titles = {model: f"{model}, t = {scales[model]:.4g} (* not worse than the best, p = 0.05)" for model in rows}
    return [table(titles[model], columns, of, texts=2) for model, of in rows.items()]


def _list(root: Path | None, as_json: bool) -> None:
    """The splits of the embedded world, the known sets, and the other folders below the root."""
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.data import resolve
    from bayesvlm.data.labelled import KNOWN
    from bayesvlm.data.names import data_root
    from bayesvlm.data.unlabelled import OUT_SETS
    from bayesvlm.embedded import SPLITS, world

    try:
        embedded = dict(world("Every one of these").SPLITS)
    except BayesVLMError:
        embedded = dict.fromkeys(SPLITS, "not here: `pip install 'bayesvlm[world]'`")
    known = {name: resolve(name, root=root) for name in KNOWN}
    outside = {name: resolve(name, kind="images", root=root) for name in OUT_SETS}
    found = {name: source.where if source.here else None for name, source in known.items()}
    top = data_root(root)
    used = {path for source in (*known.values(), *outside.values()) if source.here for path in source.paths}
    own = [
        path
        for path in (sorted(top.iterdir()) if top.is_dir() else [])
        if path.is_dir() and not path.name.startswith(".") and not any(each.is_relative_to(path) for each in used)
    ]
    result = {
        "embedded": embedded,
        "known": {name: {"title": entry.title, "found": found[name]} for name, entry in KNOWN.items()},
        "unknown": {
            name: {"title": OUT_SETS[name].title, "found": source.where if source.here else None}
            for name, source in outside.items()
        },
        "folders": {path.name: str(path) for path in own},
    }
    where = [[name, entry.title, found[name] or "not here"] for name, entry in KNOWN.items()]
    text = [
        table("embedded", ["set", "what it is"], [[name, what] for name, what in embedded.items()], texts=2),
        table("known", ["set", "title", "where it is"], where, texts=3),
    ]
    lines = [[name, OUT_SETS[name].title, source.where] for name, source in outside.items()]
    text.append(table("unknown things, for --ood", ["set", "title", "where it is"], lines, texts=3))
    if own:
        text.append(table(f"in {top}", ["set", "where it is"], [[path.name, str(path)] for path in own], texts=2))
    emit(result, text, as_json)
