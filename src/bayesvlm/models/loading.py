"""From a Hub id or a folder to an adapter, with one clear sentence for everything that can be wrong on the way."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RevisionNotFoundError,
)
from safetensors import SafetensorError, safe_open

from bayesvlm.core.errors import BayesVLMError, first_line
from bayesvlm.embedded import MODELS, embedded_model, looking_up
from bayesvlm.models.adapter import Adapter
from bayesvlm.models.clip import CLIPAdapter
from bayesvlm.models.huggingface import HuggingFaceAdapter
from bayesvlm.models.openclip_loading import (
    FILES,
    FOLDER,
    HUB,
    PICKLES,
    PREFIX,
    is_open_clip,
    load_architecture,
    load_folder,
)
from bayesvlm.models.probabilistic import (
    ProbabilisticAdapter,
    load_probabilistic,
    load_tokeniser,
    probabilistic_family,
)
from bayesvlm.models.published import PICKLE, is_published, published_posterior
from bayesvlm.models.quiet import quiet
from bayesvlm.models.siglip import SiglipAdapter

FAMILIES: dict[str, type[HuggingFaceAdapter]] = {
    "clip": CLIPAdapter,
    "siglip": SiglipAdapter,
    "siglip2": SiglipAdapter,
}
"""The adapter of each `model_type` in a config.json."""

_TRANSFORMERS = version("transformers")  # the package itself is imported where it is used: that takes seconds
_MODERN = int(_TRANSFORMERS.split(".")[0]) >= 5
_DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
_TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "spiece.model", "tokenizer.model")
_PIXEL_FILES = ("preprocessor_config.json", "processor_config.json")
_WEIGHTS = "model*.safetensors"  # one file or shards; repositories may hold other formats under other names
_INNER = "0_CLIPModel"  # where sentence-transformers keeps the model of transformers
_FILES = ("*.json", "*.txt", "*.model", _WEIGHTS, f"{_INNER}/{_WEIGHTS}")


def load_adapter(
    name: str | Path,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    revision: str | None = None,
) -> Adapter:
    """Load a CLIP, SigLIP or SigLIP 2 of `transformers`, a model of open_clip, a ProLIP or a PCME++.

    Weights are read from safetensors; those of open_clip, and of the models that the paper's authors publish, also from
    torch files with `weights_only=True`. No code from a checkpoint is run.

    Args:
        name: a Hub id such as "openai/clip-vit-base-patch32", or a folder in the same layout; or what open_clip calls a
            model: "open_clip:ViT-B-32/laion2b_s34b_b79k", "open_clip:ViT-B-32/checkpoint.pt", "hf-hub:owner/name",
            "local-dir:folder".
        device: where the encoders run; None takes the GPU where there is one.
        dtype: the precision the encoders run in; None is float32.
        revision: a branch, tag or commit of the Hub repository.

    Raises:
        BayesVLMError: when the model cannot be found, is of an unknown family, or its files are missing or damaged.
    """
    target, precision = resolve_device(device), _dtype(dtype)
    if isinstance(name, str) and name.startswith((PREFIX, HUB, FOLDER)):
        return _load_open_clip(name, revision, target, precision)
    folder, commit = _locate(name, revision)
    if probabilistic_family(folder) is not None:
        trained = load_probabilistic(folder)
        tokenise = load_tokeniser(folder, trained.config)
        return ProbabilisticAdapter(trained, tokenise, str(name), commit, target, precision)
    if is_open_clip(folder):
        folder = folder if commit is None else _open_clip_snapshot(str(name), commit)
        return load_folder(folder, str(name), commit, target, precision)
    family = _family(folder)
    if family is CLIPAdapter and precision == torch.float64 and not _MODERN:
        raise BayesVLMError(
            f"CLIP cannot run in float64 with transformers {_TRANSFORMERS}, which builds its attention mask in "
            "float32; install transformers 5 or later, or use float32."
        )
    with quiet():
        model = _load_weights(folder)
        tokenizer = _load_tokenizer(folder)
        image_processor = _load_image_processor(folder)
    adapter = family(model, image_processor, tokenizer, str(name), commit, target, precision)
    if is_published(folder):
        adapter.posterior = published_posterior(folder, adapter)
    return adapter


def brings_variances(folder: Path) -> bool:
    """Whether the model in a folder comes with variances, so that there is nothing to fit."""
    return probabilistic_family(folder) is not None or is_published(folder)


def resolve_device(device: str | torch.device | None) -> torch.device:
    """The device to use: the one asked for, if it is there; None takes the GPU where there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise BayesVLMError(
            f"The device {str(device)!r} cannot be used here ({first_line(error)}); try 'cpu', or leave it out."
        ) from error
    return chosen


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype:
    if dtype is None:
        return torch.float32
    chosen = _DTYPES.get(dtype.removeprefix("torch.")) if isinstance(dtype, str) else dtype
    if chosen is None or chosen not in _DTYPES.values():
        raise BayesVLMError(f"The dtype {str(dtype)!r} is not supported; expected one of {', '.join(_DTYPES)}.")
    return chosen


def _locate(name: str | Path, revision: str | None) -> tuple[Path, str | None]:
    """The folder that holds the checkpoint, downloaded where need be, and its commit where known."""
    if not isinstance(name, str | Path):
        raise BayesVLMError(f"The model's name is a {type(name).__name__}; expected a Hub id or a folder.")
    folder = embedded_model(name) or Path(name).expanduser()
    if folder.is_dir():
        _refuse_revision(name, revision)
        return _encoder_folder(folder), None
    if isinstance(name, Path) or folder.is_absolute() or name.startswith((".", "~")) or folder.exists():
        raise BayesVLMError(f"There is no folder {str(name)!r}; pass a folder with a config.json, or a Hub id.")
    snapshot = _download(name, revision)
    inner = _encoder_folder(snapshot)
    if not any(inner.glob(_WEIGHTS)) and not is_open_clip(inner):
        converted = _safetensors_pull_request(name) if revision is None else None
        if converted is not None:
            snapshot = _download(name, converted)
        elif is_published(inner):
            snapshot = _download(name, revision, (*_FILES, PICKLE))
    return _encoder_folder(snapshot), snapshot.name


def _refuse_revision(name: str | Path, revision: str | None) -> None:
    if revision is not None:
        raise BayesVLMError(
            f"revision={revision!r} was given for {str(name)!r}, but only Hub ids have revisions; leave it out, or "
            "check the folder out at that revision."
        )


def _encoder_folder(folder: Path) -> Path:
    """Where the model's own files are: in a subfolder where sentence-transformers saved it."""
    inner = folder / _INNER
    return inner if inner.is_dir() and not (folder / "config.json").is_file() else folder


def _load_open_clip(name: str, revision: str | None, device: torch.device, dtype: torch.dtype) -> Adapter:
    """A name with one of open_clip's prefixes; "open_clip:" before another of them says nothing new."""
    bare = name.removeprefix(PREFIX)
    if bare.startswith(HUB):
        snapshot = _open_clip_snapshot(bare.removeprefix(HUB), revision)
        return load_folder(snapshot, bare, snapshot.name, device, dtype)
    _refuse_revision(name, revision)
    if not bare.startswith(FOLDER):
        return load_architecture(name, device, dtype)
    folder = Path(bare.removeprefix(FOLDER)).expanduser().resolve()
    return load_folder(folder, f"{FOLDER}{folder}", None, device, dtype)


def _open_clip_snapshot(name: str, revision: str | None) -> Path:
    """The snapshot of a repository in open_clip's layout; its torch file only where it has no safetensors."""
    snapshot = _download(name, revision, FILES)
    return snapshot if any(snapshot.glob(FILES[-1])) else _download(name, revision, PICKLES)


def _download(name: str, revision: str | None, files: Sequence[str] = _FILES) -> Path:
    """The snapshot of a Hub repository in the local cache, without the pickles and other frameworks' weights."""
    known = "" if "/" in name else f" (embedded are {', '.join(MODELS)})"
    try:
        with looking_up(name):
            return Path(snapshot_download(name, revision=revision, allow_patterns=list(files)))
    except HFValidationError as error:
        raise BayesVLMError(
            f"{name!r} is neither a folder nor a Hub id; expected something like 'openai/clip-vit-base-patch32'."
        ) from error
    except GatedRepoError as error:
        raise BayesVLMError(
            f"The model {name!r} is gated: accept its terms on its Hub page, then log in with `hf auth login`."
        ) from error
    except RevisionNotFoundError as error:
        raise BayesVLMError(
            f"The model {name!r} has no revision {revision!r} on the Hub; check its history."
        ) from error
    except LocalEntryNotFoundError as error:
        raise BayesVLMError(
            f"The model {name!r} is not a folder here, not in the local cache, and the Hub could not be reached; "
            f"check the spelling{known}, connect (and unset HF_HUB_OFFLINE), or pass a folder that holds it."
        ) from error
    except HfHubHTTPError as error:
        raise BayesVLMError(
            f"The Hub did not hand over the model {name!r} ({first_line(error)}); "
            f"check the spelling{known}, or log in with `hf auth login` if it is private."
        ) from error


def _safetensors_pull_request(name: str) -> str | None:
    """The Hub's own conversion bot offers safetensors for repositories that hold only a pickle, as a pull request."""
    try:
        offers = HfApi().get_repo_discussions(name, author="SFconvertbot", discussion_type="pull_request")
        return next((offer.git_reference for offer in offers if "safetensors" in offer.title), None)
    except Exception:  # offline, or anything else the network does: that the pickle is refused is what matters
        return None


def _family(folder: Path) -> type[HuggingFaceAdapter]:
    """The adapter for the checkpoint's model_type, once the files it needs are known to be there."""
    path = folder / "config.json"
    if not path.is_file():
        raise BayesVLMError(
            f"The folder {str(folder)!r} holds no config.json; pass that of a saved model or posterior."
        )
    try:
        model_type = json.loads(path.read_text(encoding="utf-8")).get("model_type")
    except (ValueError, AttributeError) as error:
        raise BayesVLMError(f"{str(path)!r} is not a JSON object ({first_line(error)}); fetch it again.") from error
    if model_type not in FAMILIES:
        raise BayesVLMError(
            f"{str(path)!r} says model_type {model_type!r}, which has no adapter; supported are {', '.join(FAMILIES)}."
        )
    _require_weights(folder)
    for files, purpose in ((_TOKENIZER_FILES, "tokenizer"), (_PIXEL_FILES, "image processor")):
        if not any((folder / file).is_file() for file in files):
            raise BayesVLMError(
                f"The folder {str(folder)!r} has no {purpose} (none of {', '.join(files)}); "
                "copy those files from where the model was published."
            )
    return FAMILIES[model_type]


def _require_weights(folder: Path) -> None:
    files = sorted(folder.glob(_WEIGHTS))
    if not files and is_published(folder) and any(folder.glob(PICKLE)):
        return  # read with weights_only=True
    if not files:
        if any(folder.glob("*.bin")) or any(folder.glob("*.pt")):
            problem = "only a pickle (.bin, .pt), which can run code when it is loaded"
        else:
            problem = "no weights"
        raise BayesVLMError(
            f"The folder {str(folder)!r} holds {problem}; expected model.safetensors: "
            "save the model with `save_pretrained(folder, safe_serialization=True)`, or fetch a revision that has it."
        )
    for file in files:
        try:
            with safe_open(file, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise BayesVLMError(
                f"The weights {str(file)!r} are damaged or truncated ({first_line(error)}); fetch them again."
            ) from error


def _load_weights(folder: Path) -> Any:
    """The model, refused unless every one of its weights came from the file.

    `transformers` fills what is missing with random numbers and carries on; a posterior over those means nothing.
    """
    from transformers import AutoModel

    safe = any(folder.glob(_WEIGHTS))
    try:
        model, report = AutoModel.from_pretrained(
            folder,
            use_safetensors=safe,
            weights_only=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # a malformed config or shard raises nearly every type
        raise BayesVLMError(
            f"The model in {str(folder)!r} could not be built from its config.json and weights ({first_line(error)}); "
            "fetch them again, and keep files of different models apart."
        ) from error
    absent = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if absent or report["error_msgs"]:
        raise BayesVLMError(
            f"The weights in {str(folder)!r} do not fill the model: {len(absent)} are missing or of another shape "
            f"({', '.join(absent[:3])}{', ...' if len(absent) > 3 else ''}) and would be random; "
            "fetch the checkpoint that belongs to this config.json."
        )
    return model


def _load_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except ImportError as error:
        raise BayesVLMError(
            f"The tokenizer in {str(folder)!r} needs SentencePiece; run `pip install sentencepiece protobuf`."
        ) from error
    except Exception as error:  # tokenizer files are parsed by several libraries, each with errors of its own
        raise BayesVLMError(
            f"The tokenizer in {str(folder)!r} could not be loaded ({first_line(error)}); "
            "copy its files again from where the model was published."
        ) from error


def _load_image_processor(folder: Path) -> Any:
    """The Pillow version, on every machine: the torchvision one resizes slightly differently."""
    from transformers import AutoImageProcessor

    pillow = {"backend": "pil"} if _MODERN else {"use_fast": False}
    load: Any = AutoImageProcessor.from_pretrained  # untyped
    try:
        return load(folder, local_files_only=True, trust_remote_code=False, **pillow)
    except Exception as error:  # a malformed file raises nearly every type
        raise BayesVLMError(
            f"The image processor in {str(folder)!r} could not be loaded ({first_line(error)}); "
            "copy preprocessor_config.json again from where the model was published."
        ) from error
