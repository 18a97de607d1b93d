"""From what open_clip calls a model to an adapter.

    open_clip:NAME/TAG     an architecture that open_clip knows and the tag of weights it knows for it
    open_clip:NAME/FILE    the same architecture with a checkpoint on this machine; an absolute path makes it NAME//path
    hf-hub:OWNER/NAME      a Hub repository in open_clip's layout
    local-dir:FOLDER       a folder in that layout: open_clip_config.json, weights and, for some, a tokenizer

The package itself is an extra of ours, and imported only where one of these is asked for. Weights are read as
safetensors, or as torch files with `weights_only=True`, which builds tensors and runs no code.
"""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from bayesvlm.core.errors import BayesVLMError, first_line
from bayesvlm.models.openclip import OpenClipAdapter
from bayesvlm.models.quiet import quiet

PREFIX, HUB, FOLDER = "open_clip:", "hf-hub:", "local-dir:"
CONFIG = "open_clip_config.json"
FILES = ["*.json", "*.txt", "*.model", "open_clip_*.safetensors"]
PICKLES = [*FILES[:3], "open_clip_pytorch_model.bin"]  # for repositories that hold nothing else


def load_architecture(name: str, device: torch.device, dtype: torch.dtype) -> OpenClipAdapter:
    """An architecture that open_clip knows, with the weights of a tag or a file: "open_clip:NAME/TAG" or NAME/FILE."""
    open_clip = _package(name)
    architecture, _, weights = name.removeprefix(PREFIX).partition("/")
    configuration = open_clip.get_model_config(architecture) if architecture else None
    if configuration is None:
        raise BayesVLMError(
            f"open_clip has no architecture {architecture!r} (in {name!r}); expected 'open_clip:NAME/TAG', such as "
            "'open_clip:ViT-B-32/laion2b_s34b_b79k': open_clip.list_pretrained() lists them."
        )
    tags, file = open_clip.list_pretrained_tags_by_model(architecture), Path(weights).expanduser()
    if weights not in tags:
        if not file.is_file():
            known = f"its tags are {', '.join(tags)}" if tags else "open_clip has no tags for it"
            raise BayesVLMError(
                f"{weights!r} (in {name!r}) is neither a tag of {architecture!r} nor a file here; {known}."
            )
        weights = str(file.resolve())
        name = f"{PREFIX}{architecture}/{weights}"  # holds from any working directory
    return _load(open_clip, architecture, weights, configuration, name, None, device, dtype)


def load_folder(
    folder: Path, name: str, revision: str | None, device: torch.device, dtype: torch.dtype
) -> OpenClipAdapter:
    """A folder in open_clip's layout, or the snapshot of a Hub repository in it."""
    open_clip = _package(name)
    try:
        configuration = json.loads((folder / CONFIG).read_text(encoding="utf-8"))["model_cfg"]
        text = dict(configuration["text_cfg"])
    except FileNotFoundError:
        raise BayesVLMError(
            f"The folder {str(folder)!r} holds no {CONFIG}; pass a folder in open_clip's layout, or a model of "
            "transformers without the prefix."
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BayesVLMError(
            f"{str(folder / CONFIG)!r} is not json with a model_cfg for both towers ({first_line(error)}); fetch it "
            "again."
        ) from None
    if text.get("hf_tokenizer_name") and not any(folder.glob("tokenizer*.json")) and not any(folder.glob("*.model")):
        raise BayesVLMError(
            f"The folder {str(folder)!r} has no tokenizer, and its {CONFIG} names {text['hf_tokenizer_name']!r}; copy "
            "that tokenizer's files into the folder."
        )
    return _load(open_clip, f"{FOLDER}{folder}", None, configuration, name, revision, device, dtype)


def is_open_clip(folder: Path) -> bool:
    """Whether a folder holds a model of open_clip, and none of transformers: many repositories hold both."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").is_file()


def local_source(name: str) -> Path | None:
    """The file or folder on this machine that a loaded model's name points to; None for what others can find too."""
    bare = name.removeprefix(PREFIX)
    if bare == name:
        folder = Path(name.removeprefix(FOLDER)).expanduser()
        return folder if folder.is_dir() else None
    file = Path(bare.partition("/")[2])
    return file if file.is_absolute() else None  # a tag otherwise: files are recorded by their whole path


def _load(
    open_clip: Any,
    source: str,
    weights: str | None,
    configuration: dict[str, Any],
    name: str,
    revision: str | None,
    device: torch.device,
    dtype: torch.dtype,
) -> OpenClipAdapter:
    with _undisturbed() as heard:
        try:
            # Strict, so that no weight of the model is left random.
            model = open_clip.create_model(
                source, pretrained=weights, pretrained_text=False, require_pretrained=True, weights_only=True
            )
        except Exception as error:  # a malformed config or checkpoint, or the network, raises nearly every type
            raise BayesVLMError(
                f"open_clip could not build {name!r} from its configuration and weights ({first_line(error)}); check "
                "the name and the network, or fetch the files again."
            ) from error
        try:
            tokenizer = open_clip.get_tokenizer(source)
        except Exception as error:  # tokenizer files are parsed by several libraries, each with errors of its own
            raise BayesVLMError(
                f"The tokenizer of {name!r} could not be loaded ({first_line(error)}); copy its files again from where "
                "the model was published."
            ) from error
    if any("QuickGELU" in str(warning.message) for warning in heard):
        raise BayesVLMError(
            f"{name!r} joins weights and an architecture that differ in their activation (QuickGELU), which makes "
            f"every embedding wrong; use the architecture that was trained, such as "
            f"'{PREFIX}{source.removesuffix('-quickgelu')}{'' if source.endswith('-quickgelu') else '-quickgelu'}"
            f"/{weights}'."
        )
    return OpenClipAdapter(model, tokenizer, configuration, name, revision, device, dtype)


def _package(name: str) -> Any:
    """The open_clip package; imported here, because it takes seconds and is an extra."""
    try:
        with _undisturbed():
            return import_module("open_clip")
    except Exception as error:  # it is not there, or its torchvision was built for another torch
        absent = isinstance(error, ModuleNotFoundError) and error.name == "open_clip"
        problem = "is not installed" if absent else f"cannot be imported here ({first_line(error)})"
        raise BayesVLMError(
            f"{name!r} needs the open_clip package, which {problem}; run `pip install 'bayesvlm[open-clip]'`, with the "
            "torchvision that belongs to your torch."
        ) from error


@contextmanager
def _undisturbed() -> Iterator[list[warnings.WarningMessage]]:
    """Keep open_clip from talking, and from setting up the caller's logging; yields the warnings it gave."""
    root, handler, disabled = logging.getLogger(), logging.NullHandler(), logging.root.manager.disable
    root.addHandler(handler)  # with one there, logging.info() does not install another for good
    logging.disable(logging.CRITICAL)
    try:
        with quiet(), warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            yield heard
    finally:
        logging.disable(disabled)
        root.removeHandler(handler)
