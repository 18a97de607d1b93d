"""Where a run's models and data are, and how large: on this machine, or where they would come from. Asks nobody."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from huggingface_hub import constants

from bayesvlm.artifacts.saved import TENSORS, is_posterior
from bayesvlm.data import resolve
from bayesvlm.data.names import HUB_ID, data_root
from bayesvlm.data.sources import FETCHED, NOT_HERE, bytes_in
from bayesvlm.embedded import embedded_model, embedded_posterior
from bayesvlm.models.openclip_loading import FOLDER, HUB, PREFIX, is_open_clip
from bayesvlm.models.published import PICKLE, is_published
from bayesvlm_paper.architectures import ARCHITECTURES, parameters
from bayesvlm_paper.plans import PAIRS, base_model, shape_of

_BYTES_A_PAIR = 25_000  # of img2dataset's shards at 256 pixels

What = Literal["model", "posterior", "images", "pairs"]


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

    what: What
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


# Models ---------------------------------------------------------------------------------------------------------------


def model_folders(name: str) -> dict[What, Path]:
    """Where a name's "model" and "posterior" lie on this machine, as far as they do."""
    folder = embedded_model(name) or _local(name) or _snapshot(name)
    if folder is None:
        return {}
    if is_posterior(folder):
        base = base_model(folder)
        return {"posterior": folder, **(model_folders(base) if base else {})}
    posterior = embedded_posterior(name)
    return {"model": folder, **({"posterior": posterior} if posterior else {})}


def find_model(name: str) -> list[Load]:
    """A model, with the posterior that comes with it; or a saved posterior, with the model it is for."""
    folders, shape = model_folders(name), shape_of(name)
    count = parameters(shape)["all"] if shape else None
    if not folders:
        return [Load("model", name, _source(name), count, 4 * count if count else None, False)]
    if embedded_model(name) is not None:
        return [Load(kind, name, "in the package", None, bytes_in(folder), True) for kind, folder in folders.items()]
    if (folder := folders.get("posterior")) is not None:
        own, base = Load("posterior", name, str(folder), None, bytes_in(folder), True), base_model(folder)
        return [own, *(find_model(base) if base else [])]
    return [Load("model", name, str(folders["model"]), count, bytes_in(folders["model"]), True)]


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
    hub = bare.removeprefix(HUB) if bare == name or bare.startswith(HUB) else ""
    return hub if HUB_ID.fullmatch(hub) else None


def _source(name: str) -> str:
    hub = _hub_id(name)
    if hub is not None:
        return f"{FETCHED} {hub}"
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
    """A labelled set: of the world, known, a folder, a Hub id; NAME:SPLIT."""
    source = resolve(name, root=root)
    return Load("images", name, source.where, source.count, source.size, source.here, note=source.note)


def find_pairs(name: str, root: Path | None) -> Load:
    """Image-text pairs: splits of the world, a folder, OWNER/NAME:SPLIT of the Hub."""
    source = resolve(name, "pairs", root)
    if source.where == NOT_HERE:
        return Load("pairs", name, f"expected in {data_root(root) / name}", PAIRS, PAIRS * _BYTES_A_PAIR, False)
    return Load("pairs", name, source.where, source.count, source.size, source.here)
