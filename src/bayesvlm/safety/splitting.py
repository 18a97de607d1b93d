"""One labelled set for two purposes, and the refusal of images that served the first for the second."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError, BayesVLMWarning, check_count
from bayesvlm.core.features import Features
from bayesvlm.core.fingerprints import found_again, kept_share
from bayesvlm.core.shuffling import shuffled_order
from bayesvlm.vlm import BayesVLM

TUNED_IMAGES, TUNED_ON = "tuned_images", "tuned_on"
_SHOWN = 5
_BY_CHANCE = 0.01  # of the images: sets that were put together apart share a picture now and then


def halves(count_or_labels: int | Sequence[Any] | Tensor, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two halves of a labelled set: rows to `tune` on, and rows to `calibrate` on.

    They have no row in common and together are all rows. Each half gets half of the images of every label; an odd one
    goes to the half that has fewer so far, labels in a random order too: with one image of each, a seed decides which
    go where. A seed gives the same halves on every machine.

    Args:
        count_or_labels: how many rows there are, or the label of each, names or numbers.
        seed: of the order in which rows are dealt out.

    Example:
        >>> tune, calibrate = halves(["a", "a", "b", "b", "b", "b"])
        >>> len(tune), len(calibrate)
        (3, 3)
    """
    if isinstance(count_or_labels, Sequence | Tensor | np.ndarray) and not isinstance(count_or_labels, str):
        given = count_or_labels.tolist() if hasattr(count_or_labels, "tolist") else list(count_or_labels)
    else:
        given = [0] * check_count("count", count_or_labels, least=2)
    if not isinstance(given, list) or len(given) < 2:
        raise BayesVLMError(f"There are {len(given) if isinstance(given, list) else 1} rows; halves need two or more.")
    for row, label in enumerate(given):
        if isinstance(label, list | dict | set):
            raise BayesVLMError(f"Row {row} has the label {str(label)[:40]}; halves need one name or number per row.")
    by_label: dict[Any, list[int]] = {}  # in a random order as well
    for row in shuffled_order(len(given), seed).tolist():
        by_label.setdefault(given[row], []).append(row)
    dealt: tuple[list[int], list[int]] = ([], [])
    for rows in by_label.values():
        begin = 0 if len(dealt[0]) <= len(dealt[1]) else 1
        for number, row in enumerate(rows):
            dealt[(begin + number) % 2].append(row)
    return torch.tensor(sorted(dealt[0])), torch.tensor(sorted(dealt[1]))


def check_fresh(vlm: BayesVLM, images: Features, source: str | None, stacklevel: int = 1) -> None:
    """Refuse calibration images that tau was tuned on, as far as the posterior's provenance shows.

    Args:
        vlm: whose `tune` kept fingerprints of its images.
        images: to calibrate on.
        source: what they are called; None: that is not known.
        stacklevel: of the warning about a picture or two.
    """
    remedy = (
        "they would look more familiar than new images do: calibrate on others, or divide the set before "
        "(bayesvlm.safety.halves)"
    )
    if source is not None and source == vlm.provenance.get(TUNED_ON):
        raise BayesVLMError(f"tau was tuned on {source!r}, the very images to calibrate on, and {remedy}.")
    again = found_again(vlm.provenance.get(TUNED_IMAGES), images.activations)
    rows = ", ".join(map(str, again[:_SHOWN])) + (", ..." if len(again) > _SHOWN else "")
    some, are = ("row", "is") if len(again) == 1 else ("rows", "are")
    found = (
        f"{len(again)} of the {len(images)} calibration images ({some} {rows}) {are} among those that tau was tuned on"
    )
    if len(again) > _BY_CHANCE * kept_share(vlm.provenance.get(TUNED_IMAGES)) * len(images):
        raise BayesVLMError(f"{found}, and {remedy}.")
    if again:
        warnings.warn(
            f"{found}: so few may be there twice by chance, and change little; leave them out to be exact.",
            BayesVLMWarning,
            stacklevel=stacklevel + 1,
        )
