"""The hashes that tie a posterior to the projections it was estimated for, and to the encoder before them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.projection import Projection

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}  # a model may be loaded in
_MIX = (-0x61C8864680B583EB, -0x40A7B892E31B1A47)  # odd numbers of 64 bits without a pattern (SplitMix64's)
_BLOCK = 2**15  # numbers handled at once: they stay in a cache, and more would be shared out between threads


def weight_hashes(image: Projection, text: Projection) -> dict[str, str]:
    """Hashes of the projections as they are and rounded to the half dtypes a model may be loaded in."""
    hashes = {}
    for name, dtype in DTYPES.items():
        digest = hashlib.sha256()
        for weight in (image.augmented, text.augmented):
            rounded = weight.to(dtype).float().cpu().contiguous()
            digest.update(repr(tuple(rounded.shape)).encode())
            digest.update(rounded.numpy().astype("<f4").tobytes())
        hashes[name] = digest.hexdigest()
    return hashes


def same_weights(expected: Mapping[str, str], image: Projection, text: Projection) -> bool:
    """Whether these are the projections that were hashed; one model in two dtypes counts as the same."""
    return agree(expected, weight_hashes(image, text))


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


def encoder_hashes(parameters: Iterable[Tensor]) -> dict[str, str]:
    """Hashes of all of an encoder's parameters, as they are and rounded to the half dtypes, of whatever name or layout.

    The sum over all numbers of a hash of each: 0.3 s per dtype for 150 million. Names, order and shapes do not enter,
    because they change between versions and libraries with the weights the same; neither do buffers.
    """
    kept = list(parameters)
    return {name: _checksum(kept, dtype) for name, dtype in DTYPES.items()}


def same_encoder(expected: Mapping[str, str], parameters: Iterable[Tensor]) -> bool:
    """Whether these are the parameters that were hashed; one model in two dtypes counts as the same."""
    kept = list(parameters)
    if _checksum(kept, torch.float32) in expected.values():
        return True
    return agree(expected, encoder_hashes(kept))


def agree(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two sets of hashes are of one model: the numbers of one as they are, those of the other maybe rounded.

    A model in float16 and the same in bfloat16 cannot be told from two models, and do not agree.
    """
    return one.get("float32") in other.values() or other.get("float32") in one.values()


def _checksum(parameters: Iterable[Tensor], dtype: torch.dtype) -> str:
    total = 0
    for parameter in parameters:
        for block in torch.split(parameter.detach().reshape(-1), _BLOCK if parameter.device.type == "cpu" else 2**26):
            mixed = block.to(dtype).float().view(torch.int32).long().mul_(_MIX[0])
            mixed ^= mixed >> 32
            mixed.mul_(_MIX[1])
            total += int((mixed ^ (mixed >> 29)).sum())
    return f"{total % 2**64:016x}"
