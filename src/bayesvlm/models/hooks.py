"""Reading what enters a layer, without touching the model's code."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def captured_inputs(*modules: nn.Module) -> Iterator[list[list[Tensor]]]:
    """Record the first argument of every call of each module while the context is open.

    The hooks are removed on the way out, also after an exception, and see only calls made by the thread that opened
    the context: two threads that share a model do not read each other's activations.

    Yields:
        One list for each module, filled as it is called.

    Example:
        >>> import torch
        >>> layer = nn.Linear(2, 3)
        >>> with captured_inputs(layer) as (entering,):
        ...     _ = layer(torch.ones(4, 2))
        >>> [tuple(tensor.shape) for tensor in entering]
        [(4, 2)]
    """
    thread = threading.get_ident()
    records: list[list[Tensor]] = [[] for _ in modules]

    def recorder(record: list[Tensor]) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...]) -> None:
            if threading.get_ident() == thread:
                record.append(arguments[0])

        return hook

    handles = [
        module.register_forward_pre_hook(recorder(record)) for module, record in zip(modules, records, strict=True)
    ]
    try:
        yield records
    finally:
        for handle in handles:
            handle.remove()
