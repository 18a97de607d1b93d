"""A fit that was interrupted goes on: the estimator's sums after each finished contrast batch, in one file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save as to_safetensors

from bayesvlm.artifacts.files import read_safetensors, write_together
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import TOWERS, FactorEstimator
from bayesvlm.core.factors import KroneckerFactors


def save_checkpoint(path: Path, estimator: FactorEstimator, run: Mapping[str, Any], digest: str) -> None:
    """Write the finished contrast batches (and the last one's embeddings, which lend negatives) atomically.

    Args:
        path: the file; replaced whole.
        estimator: after at least one finished contrast batch.
        run: what identifies the run (weights, data, settings); a checkpoint of another run is refused.
        digest: a hash of the pairs summed over so far.
    """
    tensors = {}
    for tower in TOWERS:
        factors = estimator.closed[tower]
        tensors[f"{tower}.A"], tensors[f"{tower}.B"] = factors.A_sum.cpu(), factors.B_sum.cpu()
        tensors[f"{tower}.recent"] = estimator.recent[tower].cpu().contiguous()
    metadata = {"run": json.dumps(dict(run), sort_keys=True), "pairs": str(estimator.pairs_closed), "digest": digest}
    write_together(path.parent, {path.name: to_safetensors(tensors, metadata)})


def restore_checkpoint(path: Path, estimator: FactorEstimator, run: Mapping[str, Any]) -> tuple[int, str]:
    """Put a checkpoint's sums into a fresh estimator; returns how many pairs they hold and their digest.

    Returns (0, "") when there is no file.
    """
    if not path.exists():
        return 0, ""
    tensors = read_safetensors(path)
    with safe_open(str(path), framework="pt") as file:
        metadata = file.metadata() or {}
    saved = json.loads(metadata.get("run", "{}"))
    wanted = json.loads(json.dumps(dict(run), sort_keys=True))
    differing = sorted(name for name in saved.keys() | wanted.keys() if saved.get(name) != wanted.get(name))
    if differing:
        name = differing[0]
        raise BayesVLMError(
            f"{path} belongs to another run: {name} is {saved.get(name)!r} there and {wanted.get(name)!r} here; "
            "delete the file to start afresh, or use the settings it was made with."
        )
    pairs, device = int(metadata["pairs"]), estimator.image.weight.device
    for tower in TOWERS:
        estimator.closed[tower] = KroneckerFactors(tensors[f"{tower}.A"], tensors[f"{tower}.B"], pairs).to(device)
        estimator.recent[tower] = tensors[f"{tower}.recent"].to(device)
    return pairs, metadata.get("digest", "")
