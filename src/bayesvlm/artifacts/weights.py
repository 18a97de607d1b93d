"""The hash that ties a posterior to the projections it was estimated for."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.projection import Projection


def weight_hashes(image: Projection, text: Projection) -> dict[str, str]:
    """Hashes of the projections as they are and rounded to the half dtypes a model may be loaded in."""
    hashes = {}
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        digest = hashlib.sha256()
        for weight in (image.augmented, text.augmented):
            rounded = weight.to(dtype).float().cpu().contiguous()
            digest.update(repr(tuple(rounded.shape)).encode())
            digest.update(rounded.numpy().astype("<f4").tobytes())
        hashes[str(dtype).removeprefix("torch.")] = digest.hexdigest()
    return hashes


def same_weights(expected: Mapping[str, str], image: Projection, text: Projection) -> bool:
    """Whether these are the projections that were hashed; one model in two dtypes counts as the same."""
    loaded = weight_hashes(image, text)
    return loaded["float32"] in expected.values() or expected.get("float32") in loaded.values()


def check_weights(
    expected: Mapping[str, str], expected_model: str | None, image: Projection, text: Projection, model: str
) -> None:
    """Refuse a posterior for other weights; one model in two dtypes counts as the same weights.

    Args:
        expected, expected_model: hashes and model the posterior was saved with.
        image, text, model: the projections at hand and what they belong to.
    """
    if same_weights(expected, image, text):
        return
    loaded = weight_hashes(image, text)
    raise BayesVLMError(
        f"This posterior was estimated for other weights: the projections of {model} hash to "
        f"{loaded['float32'][:12]}..., the posterior's to {expected['float32'][:12]}... "
        f"(model {expected_model or 'not named'}); load that model, or fit a posterior for this one."
    )
