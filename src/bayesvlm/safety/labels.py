"""Labels of images that may carry several, as callers give them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from bayesvlm.classes import label_indices
from bayesvlm.core.errors import BayesVLMError

Labels = Sequence[int] | Sequence[str] | Sequence[Collection[int]] | Sequence[Collection[str]] | Tensor | Any
"""One label of each image, or several (names or indices), or a multi-hot matrix [N, C]."""


def multi_hot(labels: Labels, names: tuple[str, ...] | None, inputs: int, classes: int) -> Tensor:  # [N, C] bool
    """Which labels each image carries.

    Args:
        labels: a matrix [N, C] (array, tensor, DataFrame) of 0 and 1; a list of lists of names or indices, which may be
            empty; or one name or index of each image.
        names: of the classes; None: they have none, and labels must be indices.
        inputs, classes: N and C.
    """
    if getattr(labels, "ndim", 1) == 2:
        return _matrix(labels, names, inputs, classes)
    if not isinstance(labels, list | tuple) and hasattr(labels, "tolist"):  # an array, or a column of a table
        labels = labels.tolist()
    if isinstance(labels, str) or not isinstance(labels, Sequence):
        raise BayesVLMError(
            f"labels={str(labels)[:60]!r}, a {type(labels).__name__}; give the labels of each image, as names or "
            f"indices, or a matrix [{inputs}, {classes}] of 0 and 1."
        )
    given: list[Any] = [row.item() if isinstance(row, np.ndarray | Tensor) and row.ndim == 0 else row for row in labels]
    if not any(_several(row) for row in given):
        return functional.one_hot(label_indices(given, names, inputs, classes), classes).bool()
    if len(given) != inputs:
        raise BayesVLMError(f"There are {inputs} inputs and labels of {len(given)}; give a list of labels for each.")
    rows = [list(row) if _several(row) else [row] for row in given]
    if all(len(row) == classes and all(entry in (0, 1) for entry in row) for row in rows) and classes > 1:
        if all(isinstance(entry, bool | np.bool_) for row in rows for entry in row):
            return torch.tensor(rows)
        raise BayesVLMError(
            f"Every row of labels has {classes} entries, all 0 or 1: pass numpy.array(labels) if they say which of the "
            f"{classes} labels an image carries, and [[1], [0, 1], ...] if they are indices."
        )
    index = {name: place for place, name in enumerate(names or ())}
    found = torch.zeros(inputs, classes, dtype=torch.bool)
    for place, row in enumerate(rows):
        for entry in row:
            found[place, _index(entry, index, names, place, classes)] = True
    return found


def _several(row: object) -> bool:
    return isinstance(row, Collection | Tensor) and not isinstance(row, str | bytes)


def _index(entry: Any, index: dict[str, int], names: tuple[str, ...] | None, place: int, classes: int) -> int:
    if isinstance(entry, str):
        if names is None:
            raise BayesVLMError("The labels are names but the classes are Features; pass indices.")
        if entry not in index:
            raise BayesVLMError(
                f"labels[{place}] has {entry[:60]!r}, which is not among the {classes} classes; spell them alike."
            )
        return index[entry]
    if isinstance(entry, bool | np.bool_) or not hasattr(entry, "__index__"):
        raise BayesVLMError(
            f"labels[{place}] has {str(entry)[:60]!r}, a {type(entry).__name__}; a label is a class name or an index."
        )
    if not 0 <= (number := int(entry)) < classes:
        raise BayesVLMError(f"labels[{place}] has {number}, but the {classes} classes are 0 to {classes - 1}.")
    return number


def _matrix(labels: Any, names: tuple[str, ...] | None, inputs: int, classes: int) -> Tensor:  # [N, C] bool
    columns = getattr(labels, "columns", None)
    if columns is not None and names is not None and tuple(columns) != names:
        raise BayesVLMError(
            f"The columns of the labels are {', '.join(map(repr, list(columns)[:5]))}{', ...' * (len(columns) > 5)}; "
            "they must be the class names, in their order: labels[list(classes)]."
        )
    if isinstance(labels, Tensor):
        matrix = labels
    else:
        try:
            matrix = torch.as_tensor(np.asarray(labels).astype(np.float64))
        except (TypeError, ValueError):
            raise BayesVLMError(f"The labels are a matrix of {type(labels).__name__}; it must hold 0 and 1.") from None
    if tuple(matrix.shape) != (inputs, classes):
        raise BayesVLMError(
            f"The matrix of labels is {list(matrix.shape)}, but there are {inputs} inputs and {classes} classes; it "
            f"must be [{inputs}, {classes}]."
        )
    if not bool(((matrix == 0) | (matrix == 1)).all()):
        raise BayesVLMError("A matrix of labels says which labels an image carries: it must hold 0 and 1 only.")
    if inputs == 0:
        raise BayesVLMError("There are no labelled inputs; give at least one.")
    return matrix.bool().cpu()
