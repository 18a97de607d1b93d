"""What a run would load, from where, how large it is and how long it would take: said before anything is fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data import resolve
from bayesvlm.data.distortion import LEVELS, Distortion
from bayesvlm.data.labelled.known import KNOWN
from bayesvlm.data.labelled.samples import LabelledSet
from bayesvlm.data.sources import bytes_in
from bayesvlm.data.views import Views
from bayesvlm.experiments import corruption
from bayesvlm.experiments.feature_store import FeatureStore
from bayesvlm.models import resolve_device
from bayesvlm_paper.item import Item, kept_record
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.places import Load, find_model, find_pairs, find_set, offline
from bayesvlm_paper.plans import PAIRS, PCMEPP, PROLIP, shape_of
from bayesvlm_paper.speed import REFERENCE, Speed, estimated, measured

LARGE = 2 * 10**9
"""Bytes of a set from which on nobody hashes it only to look into the cache."""
NOTHING = "nothing to encode"


@dataclass(frozen=True)
class Preview:
    """What an item would take, were it run alone.

    Args:
        loads: what it needs.
        seconds: of encoding images and the texts of pairs, nothing else; None where that cannot be told.
        how: where the seconds come from, and what could not be found out.
        last: seconds that all of it took the last time, here.
    """

    item: str
    loads: tuple[Load, ...]
    seconds: float | None
    how: str
    last: float | None

    @property
    def to_encode(self) -> str:
        """Images that would go through a model, in words."""
        data = [load for load in self.loads if load.what in ("images", "pairs")]
        passes = sum(load.encode for load in data)
        if any(_unknown(load) for load in data):
            return f"{passes:,} and more" if passes else "unknown"
        return f"{passes:,}" if passes else "in the cache" if data else "nothing"

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "to_encode": self.to_encode}


def preview(item: Item, lab: Lab) -> Preview:
    """Look, and fetch nothing that is not on this machine."""
    record = kept_record(item, lab.out)
    found: dict[tuple[str, str], Load] = {}
    total: float | None = 0.0
    how: list[str] = []
    with offline():
        for name in lab.models:
            model = _Model.of(name, lab)
            inputs = _inputs(item, lab, model)
            for load in [*model.loads, *inputs]:
                known = found.get((load.what, load.name))
                found[load.what, load.name] = load if known is None else _both(known, load)
            how += [model.problem, *(load.note for load in inputs)]
            images, texts = sum(load.encode for load in inputs), sum(load.texts for load in inputs)
            if any(map(_unknown, inputs)):
                total = None
            if images or texts:
                speed, said = _speed(model, lab)
                how.append(said)
                total = None if total is None or speed is None else total + images * speed.image + texts * speed.text
    said = "; ".join(dict.fromkeys(filter(None, how))) or NOTHING
    last = None if record is None else record["seconds"]
    return Preview(item.name, tuple(found.values()), total, said, last)


def _both(one: Load, other: Load) -> Load:
    """The same data for two models: read once, encoded by each."""
    return replace(one, encode=one.encode + other.encode, texts=one.texts + other.texts, note=one.note or other.note)


def _unknown(load: Load) -> bool:
    """Whether nobody knows how much of it there is to encode."""
    return bool(load.note) and not load.encode


@dataclass(frozen=True)
class _Model:
    """A model, loaded where it is here."""

    name: str
    loads: list[Load]
    encoder: FeatureStore | None
    problem: str = ""

    @classmethod
    def of(cls, name: str, lab: Lab) -> _Model:
        loads = find_model(name)
        if not all(load.here for load in loads):
            return cls(name, loads, None)
        try:
            return cls(name, loads, lab.encoder(name))
        except BayesVLMError as error:
            return cls(name, loads, None, f"{name} is here and cannot be loaded: {error}")

    @property
    def predicts(self) -> bool:
        """Whether it gives variances itself."""
        return self.encoder.vlm.predicts_variance if self.encoder else self.name in (PROLIP, PCMEPP)

    @property
    def fitted(self) -> bool:
        return self.encoder.vlm.fitted if self.encoder else self.predicts


def _speed(model: _Model, lab: Lab) -> tuple[Speed | None, str]:
    if model.encoder is not None:
        speed = measured(model.encoder)
        return speed, f"encoding alone, {model.name} measured on this machine: {speed}"
    shape = shape_of(model.name)
    if shape is None:
        return None, f"how fast {model.name} is cannot be said before it is loaded"
    speed = estimated(shape, resolve_device(lab.device))
    how = f"with random weights of {REFERENCE}'s shape" + ("" if shape == REFERENCE else " and scaled by operations")
    return speed, f"encoding alone, {model.name} measured on this machine {how}: about {speed}"


# Data -----------------------------------------------------------------------------------------------------------------


def _inputs(item: Item, lab: Lab, model: _Model) -> list[Load]:
    """What an item takes for a model; a set or pairs that it has no use for are left out."""
    plan = lab.plan
    sets = plan.sets if item.world.sets or item.paper.sets else ()
    names = [*(sets if item.pictures is None else ()), *lab.domain_sets]
    fits = item.needs_posterior and not model.fitted
    if plan.validation and not model.predicts and (fits or item.tunes):
        names.append(plan.validation)
    voting = Views(lab.views) if plan.views and lab.views and not model.predicts else None
    loads = [] if item.pictures is None else [_pictures(name, lab, item.pictures) for name in sets[:1]]
    loads += [_images(name, lab, model.encoder, voting if name in sets else None) for name in dict.fromkeys(names)]
    used = max(len(item.world.pairs), len(item.paper.pairs)) if item.reads_pairs else int(fits)
    distortions = [Distortion(kind, level) for kind, levels in LEVELS.items() for level in levels if level]
    for name in () if model.predicts else plan.pairs[:used]:
        loads.append(_pairs(name, lab, model.encoder, distortions if item.distorts_pairs else []))
    return loads


def _opened(load: Load, lab: Lab) -> tuple[Load, LabelledSet | None]:
    """A set that is here, with the folder of its split; None where it cannot be, or takes long to open."""
    known = KNOWN.get(load.name.partition(":")[0])
    if not load.here or (known is not None and known.subset_of and (load.size or 0) > LARGE):
        return load, None
    try:
        data = lab.set(load.name)
    except BayesVLMError as error:
        return replace(load, where=str(error), here=False), None
    folder = getattr(data, "folder", None)
    if isinstance(folder, Path):
        load = replace(load, where=str(folder), size=bytes_in(folder))
    return replace(load, count=data.size if data.size is not None else load.count), data


def _images(name: str, lab: Lab, encoder: FeatureStore | None, voting: Views | None) -> Load:
    load, data = _opened(find_set(name, lab.root), lab)
    large, note = (load.size or 0) > LARGE, ""
    if load.here and large and encoder is not None:
        note = f"{name} has more than {LARGE / 1e9:.0f} GB, so nobody looked whether its features are in the cache"
    if load.count is None and data is not None and not large:
        load = replace(load, count=sum(1 for _ in data))
    if load.count is None:
        return replace(load, note=f"how many images {name} has is unknown until it is read")
    times = 0
    for views in [None] if voting is None else [None, voting]:
        kept = encoder is not None and data is not None and not large and encoder.keeps(data, views)
        times += 0 if kept else views.count if views else 1
    return replace(load, encode=load.count * times, note=note)


def _pictures(name: str, lab: Lab, most: int) -> Load:
    """Some pictures of a set, at every level of corruption."""
    load, _ = _opened(find_set(name, lab.root), lab)
    count, levels = min(most, load.count or most), len(corruption.LEVELS)
    return replace(load, encode=count * (levels + 1), texts=count * (levels + 2))  # once more with one letter changed


def _pairs(name: str, lab: Lab, encoder: FeatureStore | None, distortions: Sequence[Distortion]) -> Load:
    load = find_pairs(name, lab.root)
    count, texts, versions = load.count or PAIRS, True, 1 + len(distortions)
    if load.here and any(Path(load.where).rglob("*.parquet")):
        return replace(load, note=f"how many pairs {name} has is unknown until it is read")
    if load.here:
        try:
            data = resolve(name, "pairs", lab.root).open()
        except BayesVLMError as error:
            return replace(load, where=str(error), here=False, encode=PAIRS * versions, texts=PAIRS)
        count = PAIRS if data.size is None else min(data.size, PAIRS)
        load = replace(load, count=None if data.size is None else count)
        if encoder is not None:
            texts = not encoder.keeps_pairs(data, PAIRS)
            versions = texts + sum(not encoder.keeps_pairs(data, PAIRS, distortion) for distortion in distortions)
    return replace(load, encode=count * versions, texts=count * texts)
