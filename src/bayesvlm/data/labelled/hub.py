"""Data sets on the Hugging Face Hub in CLIP-benchmark's webdataset layout, fetched to its cache a split at a time."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import HfApi, snapshot_download, try_to_load_from_cache
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from bayesvlm.core.errors import BayesVLMError, first_line

_SHARED = ["classnames.txt", "zeroshot_classification_templates.txt"]


class NotOnHubError(BayesVLMError):
    """A data set the Hub did not hand over; `reason` says why, without advice."""

    def __init__(self, repo: str, reason: str, advice: str) -> None:
        super().__init__(f"The Hub data set {repo!r} {reason}; {advice}.")
        self.reason = reason


def fetch_shards(repo: str, split: str) -> Path:
    """The local folder with one split of a data set, fetched if need be; with HF_HUB_OFFLINE only from the cache."""
    folder = _download(repo, [*_SHARED, f"{split}/*"])
    if not (folder / "classnames.txt").is_file():
        raise NotOnHubError(
            repo,
            "has no classnames.txt, so it is not in CLIP-benchmark's webdataset layout",
            "put datasets: before the id of another kind of data set",
        )
    if not (folder / split / "nshards.txt").is_file():
        splits = ", ".join(_splits(repo, folder)) or "none"
        raise NotOnHubError(repo, f"has no split {split!r} (it has {splits})", "ask for another")
    return folder


def cached_shards(repo: str, split: str) -> Path | None:
    """The folder in the local cache that holds a split, if one does; nothing is fetched."""
    file = try_to_load_from_cache(repo, f"{split}/nshards.txt", repo_type="dataset")
    return Path(file).parents[1] if isinstance(file, str) else None


def _download(repo: str, patterns: list[str]) -> Path:
    try:
        return Path(snapshot_download(repo, repo_type="dataset", allow_patterns=patterns))
    except HFValidationError as error:
        raise NotOnHubError(repo, "is no Hub id", "expected something like 'clip-benchmark/wds_food101'") from error
    except GatedRepoError as error:
        raise NotOnHubError(
            repo, "is gated", "accept its terms on its Hub page, then log in with `hf auth login`"
        ) from error
    except LocalEntryNotFoundError as error:
        raise NotOnHubError(
            repo,
            "is not in the local cache, and the Hub could not be reached",
            "check the spelling, or connect (and unset HF_HUB_OFFLINE)",
        ) from error
    except HfHubHTTPError as error:
        raise NotOnHubError(
            repo, f"was not handed over ({first_line(error)})", "check the spelling, or log in with `hf auth login`"
        ) from error


def _splits(repo: str, folder: Path) -> list[str]:
    """The splits of a data set: those on the Hub, or in the cache where the Hub cannot be asked."""
    try:
        files = HfApi().list_repo_files(repo, repo_type="dataset")
    except Exception:  # offline, or anything else the network does: what is here is what can be asked for
        files = [path.relative_to(folder).as_posix() for path in folder.glob("*/nshards.txt")]
    return sorted(file.partition("/")[0] for file in files if file.endswith("/nshards.txt"))
