"""Where a run's models and data are, and how large: on this machine, or where they would come from. Asks nobody."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from huggingface_hub import constants

from bayesvlm.artifacts.saved import CONFIG, TENSORS, is_posterior
from bayesvlm.data.labelled.hub import cached_shards
from bayesvlm.data.labelled.known import KNOWN
from bayesvlm.data.labelled.registry import TABLES, available, data_root
from bayesvlm.embedded import embedded_model, embedded_posterior
from bayesvlm.models.openclip_loading import FOLDER, HUB, PREFIX, is_open_clip
from bayesvlm.models.published import PICKLE, is_published
from bayesvlm_paper.architectures import ARCHITECTURES, parameters
from bayesvlm_paper.lab import PAIRS
from bayesvlm_world import SPLITS, splits

MB = 10**6
_OFFICEHOME = {"Art": 2_427, "Clipart": 4_365, "Product": 4_439, "RealWorld": 4_357}  # in one archive of 1.1 GB
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
    **{
        f"officehome:{name}": (count, 1_100 * MB * count // sum(_OFFICEHOME.values()))
        for name, count in _OFFICEHOME.items()
    },
}
"""Test images of the known sets, and about how many bytes have to be there to read them."""
_BYTES_A_PAIR = 25_000  # of img2dataset's shards at 256 pixels
_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
_FETCH = "would be fetched from the Hub:"


@dataclass(frozen=True)
class Load:
    """One thing that would be loaded.

    Args:
        what: its kind.
        where: the folder it is in, or where it would come from.
        count: images or pairs; parameters of a model; None where it is not known before it is read.
        size: bytes, None where nobody can say before it is fetched.
        here: whether it could be read now.
        encode: forward passes of the image tower it takes; 0 where features are in the cache.
        texts: the same of the text tower.
        note: what could not be found out.
    """

    what: Literal["model", "posterior", "images", "pairs"]
    name: str
    where: str
    count: int | None
    size: int | None
    here: bool
    encode: int = 0
    texts: int = 0
    note: str = ""


@contextmanager
def offline() -> Iterator[None]:
    """Have the Hub's library answer from its cache alone, whatever is loaded inside."""
    was = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = was


def bytes_in(place: Path) -> int:
    """Of a file, or of all files below a folder; one that several links lead to counts once."""
    found = [place] if place.is_file() else place.rglob("*")
    return sum(path.stat().st_size for path in {path.resolve() for path in found if path.is_file()})


# Models ---------------------------------------------------------------------------------------------------------------


def find_model(name: str) -> list[Load]:
    """A model, with the posterior that comes with it; or a saved posterior, with the model it is for."""
    shape = shape_of(name)
    count = parameters(shape)["all"] if shape else None
    folder = embedded_model(name) or _local(name) or _snapshot(name)
    if folder is None:
        return [Load("model", name, _source(name), count, 4 * count if count else None, False)]
    if is_posterior(folder):
        base = _base(folder)
        return [Load("posterior", name, str(folder), None, bytes_in(folder), True), *(find_model(base) if base else [])]
    where = "in the package" if embedded_model(name) else str(folder)
    loads = [Load("model", name, where, count, bytes_in(folder), True)]
    posterior = embedded_posterior(name)
    return loads + ([Load("posterior", name, where, None, bytes_in(posterior), True)] if posterior else [])


def shape_of(model: str) -> str | None:
    """The paper's name of a model whose shape is known."""
    return next((name for name, shape in ARCHITECTURES.items() if model in (shape.model, shape.hub)), None)


def _base(posterior: Path) -> str | None:
    """The model that a saved posterior names."""
    try:
        named = json.loads((posterior / CONFIG).read_text(encoding="utf-8")).get("model")
    except (OSError, ValueError, AttributeError):
        return None
    return named if isinstance(named, str) else None


def _local(name: str) -> Path | None:
    """The folder, or the checkpoint of open_clip, that a name says."""
    bare = name.removeprefix(PREFIX)
    file = bare != name and not bare.startswith((HUB, FOLDER))  # open_clip:NAME/FILE
    said = bare.partition("/")[2] if file else bare.removeprefix(FOLDER)
    path = Path(said).expanduser()
    return path if said and path.exists() else None


def _hub_id(name: str) -> str | None:
    if (shape := shape_of(name)) is not None:
        return ARCHITECTURES[shape].hub
    bare = name.removeprefix(PREFIX)
    if bare == name or bare.startswith(HUB):
        bare = bare.removeprefix(HUB)
        return bare if _HUB_ID.fullmatch(bare) else None
    return None


def _source(name: str) -> str:
    hub = _hub_id(name)
    if hub is not None:
        return f"{_FETCH} {hub}"
    return "would be fetched by open_clip" if name.startswith(PREFIX) else "not here"


def _snapshot(name: str) -> Path | None:
    """The snapshot in the Hub's cache, where the weights are in it that this name asks for."""
    hub = _hub_id(name)
    if hub is None:
        return None
    top = Path(constants.HF_HUB_CACHE) / f"models--{hub.replace('/', '--')}"
    try:
        folder = top / "snapshots" / (top / "refs" / "main").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    weights = ["model*.safetensors", "0_CLIPModel/model*.safetensors", TENSORS]
    weights += [PICKLE] if is_published(folder) else []
    if name.startswith((PREFIX, HUB)) or is_open_clip(folder):
        weights = ["open_clip_*.safetensors", "open_clip_pytorch_model.bin"]
    return folder if any(path.is_file() for pattern in weights for path in folder.glob(pattern)) else None


# Data -----------------------------------------------------------------------------------------------------------------


def find_set(name: str, root: Path | None) -> Load:
    """A labelled set, its images not counted: of the world, known, a folder, a Hub id; NAME:SPLIT."""
    bare, _, split = name.rpartition(":")
    if not bare or "/" in split or Path(name).expanduser().is_dir():
        bare, split = name, ""
    if name in SPLITS:
        return Load("images", name, "in the package", None, _split_bytes(name), True)
    if bare in KNOWN:
        return _find_known(name, bare, split, root)
    table = bare.removeprefix(TABLES)
    own = Path(table).expanduser()
    cached = cached_shards(bare, split or "test") if _HUB_ID.fullmatch(bare) else None
    folder = own if own.is_dir() else cached
    if folder is not None:
        return Load("images", name, str(folder), None, bytes_in(folder), True)
    where = f"{_FETCH} {table}" if _HUB_ID.fullmatch(table) else "not here"
    return Load("images", name, where, None, None, False)


def _find_known(name: str, bare: str, split: str, root: Path | None) -> Load:
    entry = KNOWN[bare]
    usual = PUBLISHED_SIZES.get(bare) if split in ("", entry.test) else None
    count, size = usual or PUBLISHED_SIZES.get(f"{bare}:{split or entry.test}") or (None, None)
    places = {known.name: place for known, place in available(root)}
    folder = places[bare]
    if folder is not None:
        return Load("images", name, str(folder), count, bytes_in(folder), True)
    missing = []
    if entry.subset_of and not (data_root(root) / f"{bare}.txt").is_file():
        missing.append(entry.how_to_get(data_root(root)))
    whole = KNOWN[entry.subset_of] if entry.subset_of else entry
    if places[whole.name] is None:
        missing.append(f"{_FETCH} {whole.hub}" if whole.hub else whole.how_to_get(data_root(root)))
    if bare == "officehome":
        missing.append("1.1 GB with all its domains")
    return Load("images", name, "; ".join(missing), count, size, False)


def find_pairs(name: str, root: Path | None) -> Load:
    """Image-text pairs, not counted where they are here: splits of the world, a folder, OWNER/NAME:SPLIT of the Hub."""
    parts = name.split("+")
    if all(part in SPLITS for part in parts):
        return Load("pairs", name, "in the package", None, sum(map(_split_bytes, parts)), True)
    source, _, split = name.partition(":")
    for said in (name, source):
        for folder in (Path(said).expanduser(), data_root(root) / said):
            if said and folder.is_dir():
                return Load("pairs", name, str(folder), None, bytes_in(folder), True)
    if split and _HUB_ID.fullmatch(source):
        return Load("pairs", name, f"{_FETCH} {source}", None, None, False)
    return Load("pairs", name, f"expected in {data_root(root) / name}", PAIRS, PAIRS * _BYTES_A_PAIR, False)


def _split_bytes(split: str) -> int:
    return bytes_in(splits.DATA / ("flags" if split == "flags" else f"emoji/{split}"))
