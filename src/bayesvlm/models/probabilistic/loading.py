"""From a folder with config.json and model.safetensors to a module, every weight accounted for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError, first_line
from bayesvlm.models.probabilistic.configuration import read_entries
from bayesvlm.models.probabilistic.pcmepp import PCMEPP, read_pcmepp
from bayesvlm.models.probabilistic.prolip import ProLIP, read_prolip

Family = Literal["prolip", "pcmepp"]


def probabilistic_family(folder: str | Path) -> Family | None:
    """Which family a folder's config.json describes; None when it is neither, or there is none to read.

    Their configurations name no model type. PCME++ has `unc_layers`, ProLIP `embed_unc`, and neither is optional.
    """
    try:
        content = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
        vision, text = content["vision_cfg"], content["text_cfg"]
        if "unc_layers" in text:
            return "pcmepp"
        return "prolip" if vision.get("embed_unc") is True else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def load_probabilistic(folder: str | Path) -> ProLIP | PCMEPP:
    """The model in a folder, on the CPU, in eval mode and without gradients; half precision is widened to float32.

    Only `model.safetensors` is read, never a pickle, and no code of the checkpoint is run.

    Raises:
        BayesVLMError: when the folder is of neither family, an entry of config.json is not understood, or the weights
            are missing, damaged or not exactly those of the model.
    """
    folder = Path(folder)
    entries, family = read_entries(folder), probabilistic_family(folder)
    model: ProLIP | PCMEPP
    with torch.device("meta"):  # no memory and no random numbers: every parameter comes from the file
        if family == "prolip":
            model = ProLIP(read_prolip(entries))
        elif family == "pcmepp":
            model = PCMEPP(read_pcmepp(entries))
        else:
            raise BayesVLMError(
                f"{str(folder / 'config.json')!r} describes neither a ProLIP (vision_cfg.embed_unc) nor a PCME++ "
                "(text_cfg.unc_layers); pass the folder of one of these."
            )
    path = folder / "model.safetensors"
    weights = _read(path)
    _check(weights, model.state_dict(), path)
    model.load_state_dict(weights, strict=True, assign=True)
    return model.eval().requires_grad_(False)


def _read(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        pickle = any(path.parent.glob("*.bin")) or any(path.parent.glob("*.pt"))
        problem = "only a pickle (.bin, .pt), which can run code when it is loaded" if pickle else "no weights"
        raise BayesVLMError(
            f"The folder {str(path.parent)!r} holds {problem}; expected model.safetensors: "
            "fetch it from where the model was published."
        )
    try:
        weights = load_file(path)
    except (SafetensorError, OSError) as error:
        raise BayesVLMError(
            f"The weights {str(path)!r} are truncated or no safetensors ({first_line(error)}); fetch them again."
        ) from error
    # Copied, because they are a view of the file, which the caller may write over.
    return {name: weight.to(_precision(weight), copy=True) for name, weight in weights.items()}


def _precision(weight: Tensor) -> torch.dtype:
    return torch.float64 if weight.dtype == torch.float64 else torch.float32


def _check(weights: dict[str, Tensor], expected: dict[str, Tensor], path: Path) -> None:
    """Refuse weights that are not exactly those of the model, naming the first that is not."""
    for name in expected:
        if name not in weights:
            raise BayesVLMError(
                f"The weights {str(path)!r} have no {name}, which config.json asks for; "
                "fetch the checkpoint that belongs to this config.json."
            )
    for name, weight in weights.items():
        if name not in expected:
            raise BayesVLMError(
                f"The weights {str(path)!r} have {name}, which the model of config.json does not; "
                "fetch the checkpoint that belongs to this config.json."
            )
        if weight.shape != expected[name].shape:
            raise BayesVLMError(
                f"The weights {str(path)!r} have {name} with shape {list(weight.shape)}, but config.json asks for "
                f"{list(expected[name].shape)}; fetch the checkpoint that belongs to this config.json."
            )
