"""A fit that was interrupted goes on: sums over finished groups and contrast batches, in one file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save as to_safetensors
from torch import Tensor

from bayesvlm.artifacts.files import read_safetensors, write_together
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import TOWERS, Tower
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.core.groups import GroupSums, OpenGroup, Tally

_HASHES = {
    "fingerprint": "the pairs are others, or their files were changed since (another fingerprint)",
    "pairs": "the pairs are others, or their files were changed since",
    "weights": "the model is another",
}
"""What a person is told where a hash differs."""


def save_checkpoint(path: Path, run: Mapping[str, Any], sums: GroupSums, opened: OpenGroup | None = None) -> None:
    """Write what a fit has so far, atomically: an earlier checkpoint stays whole until this one is.

    Args:
        path: the file; replaced whole.
        run: what identifies the run (weights, data, settings); a checkpoint of another run is refused.
        sums: of the finished groups.
        opened: the group that is not finished, after a contrast batch; None where there is none.
    """
    tensors: dict[str, Tensor] = {}
    metadata = {"run": json.dumps(dict(run), sort_keys=True), "groups": json.dumps(sorted(sums.groups))}
    metadata["tally"] = json.dumps(vars(sums.tally))
    _put(tensors, metadata, "sum", sums.factors or {})
    if opened is not None:
        _put(tensors, metadata, "open", opened.closed)
        for tower, rows in opened.recent.items():
            tensors[f"open.{tower}.recent"] = rows.cpu().contiguous()
        state = {"index": opened.index, "position": opened.position, "digest": opened.digest}
        metadata["open"] = json.dumps({**state, "tally": vars(opened.tally)})
    write_together(path.parent, {path.name: to_safetensors(tensors, metadata)})


def restore_checkpoint(path: Path, run: Mapping[str, Any]) -> tuple[GroupSums, OpenGroup | None]:
    """What `save_checkpoint` wrote; nothing done yet where there is no file."""
    if not path.exists():
        return GroupSums(), None
    tensors, metadata = read_checkpoint(path)
    _check_same_run(path, json.loads(metadata["run"]), json.loads(json.dumps(dict(run), sort_keys=True)))
    tally = Tally(**json.loads(metadata["tally"]))
    sums = GroupSums(frozenset(json.loads(metadata["groups"])), _taken(tensors, metadata, "sum") or None, tally)
    if "open" not in metadata:
        return sums, None
    state = json.loads(metadata["open"])
    recent: dict[Tower, Tensor] = {t: tensors[f"open.{t}.recent"] for t in TOWERS if f"open.{t}.recent" in tensors}
    state["tally"] = Tally(**state["tally"])
    return sums, OpenGroup(closed=_taken(tensors, metadata, "open"), recent=recent, **state)


def saved_sums(path: Path) -> dict[Tower, KroneckerFactors] | None:
    """The sums of the finished groups in a checkpoint; None where there are none, or no checkpoint."""
    return _taken(*read_checkpoint(path), "sum") or None if path.exists() else None


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors of a checkpoint and what is said about them."""
    tensors = read_safetensors(path)
    with safe_open(str(path), framework="pt") as file:
        metadata = file.metadata() or {}
    if not {"run", "groups", "tally"} <= metadata.keys():
        raise BayesVLMError(f"{path} is no checkpoint of this version of bayesvlm; delete it to start afresh.")
    return tensors, metadata


def _put(
    tensors: dict[str, Tensor], metadata: dict[str, str], name: str, factors: Mapping[Tower, KroneckerFactors]
) -> None:
    for tower, of in factors.items():
        tensors[f"{name}.{tower}.A"], tensors[f"{name}.{tower}.B"] = of.A_sum.cpu(), of.B_sum.cpu()
        metadata[f"{name}.pairs"] = str(of.n)


def _taken(tensors: Mapping[str, Tensor], metadata: Mapping[str, str], name: str) -> dict[Tower, KroneckerFactors]:
    if f"{name}.pairs" not in metadata:
        return {}
    pairs = int(metadata[f"{name}.pairs"])
    return {t: KroneckerFactors(tensors[f"{name}.{t}.A"], tensors[f"{name}.{t}.B"], pairs) for t in TOWERS}


def _check_same_run(path: Path, saved: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    differing = [name for name in sorted(saved.keys() | wanted.keys()) if saved.get(name) != wanted.get(name)]
    if differing:
        name = next((name for name in differing if name not in _HASHES), differing[0])
        told = _HASHES.get(name, f"{name} is {saved.get(name)!r} there and {wanted.get(name)!r} here")
        raise BayesVLMError(
            f"{path} belongs to another run: {told}; delete the file to start afresh, or use the settings it was made "
            "with."
        )
