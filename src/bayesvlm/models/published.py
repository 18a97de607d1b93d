"""The models that the paper's authors publish: a CLIP of transformers with its posterior in four more tensors.

    image_a_inv [p, p]  image_b_diag [d]  text_a_inv [p, p]  text_b_diag [d]     At^-1 and the diagonal of Bt^-1

They come with code of their own; it is neither needed nor run.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError, first_line
from bayesvlm.core.estimation import TOWERS, Tower
from bayesvlm.core.inverted import InvertedPosterior
from bayesvlm.models.adapter import Adapter

PICKLE = "pytorch_model*.bin"
_ARCHITECTURE = "BayesVLMModel"


def is_published(folder: Path) -> bool:
    """Whether a folder in the layout of transformers holds one of these models."""
    try:
        return _ARCHITECTURE in json.loads((folder / "config.json").read_text(encoding="utf-8"))["architectures"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def published_posterior(folder: Path, adapter: Adapter) -> dict[Tower, InvertedPosterior]:
    """The posterior of both towers, from the checkpoint the adapter was loaded from."""
    wanted = [f"{tower}_{tensor}" for tower in TOWERS for tensor in ("a_inv", "b_diag")]
    found = _tensors(folder, wanted)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise BayesVLMError(
            f"The checkpoint in {str(folder)!r} is a {_ARCHITECTURE}, but holds no {missing[0]}; its posterior is "
            "incomplete, so fetch it again."
        )
    if not any(bool(tensor.any()) for tensor in found.values()):
        raise BayesVLMError(
            f"The checkpoint in {str(folder)!r} has room for a posterior, but it is all zeros: none was ever set; load "
            "its base model and fit one."
        )
    posterior: dict[Tower, InvertedPosterior] = {}
    for tower in TOWERS:
        inverse, diagonal = found[f"{tower}_a_inv"], found[f"{tower}_b_diag"]
        try:
            posterior[tower] = InvertedPosterior(getattr(adapter, tower), inverse, diagonal)
        except BayesVLMError as error:
            raise BayesVLMError(f"The checkpoint in {str(folder)!r}, {tower} tower: {error}") from None
    return posterior


def _tensors(folder: Path, wanted: list[str]) -> dict[str, Tensor]:
    """Those of the wanted tensors that the checkpoint holds, wherever in its files they are."""
    found: dict[str, Tensor] = {}
    safe = sorted(folder.glob("model*.safetensors"))
    for path in safe:
        with safe_open(str(path), framework="pt") as file:
            found |= {name: file.get_tensor(name) for name in set(wanted) & set(file.keys())}
    for path in [] if safe else sorted(folder.glob(PICKLE)):
        try:
            state = torch.load(path, map_location="cpu", weights_only=True)
            found |= {name: state[name].clone() for name in set(wanted) & set(state)}
        except Exception as error:  # a damaged file raises nearly every type
            raise BayesVLMError(
                f"{str(path)!r} is not a file of plain torch tensors ({first_line(error)}); nothing else in it is ever "
                "run, so fetch it again."
            ) from None
    return found
