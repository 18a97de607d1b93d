"""What a tower hands to the Bayesian layer: the activations entering its last projection."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError

Index = SupportsIndex | slice | Sequence[int] | Tensor | np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Features:
    """Activations `phi` entering a tower's last linear layer, and the residual added after it (SigLIP images).

    Always two-dimensional and finite: the constructor refuses anything else, naming the rows.

    Args:
        activations: [N, p], floating point; numpy arrays and nested lists are converted.
        residual: [N, d] or None.

    Example:
        >>> features = Features(torch.ones(4, 3))
        >>> len(features), features[1:].activations.shape
        (4, torch.Size([3, 3]))
    """

    activations: Tensor  # [N, p]
    residual: Tensor | None = None  # [N, d]

    def __post_init__(self) -> None:
        object.__setattr__(self, "activations", _finite_matrix(self.activations, "activations", "[N, p]"))
        if self.residual is None:
            return
        object.__setattr__(self, "residual", _finite_matrix(self.residual, "residual", "[N, d]"))
        if len(self.residual) != len(self.activations):
            raise BayesVLMError(
                f"Features have {len(self.activations)} rows of activations but {len(self.residual)} of residual; "
                "both describe the same N inputs and must have equally many rows."
            )

    def __len__(self) -> int:
        return int(self.activations.shape[0])

    def __getitem__(self, index: Index) -> Features:
        """The chosen rows, still two-dimensional: an integer gives Features of length one."""
        rows = row_index(index, len(self), self.activations.device)
        return Features(self.activations[rows], None if self.residual is None else self.residual[rows])

    def to(self, *args: Any, **kwargs: Any) -> Features:
        """Move or cast, as `torch.Tensor.to`."""
        residual = None if self.residual is None else self.residual.to(*args, **kwargs)
        return Features(self.activations.to(*args, **kwargs), residual)

    def pooled(self, group: Tensor, count: int) -> Features:  # [N] -> [count]
        """The mean of the rows of each group: prompts that stand for one class, as one.

        A projection is linear, so the embedding of the mean is the mean of the embeddings.

        Args:
            group: which of the `count` groups each row belongs to, [N].
        """
        group = group.to(self.activations.device)
        sizes = torch.bincount(group, minlength=count)
        if len(sizes) > count or not bool(sizes.all()):
            raise BayesVLMError(f"The rows belong to groups of sizes {sizes.tolist()}; {count} are needed, none empty.")

        def mean(rows: Tensor) -> Tensor:
            return rows.new_zeros(count, rows.shape[1]).index_add_(0, group, rows) / sizes[:, None]

        return Features(mean(self.activations), None if self.residual is None else mean(self.residual))

    @staticmethod
    def concatenate(parts: Sequence[Features]) -> Features:
        """Stack batches of features of the same tower."""
        if not parts:
            raise BayesVLMError("There are no features to concatenate: the input was empty.")
        residuals = [part.residual for part in parts if part.residual is not None]
        if residuals and len(residuals) != len(parts):
            raise BayesVLMError(
                f"{len(residuals)} of {len(parts)} batches of features carry a residual; either all or none must."
            )
        widths = sorted({int(part.activations.shape[1]) for part in parts})
        if len(widths) > 1:
            raise BayesVLMError(f"The features are {widths} wide; only features of one tower can be concatenated.")
        return Features(torch.cat([part.activations for part in parts]), torch.cat(residuals) if residuals else None)


def row_index(index: Index, count: int, device: torch.device) -> slice | Tensor:
    """Any way of choosing rows (integer, slice, list, mask, array) as one that keeps two dimensions."""
    if isinstance(index, slice):
        return index
    if not isinstance(index, Sequence) and not (isinstance(index, Tensor | np.ndarray) and index.ndim):
        row = operator.index(index)  # int, numpy integer, tensor without dimensions
        if not -count <= row < count:
            raise IndexError(f"row {row} of {count}")  # what iteration expects
        return slice(row, row + 1 or None)
    return torch.as_tensor(index if len(index) else torch.empty(0, dtype=torch.long), device=device)


def _finite_matrix(value: Any, name: str, shape: str) -> Tensor:
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = f"{type(value).__name__}: {error}".splitlines()[0]
        raise BayesVLMError(f"{name} must be a floating-point matrix {shape}, got something else ({reason}).") from None
    if tensor.ndim != 2 or not tensor.is_floating_point():
        raise BayesVLMError(
            f"{name} must be a floating-point matrix {shape}, got {tensor.dtype} of shape {list(tensor.shape)}."
        )
    finite = torch.isfinite(tensor).all(dim=1)
    if not bool(finite.all()):
        rows = torch.nonzero(~finite).flatten().tolist()
        shown = ", ".join(map(str, rows[:10])) + (", ..." if len(rows) > 10 else "")
        raise BayesVLMError(
            f"{name} hold NaN or Inf in {len(rows)} of {len(tensor)} rows ({shown}); "
            "check those inputs, or run the encoder in a wider dtype than the one that overflowed."
        )
    return tensor
