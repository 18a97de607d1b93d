"""What a tower hands to the Bayesian layer: the activations entering its last projection."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from types import EllipsisType
from typing import Any, SupportsIndex

import numpy as np
import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.finite import finite_matrix
from bayesvlm.core.printing import described

_BESIDE = {"residual": "[N, d]", "log_variance": "[N, d]", "constant": "[N, 1]"}
"""What may come with activations, by name, and its shape."""

Index = SupportsIndex | slice | Sequence[int] | Tensor | np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Features:
    """Activations `phi` entering a tower's last linear layer, and what comes with them.

    Always two-dimensional and finite: the constructor refuses anything else, naming the rows.

    Args:
        activations: [N, p], floating point; numpy arrays and nested lists are converted.
        residual: [N, d], added after the layer (SigLIP images), or None.
        log_variance: [N, d], of models that predict one (ProLIP, PCME++), whose activations are the means; or None.
        constant: [N, 1], of an average (`bayesvlm.core.ensemble`): what became of the 1 that goes with a bias; None: 1.

    Example:
        >>> features = Features(torch.ones(4, 3))
        >>> len(features), features[1:].activations.shape
        (4, torch.Size([3, 3]))
    """

    activations: Tensor  # [N, p]
    residual: Tensor | None = None  # [N, d]
    log_variance: Tensor | None = None  # [N, d]
    constant: Tensor | None = None  # [N, 1]

    __repr__ = described

    def __post_init__(self) -> None:
        object.__setattr__(self, "activations", finite_matrix(self.activations, "activations", "[N, p]"))
        for name, shape in _BESIDE.items():
            given = getattr(self, name)
            if given is None:
                continue
            object.__setattr__(self, name, matrix := finite_matrix(given, name, shape))
            if len(matrix) != len(self.activations):
                raise BayesVLMError(
                    f"Features have {len(self.activations)} rows of activations but {len(matrix)} of {name}; "
                    "both describe the same N inputs and must have equally many rows."
                )

    def __getstate__(self) -> dict[str, Any]:
        """A pickle holds these rows only, not all those that they are a view of."""
        return {name: value if value is None else _own(value) for name, value in self.__dict__.items()}

    def tensors(self) -> dict[str, Tensor]:
        """What there is, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if value is not None}

    def each(self, change: Callable[[Tensor], Tensor]) -> Features:
        """The same change to everything."""
        return Features(**{name: change(value) for name, value in self.tensors().items()})

    def scaled(self, factors: Tensor) -> Features:  # [N]
        """Inputs whose embeddings are so many times as long, in the same direction."""
        factors = factors.to(self.activations)[:, None]
        ones = self.activations.new_ones(len(self), 1)
        return Features(
            self.activations * factors,
            None if self.residual is None else self.residual * factors.to(self.residual),
            None if self.log_variance is None else self.log_variance + 2 * factors.log().to(self.log_variance),
            (ones if self.constant is None else self.constant) * factors,
        )

    def __len__(self) -> int:
        return int(self.activations.shape[0])

    @property
    def shape(self) -> tuple[int, int]:
        """Of the activations: with it, scikit-learn takes rows in one go."""
        return len(self), int(self.activations.shape[1])

    def __getitem__(self, index: Index | tuple[Index, EllipsisType]) -> Features:
        """The chosen rows, still two-dimensional: an integer gives Features of length one.

        `features[rows, ...]`, as scikit-learn slices, is `features[rows]`.
        """
        if isinstance(index, tuple) and len(index) == 2 and index[1] is Ellipsis:
            index = index[0]
        rows = row_index(index, len(self), self.activations.device)
        return self.each(lambda value: value[rows])

    def to(self, *args: Any, **kwargs: Any) -> Features:
        """Move or cast, as `torch.Tensor.to`."""
        return self.each(lambda value: value.to(*args, **kwargs))

    def pooled(self, group: Tensor, count: int) -> Features:  # [N] -> [count]
        """The mean of the rows of each group: prompts that stand for one class, as one.

        A projection is linear, so the embedding of the mean is the mean of the embeddings.

        Args:
            group: which of the `count` groups each row belongs to, [N].
        """
        group = group.to(self.activations.device)
        sizes = torch.bincount(group, minlength=count)
        if len(sizes) > count or not bool(sizes.all()):
            raise BayesVLMError(f"The groups have {sizes.tolist()} rows; expected {count} groups, none of them empty.")

        def mean(rows: Tensor) -> Tensor:
            return rows.new_zeros(count, rows.shape[1]).index_add_(0, group, rows) / sizes[:, None]

        if self.log_variance is not None:
            raise BayesVLMError("Features that carry variances cannot be averaged; give one prompt per class.")
        return self.each(mean)

    @staticmethod
    def concatenate(parts: Sequence[Features]) -> Features:
        """Stack batches of features of the same tower."""
        if not parts:
            raise BayesVLMError("There are no features to concatenate: the input was empty.")
        tensors = [part.tensors() for part in parts]
        if any("constant" in each for each in tensors):
            tensors = [{"constant": torch.ones_like(each["activations"][:, :1])} | each for each in tensors]
        for name in _BESIDE:
            have = sum(name in each for each in tensors)
            if 0 < have < len(parts):
                raise BayesVLMError(
                    f"{have} of {len(parts)} batches of features carry a {name}; either all or none must."
                )
        widths = sorted({int(part.activations.shape[1]) for part in parts})
        if len(widths) > 1:
            raise BayesVLMError(f"The features are {widths} wide; only features of one tower can be concatenated.")
        return Features(**{name: torch.cat([each[name] for each in tensors]) for name in tensors[0]})


def row_index(index: Index, count: int, device: torch.device) -> slice | Tensor:
    """Any way of choosing rows (integer, slice, list, mask, array) as one that keeps two dimensions."""
    if isinstance(index, slice):
        return index if (index.step or 1) > 0 else torch.tensor(range(count)[index], dtype=torch.long, device=device)
    if not isinstance(index, Sequence) and not (isinstance(index, Tensor | np.ndarray) and index.ndim):
        row = operator.index(index)  # int, numpy integer, tensor without dimensions
        if not -count <= row < count:
            raise IndexError(f"row {row} of {count}")  # what iteration expects
        return slice(row, row + 1 or None)
    rows = torch.as_tensor(index if len(index) else torch.empty(0, dtype=torch.long), device=device)
    if rows.dtype == torch.bool and rows.shape != (count,):
        raise BayesVLMError(
            f"The mask has shape {list(rows.shape)}, but there are {count} rows; it needs one entry per row."
        )
    return rows


def _own(tensor: Tensor) -> Tensor:
    """The tensor with a storage of its own size."""
    return tensor.clone() if tensor.untyped_storage().nbytes() > tensor.nbytes else tensor
