"""Tables of Hugging Face's `datasets` library, an optional extra: of the Hub, or saved to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bayesvlm.core.errors import BayesVLMError, first_line


def is_saved_dataset(folder: Path) -> bool:
    """Whether `save_to_disk` wrote this folder."""
    return (folder / "dataset_dict.json").is_file() or (
        (folder / "state.json").is_file() and (folder / "dataset_info.json").is_file()
    )


def load_table(source: str, split: str | None) -> Any:
    """A `datasets.Dataset`: a split of a data set on the Hub, or of a folder; a folder with a single one needs none."""
    try:
        from datasets import load_dataset, load_from_disk
    except ImportError:
        raise BayesVLMError(
            f"The data set {source!r} is read with the package datasets, which is not installed; "
            "pip install 'bayesvlm[datasets]'."
        ) from None
    folder = Path(source)
    if not folder.is_dir() and split is None:
        raise BayesVLMError(
            f"The data set {source!r} needs a split, such as 'train'; say which with split=... or --split."
        )
    try:
        if is_saved_dataset(folder):
            loaded = load_from_disk(source)
        else:
            loaded = load_dataset(source) if folder.is_dir() else load_dataset(source, split=split)
    except Exception as error:  # the package raises errors of a dozen types, its own and others'
        raise BayesVLMError(
            f"The data set {source!r} cannot be loaded ({first_line(error)}); check its name, the split and the "
            "network."
        ) from error
    if isinstance(loaded, dict):
        return _choose_split(loaded, split, source)
    if folder.is_dir() and split is not None and str(loaded.split) != split:
        raise BayesVLMError(f"The data set {source!r} has no splits, so split={split!r} chooses nothing; leave it out.")
    return loaded


def _choose_split(splits: dict[str, Any], split: str | None, source: str) -> Any:
    if split is None and len(splits) == 1:
        return next(iter(splits.values()))
    if split not in splits:
        wrong = "has several splits" if split is None else f"has no split {split!r}"
        raise BayesVLMError(f"The data set {source!r} {wrong}; choose the split from {', '.join(splits)}.")
    return splits[split]
