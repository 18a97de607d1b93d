"""Symmetric matrices on disk: the upper triangle row by row, which is every number once and half of the bytes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bayesvlm.core.errors import BayesVLMError


def packed(matrix: Tensor) -> Tensor:  # [m, m] -> [m (m + 1) / 2]
    """The entries on and above the diagonal of a symmetric matrix, row after row; nothing is rounded.

    Example:
        >>> packed(torch.tensor([[1.0, 2.0], [2.0, 3.0]]))
        tensor([1., 2., 3.])
    """
    rows, columns = torch.triu_indices(*matrix.shape, device=matrix.device)
    return matrix[rows, columns]


def unpacked(triangle: Tensor, name: str) -> Tensor:  # [m (m + 1) / 2] -> [m, m]
    """The symmetric matrix whose upper triangle this is.

    Args:
        triangle: as `packed` gives it.
        name: of the matrix, to begin a refusal with.

    Raises:
        BayesVLMError: where no square matrix has a triangle of so many numbers.
    """
    size = (math.isqrt(8 * triangle.numel() + 1) - 1) // 2
    if triangle.ndim != 1 or size == 0 or size * (size + 1) // 2 != triangle.numel():
        raise BayesVLMError(
            f"Factor {name} has shape {list(triangle.shape)}; expected the upper triangle of a square matrix, which "
            "is one row of 1, 3, 6, 10, ... numbers."
        )
    rows, columns = torch.triu_indices(size, size, device=triangle.device)
    matrix = triangle.new_empty(size, size)
    matrix[rows, columns] = triangle
    matrix[columns, rows] = triangle
    return matrix
