"""What a run would load, from where, how large it is and how long it would take: said before anything is fetched."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from huggingface_hub.constants import HF_HUB_CACHE
from PIL import Image

from bayesvlm.artifacts.hub import find_posterior
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.data.labelled.known import KNOWN
from bayesvlm.data.labelled.registry import available
from bayesvlm.data.views import Views
from bayesvlm.embedded import WORLD, embedded_model, embedded_posterior
from bayesvlm.experiments.architectures import ARCHITECTURES, flops_per_image, parameters
from bayesvlm.experiments.domains import find_domains
from bayesvlm.experiments.pairs import data_root, named_pairs
from bayesvlm.experiments.reproduction.item import Item
from bayesvlm.experiments.reproduction.lab import PAIRS, Lab
from bayesvlm.experiments.styles import STYLES
from bayesvlm.models import resolve_device
from bayesvlm.models.openclip_loading import local_source
from bayesvlm.world import SPLITS

GIB, MB = 2**30, 10**6
PUBLISHED_SIZES: dict[str, tuple[int, int]] = {
    "flowers102": (6_149, 330 * MB),
    "food101": (25_250, 1_250 * MB),
    "cifar10": (10_000, 30 * MB),
    "cifar100": (10_000, 30 * MB),
    "imagenet-r": (30_000, 2_200 * MB),
    "ucf101": (3_783, 200 * MB),
    "sun397": (19_850, 7_000 * MB),
    "imagenet": (50_000, 6_700 * MB),
    "imagenet-100": (1_097, 6_700 * MB),
    "imagenet-a": (7_500, 690 * MB),
    "imagenet-sketch": (50_889, 7_600 * MB),
    "eurosat": (5_400, 20 * MB),
    "officehome": (15_588, 1_100 * MB),
}
"""Test images of the known sets, and about how many bytes have to be there to read them."""
_BYTES_A_PAIR = 25_000  # of img2dataset's shards at 256 pixels
_EFFICIENCY = 0.4  # of a matrix product's speed that an encoder reaches


@dataclass(frozen=True)
class Load:
    """One thing that would be loaded.

    Args:
        what: its kind.
        where: the folder it is in, or where it would come from.
        count: images or pairs; parameters of a model.
        size: bytes, None where nobody can say before it is fetched.
        here: whether it could be read now.
        encode: forward passes of the image tower it takes; 0 where features are in the cache.
    """

    what: Literal["model", "posterior", "images", "pairs"]
    name: str
    where: str
    count: int | None
    size: int | None
    here: bool
    encode: int = 0


@dataclass(frozen=True)
class Preview:
    """What an item would take; `seconds` for its encoding, None where the model's speed is not known."""

    item: str
    loads: tuple[Load, ...]
    seconds: float | None
    how: str
    last: float | None  # seconds that it took the last time, here

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def preview(item: Item, lab: Lab, last: float | None = None) -> Preview:
    """Look, and touch nothing that is not on this machine."""
    loads = [load for name in lab.models for load in _model(name, lab)]
    total, how = 0.0, []
    for model in lab.models:
        inputs = _inputs(item, lab, model)
        loads += [load for load in inputs if all((load.what, load.name) != (other.what, other.name) for other in loads)]
        passes = sum(load.encode for load in inputs)
        if passes:
            speed, said = _seconds_an_image(model, lab)
            how.append(said)
            total = total + passes * speed if speed is not None else float("nan")
    seconds = None if total != total else total  # nan: one of the models could not be timed
    return Preview(item.name, tuple(loads), seconds, "; ".join(dict.fromkeys(how)) or "nothing to encode", last)


# Models ---------------------------------------------------------------------------------------------------------------


def _model(name: str, lab: Lab) -> list[Load]:
    folder = embedded_model(name)
    if folder is not None:
        loads = [Load("model", name, "in the package", None, _bytes(folder), True)]
        posterior = embedded_posterior(name)
        return loads + ([Load("posterior", name, "in the package", None, _bytes(posterior), True)] if posterior else [])
    local = _local(name)
    if local is not None:
        return [Load("model", name, str(local), None, _bytes(local), True)]
    shape = _shape(name)
    hub = ARCHITECTURES[shape].hub if shape else name.removeprefix("open_clip:")
    count = parameters(shape)["all"] if shape else None
    cached = Path(HF_HUB_CACHE) / f"models--{hub.replace('/', '--')}"
    if cached.is_dir():
        return [Load("model", name, str(cached), count, _bytes(cached), True)]
    size = None if count is None else 4 * count
    return [Load("model", name, f"would be fetched from the Hub: {hub}", count, size, False)]


def _local(name: str) -> Path | None:
    folder = Path(local_source(name) or name).expanduser()
    return folder if folder.exists() else None


def _shape(model: str) -> str | None:
    """The paper's name of a model whose shape is known."""
    return next((name for name, shape in ARCHITECTURES.items() if model in (shape.model, shape.hub)), None)


# Data -----------------------------------------------------------------------------------------------------------------


def _inputs(item: Item, lab: Lab, model: str) -> list[Load]:
    plan = lab.plan
    voting = Views(lab.views) if plan.views and lab.views else None
    here = _here(model)
    loads = [_images(name, lab, model if here else None, voting) for name in plan.sets]
    names = [plan.validation] if plan.validation and plan.validation not in plan.sets else []
    if plan.domains == "world":
        names += [*STYLES, "train"]
    elif plan.domains is not None:
        names += list(find_domains(plan.domains).sets.values())
    loads += [_images(name, lab, model if here else None, None) for name in names]
    fits = not (here and _fitted(model))
    for place, name in enumerate(plan.pairs):
        if place or fits or item.reads_pairs:
            loads.append(_pairs(name, lab, model if here else None, item.distortions))
    return loads


def _images(name: str, lab: Lab, model: str | None, voting: Views | None) -> Load:
    known = name.partition(":")[0]
    where, here, size = "", True, None
    count: int | None = None
    if name in SPLITS:
        where, size, count = "in the package", _bytes(WORLD / "data"), lab.set(name).size
    elif known in KNOWN:
        found = {entry.name: place for entry, place in available(lab.root)}[known]
        count, size = PUBLISHED_SIZES.get(known, (None, None))
        here = found is not None
        entry = KNOWN[known]
        absent = f"would be fetched from the Hub: {entry.hub}" if entry.hub else entry.how_to_get(data_root(lab.root))
        where, size = (str(found), _bytes(found)) if found is not None else (absent, size)
    else:
        folder = Path(name).expanduser()
        here = folder.is_dir()
        where, size = (str(folder), _bytes(folder)) if here else ("not here", None)
    kept = {
        views: here and model is not None and lab.encoder(model).keeps(lab.set(name), views) for views in (None, voting)
    }
    if here and count is None:
        count = lab.set(name).size
    times = sum((1 if views is None else views.count) for views, there in kept.items() if not there)
    return Load("images", name, where, count, size, here, (count or 0) * times)


def _pairs(name: str, lab: Lab, model: str | None, distortions: int) -> Load:
    try:
        data = named_pairs(name, lab.root)
    except BayesVLMError:
        folder = data_root(lab.root) / name
        return Load(
            "pairs", name, f"expected in {folder}", PAIRS, PAIRS * _BYTES_A_PAIR, False, PAIRS * (1 + distortions)
        )
    world = all(part in SPLITS for part in name.split("+"))
    where = "in the package" if world else str(data_root(lab.root) / name)
    count = None if data.size is None else min(data.size, PAIRS)
    kept = model is not None and lab.encoder(model).keeps_pairs(data, PAIRS)
    size = _bytes(WORLD / "data") if world else None
    return Load("pairs", name, where, count, size, True, (count or PAIRS) * (1 + distortions) * (not kept))


def _here(model: str) -> bool:
    """Whether a model can be loaded without fetching anything."""
    return embedded_model(model) is not None or _local(model) is not None


def _fitted(model: str) -> bool:
    return find_posterior(model) is not None


def _bytes(place: Path) -> int:
    files = [place] if place.is_file() else [path for path in place.rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files)


# Time -----------------------------------------------------------------------------------------------------------------


def _seconds_an_image(model: str, lab: Lab) -> tuple[float | None, str]:
    """How long an image takes here: tried where the model is here, from its operations where it is not."""
    if _here(model):
        adapter = lab.encoder(model).adapter
        blank = [Image.new("RGB", (224, 224))] * 16
        seconds = _timed(lambda: adapter.encode_images(blank, batch_size=16, progress=False)) / len(blank)
        return seconds, f"{model} tried here: {1 / seconds:,.0f} images a second"
    shape = _shape(model)
    if shape is None:
        return None, f"how fast {model} is cannot be said before it is loaded"
    work = flops_per_image(shape)
    speed = _EFFICIENCY * _flops_a_second(resolve_device(lab.device))
    return (
        work / speed,
        f"{model} by its {work / 1e9:.1f} GFLOPs an image: about {speed / work:,.0f} images a second here",
    )


def _flops_a_second(device: torch.device) -> float:
    side = 2048 if device.type == "cuda" else 1024
    left = torch.randn(side, side, device=device)

    def product() -> None:
        _ = left @ left
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return 2 * side**3 / _timed(product)


def _timed(work: Callable[[], Any]) -> float:
    """The shortest of three runs, after one to warm up."""
    work()
    best = float("inf")
    for _ in range(3):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best
