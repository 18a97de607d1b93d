"""The images that a detector is calibrated on: with labels or without, their classes, and what they are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesvlm.cli.output import remark

if TYPE_CHECKING:
    from torch import Tensor

    from bayesvlm.core.features import Features
    from bayesvlm.experiments.feature_store import FeatureStore
    from bayesvlm.images.files import SkippedImages


@dataclass(frozen=True, eq=False)
class CalibrationImages:
    """Familiar images as the model sees them.

    Args:
        name: of the set.
        features: [n]
        labels: indices into the classes, [n]; None where they were not asked for.
        classes: names, or for a class with synonyms a list of them.
        templates: prompts with {c} for the class.
        source: what provenance calls the images.
    """

    name: str
    features: Features
    labels: Tensor | None
    classes: list[Any]
    templates: list[str]
    source: str


def calibration_images(
    given: str,
    classes: tuple[str | None, Path | None],
    templates: tuple[list[str] | None, str | None],
    store: FeatureStore,
    root: Path | None,
    skipped: SkippedImages,
    *,
    labelled: bool,
    half: bool,
) -> CalibrationImages:
    """Images to calibrate on; the classes are those that are given, or the set's.

    Args:
        given: what they are called.
        classes: of --classes and --classes-file.
        templates: of --template and --templates.
        store: encodes them.
        root: of the known sets.
        skipped: what cannot be read.
        labelled: whether labels are needed.
        half: take the half of them that `tune --half` leaves.
    """
    import torch

    from bayesvlm.cli.labelled import labelled_source
    from bayesvlm.cli.prompts import class_names, templates_given, to_ask_for, tuned_otherwise
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.data import resolve
    from bayesvlm.data.labelled.class_names import ClassNames
    from bayesvlm.data.labelled.folders import TEMPLATES
    from bayesvlm.data.labelled.templates import ALL
    from bayesvlm.pretrained import own_templates
    from bayesvlm.safety import halves

    names = None if classes == (None, None) else class_names(*classes)
    own: Sequence[str]
    labels = None
    if labelled:
        source = labelled_source(given, root, skipped, names)
        own, asked, name = source.templates, names or ClassNames.of(list(source.classes)), source.name
        encoded = source.encode(store, asked, skipped)
        features, labels = encoded.features, torch.tensor(encoded.labels)
    else:
        data = resolve(given, kind="images", root=root).open(strict=skipped.strict)
        if names is None and len(data.classes) < 2:
            raise BayesVLMError(
                f"{data.name} has no class folders, so nothing says which classes are known; give them with --classes "
                "'cat,dog' or --classes-file names.txt."
            )
        own, asked, name = data.templates, names or ClassNames.of(list(data.classes)), data.name
        found = store.unlabelled(data)
        skipped.reasons.update(found.skipped)
        features = found.features
    prompts = templates_given(*templates)
    if prompts is None:
        used = own_templates(store.vlm) if names is not None or own is TEMPLATES else [own[0]]
    else:
        used = list(own) if prompts == ALL else list(prompts)
    if note := tuned_otherwise(store.vlm, used):
        remark(note)
    source_name = _source(given, name)
    if half:
        assert labels is not None
        rows = halves(labels)[1]
        features, labels, source_name = features[rows], labels[rows], f"{source_name}, second half"
    return CalibrationImages(name, features, labels, to_ask_for(asked), used, source_name)


def _source(given: str, name: str) -> str:
    """What a set is called where `tune` and the embedded posteriors say what they were tuned on."""
    from bayesvlm.embedded import SPLITS

    return f"the embedded world, split {given}" if given in SPLITS else name


def given_negatives(score: str, negatives: Path | None) -> list[str] | None:
    """The words of --negatives, if the score is the one that takes some."""
    from bayesvlm.cli.detecting import read_words
    from bayesvlm.core.errors import BayesVLMError

    asked = score.strip().lower() == "neglabel"
    if asked and negatives is None:
        raise BayesVLMError(
            "--score neglabel holds the classes against words for what the images are not; give a file of them, one "
            "per line, with --negatives."
        )
    if negatives is not None and not asked:
        raise BayesVLMError(f"--negatives goes with --score neglabel, and the score is {score!r}; leave one out.")
    return None if negatives is None else read_words(negatives)
