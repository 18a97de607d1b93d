"""From a module of torch to a file: traced once, then written as ONNX or as a program of torch.export."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bayesvlm.serving.metadata import ExportMetadata

OPSET = 20
"""Of ONNX: the first with Gelu, which runtimes then fuse with the bias before it."""

LARGEST_FILE = 2**31 - 2**24
"""Bytes that one ONNX file can hold; the weights of a larger model go into a file beside it."""

METADATA = "metadata.json"
"""What the metadata is called inside a program of torch.export."""

_NOISY = ("torch.onnx", "torch.export", "torch.fx", "onnxscript", "onnx_ir")


@dataclass(frozen=True, eq=False)
class Graph:
    """A module with an example of each of its inputs, [2, ...], and the names of what goes in and comes out."""

    module: nn.Module
    inputs: Mapping[str, Tensor]
    outputs: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """What its weights take."""
        tensors = (*self.module.parameters(), *self.module.buffers())
        return sum(tensor.nbytes for tensor in tensors)


def traced(graph: Graph) -> torch.export.ExportedProgram:
    """The program of a graph for batches of any size, without the places in sources that tracing notes down."""
    batch = torch.export.Dim("batch")
    with _hushed():
        program = torch.export.export(
            graph.module.eval(),
            tuple(graph.inputs.values()),
            dynamic_shapes=tuple({0: batch} for _ in graph.inputs),
            strict=False,
        )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)
    return program


def save_program(program: torch.export.ExportedProgram, metadata: ExportMetadata, path: Path) -> None:
    """As `torch.export.load` reads it, with the metadata as one of its extra files."""
    with _hushed():
        torch.export.save(program, path, extra_files={METADATA: json.dumps(metadata.as_json(), indent=2)})


def save_onnx(program: torch.export.ExportedProgram, graph: Graph, metadata: ExportMetadata, path: Path) -> None:
    """As ONNX; weights that are too large for one file go into `path` with `.data` at its end."""
    import onnx
    import onnx_ir

    with _hushed():
        made = torch.onnx.export(
            program,
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_shapes=tuple({0: "batch"} for _ in graph.inputs),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    assert made is not None
    model = made.model
    model.producer_name, model.producer_version = "bayesvlm", metadata.bayesvlm
    _forget_origins(model)
    _keep_apart(model)
    model.metadata_props.update(metadata.entries())
    onnx_ir.save(model, path, external_data=data_file(path).name if graph.bytes > LARGEST_FILE else None)
    written = onnx.load(path, load_external_data=False)
    weights = {tensor.name for tensor in written.graph.initializer}
    kept = [value for value in written.graph.value_info if value.name not in weights]
    del written.graph.value_info[:]  # what is said twice of a weight stands in the way of quantisers, which replace it
    written.graph.value_info.extend(kept)
    onnx.save(written, path)


def data_file(path: Path) -> Path:
    """Where the weights of an ONNX file are that are too large for it."""
    return path.with_name(f"{path.name}.data")


def run_file(path: Path, inputs: Mapping[str, Tensor], outputs: Sequence[str]) -> dict[str, NDArray[np.float32]]:
    """What a written file answers, by the runtime it is for."""
    if path.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        found = session.run(list(outputs), {name: value.numpy() for name, value in inputs.items()})
        return dict(zip(outputs, found, strict=True))
    with _hushed(), torch.inference_mode():
        answers = torch.export.load(path).module()(*inputs.values())
    return {name: answers[name].numpy() for name in outputs}


def _forget_origins(model: Any) -> None:
    """Leave out what the exporter notes of every node and value: names of modules here, and lines of their sources."""
    values = [*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()]
    for node in model.graph:
        node.metadata_props.clear()
        node.doc_string = None
        values += node.outputs
    for value in values:
        value.metadata_props.clear()


def _keep_apart(model: Any) -> None:
    """Give what is computed on the way other names than inputs and outputs have: the exporter may use one twice."""
    taken = {value.name for value in (*model.graph.inputs, *model.graph.outputs)}
    outputs = set(model.graph.outputs)
    for node in model.graph:
        for value in node.outputs:
            if value.name in taken and value not in outputs:
                value.name = f"{value.name}_within"


@contextmanager
def _hushed() -> Iterator[None]:
    """No word of what exporters log and warn of."""
    loggers = [logging.getLogger(name) for name in _NOISY]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
