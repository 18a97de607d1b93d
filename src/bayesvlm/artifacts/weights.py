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
_BLOCK = 2**16  # numbers handled at once: they stay in a processor's cache


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


def encoder_hashes(parameters: Iterable[Tensor]) -> dict[str, str]:
    """Hashes of all of an encoder's parameters, as they are and rounded to the half dtypes, of whatever name or layout.

    The sum over all numbers of a hash of each: 0.2 s a dtype for 150 million. Names, order and shapes do not enter,
    because they change between versions and libraries with the weights the same; neither do buffers.
    """
    kept = list(parameters)
    return {name: _checksum(kept, dtype) for name, dtype in DTYPES.items()}


def same_encoder(expected: Mapping[str, str], parameters: Iterable[Tensor]) -> bool:
    """Whether these are the parameters that were hashed, as `agree` says of their hashes, which are made as needed."""
    kept = list(parameters)
    return any(_checksum(kept, dtype) == expected.get(name) for name, dtype in DTYPES.items())


def agree(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Whether two encoders' hashes are those of one model; of one in half precision, once both are rounded to it."""
    return any(name in one and one[name] == other.get(name) for name in DTYPES)


def _checksum(parameters: Iterable[Tensor], dtype: torch.dtype) -> str:
    total = 0
    for parameter in parameters:
        for block in torch.split(parameter.detach().reshape(-1), _BLOCK if parameter.device.type == "cpu" else 2**26):
            mixed = block.to(dtype).float().view(torch.int32).long().mul_(_MIX[0])
            mixed ^= mixed >> 32
            total += int(mixed.mul_(_MIX[1]).sum())
    return f"{total % 2**64:016x}"
