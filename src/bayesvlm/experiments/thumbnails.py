"""The images at both ends of a score, to be looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.labelled.samples import LabelledSet, Sample
from bayesvlm.images.decoding import ImageLike, to_rgb
from bayesvlm.images.files import names_a_file, path_shown
from bayesvlm.retrieval.hits import Hits
from bayesvlm.retrieval.places import SOURCE, pictures_of_set

_SIDE = 256  # pixels of an image that is kept to be shown small


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


def of_hits(searches: Iterable[Hits], root: Path | None = None) -> dict[str, Image.Image]:
    """The images that searches found, small, by their ids; those that are not here any more are left out.

    Args:
        searches: what each query found.
        root: the folder of the data sets that images may have come from.
    """
    rows: list[tuple[str, str | None, str | None]] = []
    for hits in searches:
        sources = hits.columns.get(SOURCE, [None] * len(hits))
        rows += zip(hits.ids, hits.paths, sources, strict=True)
    return of_pictures(rows, root)


def of_pictures(rows: Iterable[tuple[str, str | None, str | None]], root: Path | None = None) -> dict[str, Image.Image]:
    """Images by their names, small; those that are not here any more are left out.

    Args:
        rows: of each its name, the path of its file, and the place that it is of.
        root: the folder of the data sets.
    """
    files: dict[str, ImageLike] = {}
    of_sets: dict[str, list[str]] = {}
    for name, path, source in rows:
        if path is not None:
            files[name] = path_shown(path)
        elif source is not None:
            of_sets.setdefault(source, []).append(name)
    for source, names in of_sets.items():
        files |= pictures_of_set(source, names, root)
    found = ((name, _small(image, name)) for name, image in files.items())
    return {name: image for name, image in found if image is not None}


def of_queries(searches: Iterable[Hits]) -> dict[str, Image.Image]:
    """The images among the queries, small, by what the query is called."""
    names = {hits.query for hits in searches}
    found = {name: _small(Path(name), name) for name in names if names_a_file(name)}
    return {name: image for name, image in found.items() if image is not None}


def _small(image: ImageLike, name: str) -> Image.Image | None:
    found = _read(image, name)
    if found is not None:
        found.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    return found


def _read(image: ImageLike, name: str) -> Image.Image | None:
    try:
        return to_rgb(image, name)
    except BayesVLMError:
        return None
