"""Search: words or a picture against a collection; hits with intervals, or that nothing here matches."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import finalize

from PIL import Image

from bayesvlm.app.drawings import drawings
from bayesvlm.app.markup import axis_of, called, cosine, interval, page, percent, picture, quiet, rounded
from bayesvlm.app.models import Opened
from bayesvlm.app.uploads import Picture
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import Tower
from bayesvlm.core.features import Features
from bayesvlm.images.decoding import to_rgb

if TYPE_CHECKING:
    from bayesvlm.retrieval import Hit, Hits, Index
    from bayesvlm.retrieval.searching import Rank

SPLIT = "openmoji-colour"
"""The drawings that are searched where no index is given."""
ABSENT = "unseen-concepts"
"""Drawings of what is not among them, whose names say how many such queries are answered all the same."""
QUERIES = 300
"""Names of what is there, to learn from when nothing here matches."""
ERROR = 0.05
AT_ONCE = 128
"""Drawings that are encoded before the next look at whether the page is ending."""
THUMBNAIL = 160
RANKS: dict[str, Rank] = {
    "expected cosine": "mean",
    "lower end of the interval: be safe": "lower",
    "upper end: explore": "upper",
}


@dataclass(frozen=True)
class Collection:
    """An index, and where the pictures of its items are.

    Attributes:
        title: what it holds.
        index: what is searched.
        image_of: the picture of an item by its id and path.
        model: which one searches: the visitor's, or that of the index.
    """

    title: str
    index: Index
    image_of: Callable[[str, str | None], Image.Image | bytes | None]
    model: str

    def search(self, query: str | Picture, k: int, rank: Rank = "mean") -> Hits:
        """What is found for words, or for a picture."""
        asked = query.image if isinstance(query, Picture) else query
        tower: Tower = "image" if isinstance(query, Picture) else "text"
        found = self.index.search(asked, min(k, len(self.index)), tower=tower, rank=rank)
        if isinstance(found, list):
            raise BayesVLMError("There are several queries; ask one at a time.")
        return replace(found, query=query.title) if isinstance(query, Picture) else found


def of_world(opened: Opened, ending: Callable[[], bool] = lambda: False) -> Collection:
    """The world's drawings of one style, in a folder that goes when nobody needs it any more.

    It is calibrated with names of what is in it. When the page is `ending`, it is left unfinished.
    """
    if opened.vlm.predicts_variance:
        raise BayesVLMError(
            f"{opened.name} predicts a variance for every picture by itself, and an index keeps what a posterior says "
            "of all of them; open another model on the tab Model."
        )
    folder = tempfile.mkdtemp(prefix="bayesvlm-app-index-")
    try:
        return _filled(opened, folder, ending)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _filled(opened: Opened, folder: str, ending: Callable[[], bool]) -> Collection:
    from bayesvlm.retrieval import Index

    found = drawings(SPLIT)
    index = Index.create(folder, opened.vlm)
    parts = []
    for start in range(0, len(found), AT_ONCE):
        if ending():
            raise BayesVLMError("The page is ending.")
        images = [each.image for each in found[start : start + AT_ONCE]]
        parts.append(opened.vlm.image_features(images, progress=False))
    features = Features.concatenate(parts)
    index.add(features, [each.key for each in found], columns={"name": [each.name for each in found]}, progress=False)
    asked = [each.name for each in found[:: max(1, len(found) // QUERIES)]]
    there = {each.name: each.key for each in found}
    absent = sorted({each.name for each in drawings(ABSENT)})
    relevant = [[there[name]] for name in asked] + [[] for _ in absent]
    index.calibrate([*asked, *absent], relevant, error=ERROR, progress=False)
    packed = {each.key: each.image for each in found}
    collection = Collection(f"{len(found):,} drawings, {SPLIT}", index, lambda key, path: packed.get(key), opened.name)
    finalize(collection, shutil.rmtree, folder, ignore_errors=True)
    return collection


def of_index(folder: Path, device: str | None = None) -> Collection:
    """An index that `bayesvlm index` made; its pictures are looked for where they were."""
    from bayesvlm.retrieval import Index

    index = Index.open(folder, device=device)
    if not len(index):
        raise BayesVLMError(f"{folder} is empty; put images into it with `bayesvlm index photos/ --out {folder}`.")
    model = "a model without an encoder" if index.vlm.adapter is None else index.vlm.adapter.name
    said = f"{model} with the posterior in that index, whichever model is chosen on the tab Model"
    return Collection(f"{len(index):,} {index.tower}s, {folder}", index, _stored, said)


def _stored(key: str, path: str | None) -> Image.Image | None:
    if path is None:
        return None
    try:
        image = to_rgb(Path(path), key)
    except BayesVLMError:
        return None  # moved, or replaced by something else, since it was indexed
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    return image


def hits_html(hits: Hits, collection: Collection) -> str:
    """Hits as the page has them; what matches nothing is said first, and the nearest are one click away."""
    if not len(hits):
        return page("<h3>There is nothing to find.</h3>")
    low, high = (bound.tolist() for bound in hits.interval)
    axis = axis_of(low, high)
    cards = "".join(_card(hit, place, axis, collection) for place, hit in enumerate(hits))
    lines = quiet(f"The line on a card runs from {axis[0]:.1f} to {axis[1]:.1f}: cosine, 95 % interval.")
    listed = f"<div class='cards'>{cards}</div>{lines}"
    known = quiet(
        f"{collection.title}, searched by {collection.model}; {_calibrated(hits, collection)}; share of variance "
        f"in the query: {hits.query_variance:.3f}"
    )
    if hits.matches is False:
        return page(
            f"<h3>Nothing here matches “{called(hits.query)}”</h3>",
            quiet(f"p = {hits.p_value:.3f}: {_doubtful(hits, collection)}"),
            f"<details><summary>The nearest, nevertheless</summary>{listed}</details>",
            known,
        )
    said = "" if hits.p_value is None else f": p\u00a0=\u00a0{hits.p_value:.3f}"
    doubt = (
        f"Draws of the model agree on the best of these in {percent(hits.self_consistency)}"
        if hits.p_value is None
        else _doubtful(hits, collection).removesuffix(".")
    )
    return page(f"<h3>“{called(hits.query)}”{said}</h3>", quiet(f"{doubt}. Open a card for more."), listed, known)


def _doubtful(hits: Hits, collection: Collection) -> str:
    """What the p-value of a query says."""
    error = _error(collection)
    return (
        f"{percent(hits.p_value or 0.0)} of queries that have a match look at least as doubtful as this. At "
        f"{rounded(error)} or less the answer is that nothing matches, which on average befalls one in "
        f"{1 / error:.0f} queries that have a match, too."
    )


def _error(collection: Collection) -> float:
    calibration = collection.index.calibration
    return ERROR if calibration is None else calibration.error


def _calibrated(hits: Hits, collection: Collection) -> str:
    """What is promised of these hits, and what is not."""
    calibration = collection.index.calibration
    if calibration is None:
        return "not calibrated, so that it cannot say when nothing matches"
    if hits.p_value is None:
        asked = "words" if calibration.tower == "text" else "pictures"
        other = "a picture" if calibration.tower == "text" else "a query in words"
        return f"calibrated for {asked} alone: {other} is always answered, whether or not anything here matches"
    answered = calibration.false_answers()
    rest = "" if answered is None else f"; {rounded(answered)} of queries without a match were answered all the same"
    return f"on average at most {rounded(calibration.error)} of queries with a match are turned away{rest}"


def _card(hit: Hit, place: int, axis: tuple[float, float], collection: Collection) -> str:
    image = collection.image_of(hit.id, hit.path)
    name = str(hit.columns.get("name") or hit.columns.get("label") or (Path(hit.path).name if hit.path else hit.id))
    low, high = hit.interval
    shown = "<p class='quiet'>the picture is not where it was</p>" if image is None else picture(image, name, "hit")
    entries = [("cosine", cosine(hit.mean, low, high)), ("standard deviation", f"{hit.std:.4f}")]
    entries.append(("best of these", percent(hit.p_best)))
    if hit.p_match is not None:
        entries.append(("what was asked for", percent(hit.p_match)))
    entries.append(("id", hit.id))
    entries += [("file", hit.path)] if hit.path else []
    entries += [(key, str(value)) for key, value in hit.columns.items() if value is not None]
    listed = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in entries)
    return (
        f"<details class='card' data-id='{escape(hit.id, quote=True)}'><summary>"
        f"<span class='name'>{place + 1}. {called(name)}</span><br>{shown}"
        f"{interval(hit.mean, low, high, axis)}<span class='quiet'>{hit.mean:.3f}, best {percent(hit.p_best)}</span>"
        f"</summary><dl>{listed}</dl></details>"
    )
