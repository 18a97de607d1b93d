"""`bayesvlm finetune`: what came back from the labellers, learnt."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from bayesvlm.cli.options import (
    Cache,
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
    from torch import Tensor

    from bayesvlm.active.rounds import Rounds
    from bayesvlm.core.features import Features
    from bayesvlm.data.labelled.class_names import ClassNames
    from bayesvlm.vlm import BayesVLM


def finetune(
    context: typer.Context,
    posterior: Annotated[str, typer.Argument(help="A saved posterior (folder or Hub id), or an embedded model.")],
    labels: Annotated[
        list[str],
        typer.Argument(
            help="All labels so far: tables of images and labels (csv, tsv, jsonl, parquet), Label Studio's exports "
            "(JSON, JSON-MIN, CSV), or folders with a subfolder of images per class."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the fine-tuned posterior.")] = Path("adapted"),
    classes: Annotated[
        str | None,
        typer.Option(
            "--classes",
            help='Class names, separated by commas, synonyms by bars: "couch|sofa,bed". [default: the labels]',
        ),
    ] = None,
    classes_file: ClassesFile = None,
    template: Template = None,
    templates: OwnTemplates = None,
    validation: Annotated[
        str | None,
        typer.Option(
            "--validation",
            help="Labelled images that choose the epoch and say what was gained, given as the labels are, or a set "
            "that `eval --list` shows. Without it the last epoch is kept.",
        ),
    ] = None,
    previous: Annotated[
        Path | None,
        typer.Option(
            "--previous",
            help="What finetune wrote in the last round, with fewer labels: says what the new ones gained.",
        ),
    ] = None,
    worth: Annotated[
        float | None, typer.Option("--worth", help="Nats that a hundred more labels must gain. [default: 0.02]")
    ] = None,
    tune: Annotated[bool, typer.Option("--tune", help="Choose tau anew on the validation images.")] = False,
    method: Annotated[
        str,
        typer.Option(help="The prediction that chooses the epoch: probcosine, or mean to use it without variances."),
    ] = "probcosine",
    lr: Annotated[float, typer.Option("--lr", help="Learning rate; the paper's for CLIP is 1e-5.")] = 1e-4,
    epochs: Annotated[int, typer.Option(help="Epochs; the best one on the validation images is kept.")] = 100,
    seed: Annotated[int, typer.Option(help="Seed of the order of the batches.")] = 0,
    overwrite: Overwrite = False,
    root: Root = None,
    cache: Cache = None,
    model: Model = None,
    device: Device = None,
    strict: StrictPosterior = False,
    as_json: Json = False,
) -> None:
    """Fine-tune the image projection on labelled images, and say what the labels gained.

    Trains from the posterior you give, on all labels you give: in a second round give the same posterior and all labels
    so far, not the result of the first. The result is a posterior, with the labelled images in it, that every command
    takes. With --previous it says whether the labels since then paid.

    Examples:

        bayesvlm finetune posterior/ labels.csv --validation validation/ --out adapted/

        bayesvlm finetune posterior/ export.json --classes-file names.txt --validation val.csv --lr 1e-5

        bayesvlm finetune posterior/ labels.csv more.csv --validation validation/ --previous adapted/ --out adapted-2/
    """
    import torch

    from bayesvlm.active import finetune as train
    from bayesvlm.active.rounds import FILE, Rounds
    from bayesvlm.active.stopping import WORTH
    from bayesvlm.artifacts.destination import posterior_destination
    from bayesvlm.cli.labelled import joined, labelled_source
    from bayesvlm.cli.prompts import class_names, templates_given, to_ask_for
    from bayesvlm.core.errors import BayesVLMError, BayesVLMWarning, check_choice, check_positive
    from bayesvlm.data import SkippedImages
    from bayesvlm.data.cache import FeatureCache
    from bayesvlm.embedded import PROMPTS
    from bayesvlm.experiments.feature_store import FeatureStore
    from bayesvlm.pretrained import own_templates
    from bayesvlm.prompts import ClassPrompts
    from bayesvlm.vlm import BayesVLM

    for name, given in {"--tune": tune, "--previous": previous, "--worth": worth is not None}.items():
        if given and validation is None:
            raise BayesVLMError(f"{name} needs validation images; name them with --validation, or leave it out.")
    worth = WORTH if worth is None else check_positive("--worth", worth)
    check_choice("--method", method, ("probcosine", "mean"))
    context.with_resource(posterior_destination(out, overwrite))
    earlier = None if previous is None else Rounds.load(previous)
    skipped = SkippedImages(strict)
    stated = None if classes is None and classes_file is None else class_names(classes, classes_file)
    sources = [labelled_source(name, root, skipped, stated) for name in labels]
    held = None if validation is None else labelled_source(validation, root, skipped, stated)
    called = ", ".join(labels)
    known = stated or _occurring(sorted({name for source in sources for name in source.classes}), called)
    said = templates_given(template, templates, ())
    names = list(ClassPrompts.of(to_ask_for(known), said or PROMPTS).names)
    vlm = BayesVLM.from_pretrained(posterior, model=model, device=device, strict=strict)
    _ = vlm.factors  # nothing is encoded for a model without a posterior
    if (before := vlm.provenance.get("fine_tuned_on")) is not None:
        remark(
            f"{posterior} was fine-tuned on {before} images already: labels that were among them count twice; start "
            "from the posterior before, with all labels"
        )
    encoder = FeatureStore(vlm, FeatureCache(cache))
    images = joined([source.encode(encoder, known, skipped) for source in sources], names)
    checked = None if held is None else held.encode(encoder, known, skipped)
    if skipped.reasons:
        remark(str(skipped))
    counts = Counter(names[label] for label in images.labels)
    if len(counts) < 2:
        raise BayesVLMError(
            f"All {len(images.labels)} labelled images of {called} that can be read are of the class "
            f"{next(iter(counts))!r}; there is nothing to tell apart, so label images of another class too."
        )
    if missing := [name for name in names if name not in counts]:
        remark(f"no image is labelled {_few(missing)}: nothing is learnt of what no label is about")
    if checked is None:
        remark("without --validation the last epoch is kept, and nothing says what the labels gained")
    elif both := set(images.places) & set(checked.places):
        remark(f"{len(both)} of the validation images are among the labelled ones, so that the figures flatter")
    prompts = said or own_templates(vlm)
    texts = encoder.classes(ClassPrompts.of(to_ask_for(known), prompts))
    truth = None if checked is None else (checked.features, checked.labels)
    start = vlm
    with warnings.catch_warnings():
        if tune and truth is not None:
            start = vlm.copy().tune(*truth, texts)
            warnings.simplefilter("ignore", BayesVLMWarning)  # what there is to say of the grid is said once
        adapted = train(start, images.features, images.labels, texts, truth, lr, seed, epochs=epochs, method=method)  # type: ignore[arg-type]
        if tune and truth is not None:
            adapted = adapted.tune(*truth, texts)
    facts: dict[str, Any] = {
        "labels": labels, "classes": names, "templates": prompts, "lr": lr, "epochs": epochs, "seed": seed,
        "method": method, "validation": validation,
    }  # fmt: skip
    rounds, scores = None, {}
    if checked is not None:
        models = {"before": start, "after": adapted}
        losses = {name: _losses(of, checked.features, checked.labels, texts) for name, of in models.items()}
        both_rounds = {0: losses["before"], len(images.labels): losses["after"]}
        rounds = Rounds(tuple(checked.names), both_rounds)
        if earlier is not None and previous is not None:
            rounds = rounds.after(earlier, previous)
        scores = {name: _scores(of, checked.features, checked.labels, texts) for name, of in models.items()}
        facts["validation_nlpd"] = {str(count): estimate.value for count, estimate in rounds.nlpd.items()}
    adapted.with_provenance(fine_tuning=facts).save_pretrained(out, model=model)
    if rounds is None:
        (out / FILE).unlink(missing_ok=True)  # of an earlier result
    else:
        rounds.save(out)
    result = {
        "posterior": posterior,
        "out": str(out),
        "images": len(images.labels),
        "classes": {name: counts[name] for name in names},
        "tau": adapted.tau,
        "validation_images": 0 if checked is None else len(checked.labels),
        "scores": {name: {key: vars(estimate) for key, estimate in of.items()} for name, of in scores.items()},
        "skipped": skipped.reasons,
    }
    text: list[Any] = []
    if rounds is not None:
        verdict = _verdict(rounds, worth)
        result |= {"rounds": _history(rounds), "verdict": verdict["verdict"]}
        columns = list(scores["after"])
        rows = [[name, *(str(of[column]) for column in columns)] for name, of in scores.items()]
        text = [table(f"on {len(rounds.images)} validation images", ["", *columns], rows), verdict["text"]]
        if torch.equal(start.image.augmented, adapted.image.augmented):
            text.append(
                "no epoch was better on the validation images than no training, so the weights are as they came"
            )
    text.append(f"{len(images.labels)} labelled images of {len(counts)} classes learnt; the posterior is in {out}")
    emit(result, text, as_json)


def _occurring(occurring: list[str], source: str) -> ClassNames:
    """The labels as the classes, where none are named."""
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.data.labelled.class_names import ClassNames

    if len(occurring) < 2:
        raise BayesVLMError(
            f"All labels of {source} are {', '.join(map(repr, occurring))}; there is nothing to tell apart, so label "
            "images of another class too."
        )
    remark(
        f"the {len(occurring)} labels that occur are the classes ({_few(occurring)}); if there are more, name all of "
        "them with --classes-file"
    )
    return ClassNames(source, tuple((name,) for name in occurring))


def _few(names: list[str]) -> str:
    return f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"


def _losses(vlm: BayesVLM, images: Features, labels: list[int], texts: Features) -> Tensor:  # [N]
    import torch

    from bayesvlm.evaluation.outcomes import negative_log_likelihood

    return negative_log_likelihood(vlm.classify(images, texts).probs.cpu(), torch.tensor(labels)).double()


def _scores(vlm: BayesVLM, images: Features, labels: list[int], texts: Features) -> dict[str, Any]:
    """Accuracy and NLPD with their standard errors, of the weights alone and of the Bayesian prediction."""
    import torch

    from bayesvlm.evaluation import accuracy, nlpd

    truth = torch.tensor(labels)
    ways = {"plain": vlm.plain(images, texts).cpu(), "Bayes": vlm.classify(images, texts).probs.cpu()}
    measures = {"accuracy": accuracy, "NLPD": nlpd}
    return {f"{name}, {way}": of(probs, truth) for name, of in measures.items() for way, probs in ways.items()}


def _history(rounds: Rounds) -> list[dict[str, float]]:
    return [
        {"labels": labels, "nlpd": estimate.value, "standard_error": estimate.standard_error}
        for labels, estimate in rounds.nlpd.items()
    ]


def _verdict(rounds: Rounds, worth: float) -> dict[str, str]:
    """What the last labels gained, and what follows from it."""
    gains = rounds.gains()
    last = gains[0]
    said = f"the last {last.labels} labels gained {last.nats} nats (NLPD, Bayes)"
    stale = next((gain for gain in gains if gain.below(worth)), None)
    if stale is not None:
        since = "" if stale is last else f", the last {stale.labels} together {stale.nats}"
        text = (
            f"{said}{since}: less than {worth:g} for a hundred, which labels must gain (--worth). Stop if `bayesvlm "
            "select --labelled` expects no more of the images that are left"
        )
        return {"verdict": "stopped paying", "text": text}
    if last.paid:
        return {"verdict": "paying", "text": f"{said}: labels are paying"}
    text = f"{said}: {len(rounds.images)} images are too few to tell whether {last.labels} labels pay; label some more"
    return {"verdict": "cannot be told", "text": text}
