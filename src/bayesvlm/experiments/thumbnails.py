"""The images at both ends of a score, to be looked at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.labelled.samples import LabelledSet, Sample
from bayesvlm.images.decoding import ImageLike, to_rgb


@dataclass(frozen=True)
class Thumbnail:
    """An image, what it is called, and its score."""

    image: Image.Image
    name: str
    label: str  # what it shows, "" where nobody has said it
    score: float


def extremes(values: Tensor, count: int, most: bool) -> list[int]:  # [N]
    """The indices of the highest values, or of the lowest, the utmost first; equal ones in their order."""
    return [int(index) for index in values.argsort(descending=most, stable=True)[:count]]


def of_set(data: LabelledSet, names: Sequence[str], scores: Mapping[str, float]) -> list[Thumbnail]:
    """The samples of a set that are called so, in this order; those that cannot be read are left out."""
    wanted = set(names)
    found: dict[str, Sample] = {}
    for sample in data:
        if sample.name in wanted:
            found[sample.name] = sample
            if len(found) == len(wanted):
                break
    shown = []
    for name in names:
        if name not in found:
            continue
        label_index, image = found[name].label, _read(found[name].image, name)
        if image is not None:
            label = data.classes[label_index] if 0 <= label_index < len(data.classes) else ""
            shown.append(Thumbnail(image, name, label, scores[name]))
    return shown


def of_files(paths: Sequence[Path], scores: Sequence[float], labels: Sequence[str]) -> list[Thumbnail]:
    """Image files in this order; those that cannot be read any more are left out."""
    found = []
    for path, score, label in zip(paths, scores, labels, strict=True):
        image = _read(path, str(path))
        if image is not None:
            found.append(Thumbnail(image, path.name, label, score))
    return found


def _read(image: ImageLike, name: str) -> Image.Image | None:
    try:
        return to_rgb(image, name)
    except BayesVLMError:
        return None
