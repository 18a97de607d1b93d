"""What scikit-learn calls X: images however they are listed, or a table of activations; and pairs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.images.decoding import Readable

_ONE = (str, bytes, bytearray, memoryview, os.PathLike, Image.Image, Readable)
_CHANNELS = (1, 3, 4)
_EXPECTED = (
    "a list, array or column of images or paths, an array of images [N, H, W, 3], Features, or activations [N, p]"
)


def images_of(X: Any) -> Any:
    """What a BayesVLM takes for X; None where X is a table of numbers, the rows of which are activations."""
    if X is None:
        raise BayesVLMError(f"X is None; pass {_EXPECTED}.")
    if isinstance(X, Features):
        return _some(X)
    if isinstance(X, _ONE):
        raise BayesVLMError(f"X is one {type(X).__name__}; scikit-learn takes many rows, so pass a list: [X].")
    if hasattr(X, "columns"):  # a DataFrame of pandas or polars
        return _of_table(X)
    if isinstance(X, Tensor):
        X = array_of(X)
    elif hasattr(X, "to_numpy"):  # a Series
        X = X.to_numpy()
    if isinstance(X, list | tuple):
        return _of_list(X)
    if isinstance(X, Mapping) or not hasattr(X, "__array__"):  # what a processor made; a data set, a generator
        return None if hasattr(X, "toarray") else X  # which is sparse
    return _of_array(np.asarray(X))


def array_of(tensor: Tensor) -> np.ndarray[Any, Any]:
    """A tensor for numpy, which has no bfloat16."""
    kept = tensor.detach().cpu()
    return np.asarray((kept.float() if kept.dtype == torch.bfloat16 else kept).numpy())


def table_of(X: Any) -> Any:
    """A table of activations for scikit-learn's check: tensors, also in a list, become arrays."""
    if isinstance(X, Tensor):
        return array_of(X)
    if isinstance(X, list | tuple):
        return [array_of(row) if isinstance(row, Tensor) else row for row in X]
    return X


def pairs_of(X: Any) -> Any:
    """Batches of (images, texts), where that is what `fit` was given alone; else None.

    Tuples of two are never images, and what cannot be indexed (a loader, a generator) can be nothing but pairs.
    """
    if isinstance(X, (Features, Mapping, Tensor, *_ONE)) or hasattr(X, "shape"):
        return None
    if isinstance(X, Sequence):
        return X if len(X) and isinstance(X[0], tuple) and len(X[0]) == 2 else None
    return X if isinstance(X, Iterable) and not hasattr(X, "__getitem__") else None


def _of_table(X: Any) -> Any:
    numeric = all(np.asarray(X[name]).dtype.kind in "biuf" for name in X.columns)
    if numeric and len(X.columns):
        return None
    if len(X.columns) != 1:
        raise BayesVLMError(
            f"X is a table with the columns {', '.join(map(str, list(X.columns)[:6]))}; pass the one that holds the "
            "images or their paths, such as X[['path']]."
        )
    return _some(np.asarray(X[X.columns[0]]).tolist())


def _of_list(X: Sequence[Any]) -> Any:
    first = _some(X)[0]
    if isinstance(first, Number) or (isinstance(first, list | tuple) and first and isinstance(first[0], Number)):
        return None
    if isinstance(first, np.ndarray | Tensor) and first.ndim == 1:  # rows of activations
        return None
    return X


def _of_array(X: np.ndarray[Any, Any]) -> Any:
    if X.dtype.kind == "S":
        raise BayesVLMError(
            "X is a numpy array of bytes, which numpy cuts off at zeros; pass a list, or an array with dtype=object."
        )
    if X.dtype.kind in "OUT" and (X.ndim == 1 or (X.ndim == 2 and X.shape[1] == 1)) and X.size:
        items = X.ravel().tolist()
        return None if isinstance(items[0], Number) else items
    if X.ndim == 3 and X.shape[2] in _CHANNELS:
        raise BayesVLMError(
            f"X has shape {list(X.shape)}, which is one image; scikit-learn takes many rows, so pass X[None]."
        )
    if X.ndim in (3, 4):
        return _some(list(X))
    if X.ndim > 4:
        raise BayesVLMError(f"X has shape {list(X.shape)}; expected {_EXPECTED}.")
    return None


def _some(rows: Any) -> Any:
    if len(rows) == 0:
        raise BayesVLMError(f"X is empty: there are 0 samples, and a minimum of 1 is required; pass {_EXPECTED}.")
    return rows
