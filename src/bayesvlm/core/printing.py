"""How objects that hold tensors print: in a line, every tensor by its dtype and shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

FIRST = 3  # entries shown of a long list
_LETTERS = 60  # shown of a long text


def described(holder: Any) -> str:
    """`Name(field=..., ...)` of a dataclass or a named tuple; the `__repr__` of those that hold tensors.

    Example:
        >>> from bayesvlm.core.features import Features
        >>> Features(torch.ones(4, 3))
        Features(activations=float32 [4, 3], residual=None, log_variance=None, constant=None)
    """
    names = getattr(holder, "_fields", None) or [field.name for field in fields(holder) if field.repr]
    values = [f"{name}={brief(getattr(holder, name))}" for name in names if not name.startswith("_")]
    return f"{type(holder).__name__}({', '.join(values)})"


def brief(value: Any) -> str:
    """A value in a few words: tensors by dtype and shape; lists, mappings and texts by how they begin."""
    if isinstance(value, Tensor):
        place = "" if value.device == torch.device("cpu") else f" on {value.device}"
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}{place}"
    if isinstance(value, Mapping):
        return "{" + beginning([f"{name!r}: {brief(entry)}" for name, entry in value.items()]) + "}"
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return "[" + beginning([brief(entry) for entry in value[:FIRST]], len(value)) + "]"
    if isinstance(value, bytes):
        return f"{len(value)} bytes"
    return f"{value[:_LETTERS]!r}..." if isinstance(value, str) and len(value) > _LETTERS else repr(value)


def beginning(entries: Sequence[str], count: int | None = None) -> str:
    """The first few of `count` entries, separated by commas."""
    count = len(entries) if count is None else count
    shown = ", ".join(entries[:FIRST])
    return shown if count <= FIRST else f"{shown}, ... {count} in all"
