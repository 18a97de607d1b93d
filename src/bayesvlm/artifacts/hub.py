"""Saved posteriors on the Hugging Face Hub."""

from __future__ import annotations

import json
from pathlib import Path

from huggingface_hub import HfApi, hf_hub_download, snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OfflineModeIsEnabled

from bayesvlm.artifacts.saved import CARD, CONFIG, PROJECTIONS, TENSORS, is_posterior
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.embedded import embedded_model, embedded_posterior, looking_up


def find_posterior(name: str | Path, revision: str | None = None) -> Path | None:
    """The local folder of a saved posterior given by folder or Hub id; None when `name` is something else (a model)."""
    local = Path(name).expanduser()
    if is_posterior(local):
        return local
    if embedded_model(name) is not None and revision is None:
        return embedded_posterior(name)
    if local.exists() or embedded_model(name) is not None:
        return None
    with looking_up(name):
        return _find_on_hub(str(name), revision)


def _find_on_hub(name: str, revision: str | None) -> Path | None:
    try:
        config = hf_hub_download(name, CONFIG, revision=revision)
        if "bayesvlm_schema" not in json.loads(Path(config).read_text()):
            return None
        files = [TENSORS, CONFIG, CARD, PROJECTIONS]
        return Path(snapshot_download(name, revision=revision, allow_patterns=files))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError, ValueError):
        return None  # not reachable, or no such repository: loading it as a model will say which


def upload(folder: Path, repo_id: str, private: bool, token: str | None) -> str:
    """Create the repository if need be and upload the folder; returns its address."""
    api = HfApi(token=token)
    try:
        address = api.create_repo(repo_id, private=private, exist_ok=True)
        api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message="Upload a BayesVLM posterior")
    except (HFValidationError, HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise BayesVLMError(
            f"The posterior could not be uploaded to {repo_id!r}: {reason}; check the id, the network and your token."
        ) from None
    return str(address)
