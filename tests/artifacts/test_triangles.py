"""Symmetric matrices as their upper triangles."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bayesvlm import BayesVLMError
from bayesvlm.artifacts.triangles import packed, unpacked


@pytest.mark.parametrize("size", [1, 2, 3, 64, 257])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_there_and_back_to_the_bit(size: int, dtype: torch.dtype) -> None:
    square = torch.randn(size, size, generator=torch.Generator().manual_seed(size), dtype=dtype)
    matrix = (square + square.T) / 2
    triangle = packed(matrix)
    assert np.array_equal(triangle.numpy(), matrix.numpy()[np.triu_indices(size)]), "numpy's order: row after row"
    assert torch.equal(unpacked(triangle, "A"), matrix)


@pytest.mark.parametrize("shape", [(0,), (2,), (4,), (27,), (3, 1), ()])
def test_what_is_no_triangle(shape: tuple[int, ...]) -> None:
    with pytest.raises(BayesVLMError, match=r"Factor B has shape \[.*\]; expected the upper triangle"):
        unpacked(torch.ones(shape), "B")
