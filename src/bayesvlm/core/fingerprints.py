"""Whether two sets of features have inputs in common, without keeping the features of either.

Of every input a few numbers of 16 bits are kept: sums of its activations with fixed signs, relative to their length,
and the logarithm of the length. The same input, encoded in another batch, is off by rounding; another one is elsewhere.
"""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesvlm.core.blocks import row_blocks

NUMBERS = 6  # per input
MOST = 4096  # inputs that are kept of a large set, evenly spaced: enough to notice that it is used again
_STEP = 2.0**-16  # of the numbers, whose spread over the inputs is some 0.01
_OFF = 3  # steps, that rounding may move a number


def fingerprints(activations: Tensor) -> Tensor:  # [N, p] -> [N, NUMBERS] int16
    """A fingerprint of every input, which a computation in another order changes by a step or so."""
    rows = activations.detach().double().cpu()
    signs = torch.randint(2, (rows.shape[1], NUMBERS - 1), generator=torch.Generator().manual_seed(0)) * 2.0 - 1
    lengths = rows.norm(dim=1, keepdim=True)
    sums = (rows / lengths.clamp_min(1e-300)) @ (signs / math.sqrt(max(1, rows.shape[1]))).double()
    numbers = torch.cat([sums, lengths.clamp_min(1e-300).log() / 4], dim=1).div_(_STEP).round_()
    return ((numbers.long() + 2**15) % 2**16 - 2**15).to(torch.int16)  # what does not fit begins anew


def packed(activations: Tensor) -> dict[str, Any]:  # [N, p]
    """Fingerprints as json keeps them, of at most `MOST` inputs."""
    count = len(activations)
    kept = activations if count <= MOST else activations[torch.linspace(0, count - 1, MOST).long()]
    prints = fingerprints(kept).numpy().astype("<i2")
    return {"images": count, "fingerprints": base64.b64encode(prints.tobytes()).decode()}


def kept_share(kept: Any) -> float:
    """Of how many of the inputs `packed` kept a fingerprint: 1 for up to `MOST` of them."""
    count = kept.get("images") if isinstance(kept, dict) else None
    return min(1.0, MOST / count) if isinstance(count, int) and count > 0 else 1.0


def found_again(kept: Any, activations: Tensor) -> list[int]:  # [N, p]
    """Which inputs are among those that `packed` kept; none where it does not hold fingerprints."""
    try:
        prints = np.frombuffer(base64.b64decode(kept["fingerprints"], validate=True), dtype="<i2").astype(np.int16)
        then = torch.from_numpy(prints.reshape(-1, NUMBERS))
    except (KeyError, TypeError, ValueError):
        return []
    now = fingerprints(activations)
    rows: list[int] = []
    for block in row_blocks(len(now), max(1, len(then))):
        same = torch.ones(len(now[block]), len(then), dtype=torch.bool)
        for number in range(NUMBERS):  # differences begin anew at 2^16, as the numbers do
            same &= (now[block, number, None] - then[:, number]).abs() <= _OFF
        rows += (same.any(dim=1).nonzero().flatten() + block.start).tolist()
    return rows
