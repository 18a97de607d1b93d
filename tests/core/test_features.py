"""Features: what is refused, and how rows are taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features

from .references import normal


def features(rows: int = 5, residual: bool = True) -> Features:
    """Random features with or without a residual."""
    return Features(normal(rows, 3, seed=0), normal(rows, 2, seed=1) if residual else None)


@pytest.mark.parametrize(
    ("index", "rows"),
    [
        (0, [0]),
        (3, [3]),
        (-1, [4]),
        (-5, [0]),
        (slice(1, 3), [1, 2]),
        (slice(None, None, 2), [0, 2, 4]),
        (slice(3, 3), []),
        ([4, 0, 4], [4, 0, 4]),
        ((1, -1), [1, 4]),
        ([], []),
        (range(2), [0, 1]),
        (torch.tensor([2, 1]), [2, 1]),
        (torch.tensor([], dtype=torch.long), []),
        (torch.tensor([True, False, False, True, False]), [0, 3]),
        ([True, False, False, True, False], [0, 3]),
        (np.array([3, 3]), [3, 3]),
        (np.array([False, True, False, False, False]), [1]),
        (np.int64(2), [2]),
        (torch.tensor(2), [2]),
        (torch.tensor(-1), [4]),
        ((np.array([3, 1]), ...), [3, 1]),  # as scikit-learn slices what has a shape
        ((slice(1, 3), ...), [1, 2]),
    ],
    ids=repr,
)
def test_indexing_keeps_two_dimensions(index: Any, rows: list[int]) -> None:
    whole = features()
    chosen = whole[index]
    assert chosen.residual is not None
    assert whole.residual is not None
    assert torch.equal(chosen.activations, whole.activations[torch.tensor(rows, dtype=torch.long)])
    assert torch.equal(chosen.residual, whole.residual[torch.tensor(rows, dtype=torch.long)])
    assert len(chosen) == len(rows)
    assert chosen.shape == (len(rows), 3)


def test_rows_out_of_range_are_refused_and_iteration_ends() -> None:
    whole: Any = features(3, residual=False)  # iterable by its __getitem__
    for index in (3, -4, [3]):
        with pytest.raises(IndexError):
            whole[index]
    assert [len(row) for row in whole] == [1, 1, 1]
    assert torch.equal(torch.cat([row.activations for row in whole]), whole.activations)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_rows_that_are_not_finite_are_named(value: float) -> None:
    activations, residual = normal(6, 3, seed=2), normal(6, 2, seed=3)
    broken = activations.clone()
    broken[[1, 4], 2] = value
    with pytest.raises(BayesVLMError, match=r"activations.*2 of 6 rows \(1, 4\)"):
        Features(broken)
    broken_residual = residual.clone()
    broken_residual[3] = value
    with pytest.raises(BayesVLMError, match=r"residual.*1 of 6 rows \(3\)"):
        Features(activations, broken_residual)


def test_a_long_list_of_bad_rows_is_cut() -> None:
    with pytest.raises(BayesVLMError, match=r"40 of 40 rows \(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, \.\.\.\)"):
        Features(torch.full((40, 2), float("nan")))


@pytest.mark.parametrize(
    "bad",
    [
        torch.ones(3),
        torch.ones(2, 3, 4),
        torch.ones(2, 3, dtype=torch.int64),
        torch.ones(2, 3, dtype=torch.bool),
        torch.ones(2, 3, dtype=torch.complex64),
        np.ones((2, 3), dtype=np.int32),
        [[1, 2], [3, 4]],
        3.0,
    ],
    ids=lambda bad: f"{type(bad).__name__}",
)
def test_only_floating_point_matrices(bad: Any) -> None:
    with pytest.raises(BayesVLMError, match=r"activations must be a floating-point matrix \[N, p\]"):
        Features(bad)
    with pytest.raises(BayesVLMError, match=r"residual must be a floating-point matrix \[N, d\]"):
        Features(torch.ones(2, 3), bad)


@pytest.mark.parametrize("bad", [[[1.0, 2.0], [3.0]], "abc", None], ids=["ragged", "text", "None"])
def test_what_is_no_array_is_refused_in_words(bad: Any) -> None:
    with pytest.raises(BayesVLMError, match="activations"):
        Features(bad)


def test_arrays_and_lists_are_converted() -> None:
    array: Any = np.arange(6, dtype=np.float32).reshape(2, 3)
    listed: Any = [[1.0, 2.0]]
    wide: Any = np.ones((2, 3))
    assert torch.equal(Features(array).activations, torch.from_numpy(array))
    assert Features(listed).activations.shape == (1, 2)
    assert Features(wide).activations.dtype == torch.float64
    assert Features(torch.ones(2, 3, dtype=torch.float16)).activations.dtype == torch.float16
    assert len(Features(torch.empty(0, 3))) == 0


def test_residual_must_have_as_many_rows() -> None:
    with pytest.raises(BayesVLMError, match="3 rows of activations but 2 of residual"):
        Features(torch.ones(3, 4), torch.ones(2, 5))


def test_concatenate() -> None:
    whole = features(7)
    parts = [whole[:2], whole[2:2], whole[2:]]
    joined = Features.concatenate(parts)
    assert joined.residual is not None
    assert whole.residual is not None
    assert torch.equal(joined.activations, whole.activations)
    assert torch.equal(joined.residual, whole.residual)
    assert Features.concatenate([features(3, residual=False)]).residual is None


def test_concatenate_refuses_what_does_not_fit() -> None:
    with pytest.raises(BayesVLMError, match="empty"):
        Features.concatenate([])
    with pytest.raises(BayesVLMError, match="1 of 2 batches"):
        Features.concatenate([features(2), features(2, residual=False)])
    with pytest.raises(BayesVLMError):
        Features.concatenate([Features(torch.ones(2, 3)), Features(torch.ones(2, 4))])


def test_to_casts_both_and_checks_again() -> None:
    cast = features().to(torch.float16)
    assert cast.residual is not None
    assert cast.activations.dtype == cast.residual.dtype == torch.float16
    with pytest.raises(BayesVLMError, match="NaN or Inf"):
        Features(torch.full((1, 2), 1e6)).to(torch.float16)


@pytest.mark.parametrize("residual", [True, False])
def test_prompts_of_a_class_become_their_mean(residual: bool) -> None:
    given = features(5, residual)
    pooled = given.pooled(torch.tensor([1, 0, 1, 1, 0]), 2)
    assert torch.allclose(pooled.activations[0], given.activations[[1, 4]].mean(dim=0))
    assert torch.allclose(pooled.activations[1], given.activations[[0, 2, 3]].mean(dim=0))
    if residual:
        assert torch.allclose(pooled.residual[1], given.residual[[0, 2, 3]].mean(dim=0))
    else:
        assert pooled.residual is None
    with pytest.raises(BayesVLMError, match=r"groups have \[2, 3, 0\] rows; expected 3 groups, none of them empty"):
        given.pooled(torch.tensor([1, 0, 1, 1, 0]), 3)
    with pytest.raises(BayesVLMError, match="expected 1 groups"):
        given.pooled(torch.tensor([1, 0, 1, 1, 0]), 1)


def test_a_log_variance_goes_with_its_row() -> None:
    given = Features(normal(4, 3, seed=0), log_variance=normal(4, 3, seed=1))
    assert torch.equal(given[[2, 0]].log_variance, given.log_variance[[2, 0]])
    both = Features.concatenate([given[:2], given[2:]])
    assert torch.equal(both.log_variance, given.log_variance)
    assert given.to(torch.float32).log_variance.dtype == torch.float32
    with pytest.raises(BayesVLMError, match="1 of 2 batches of features carry a log_variance"):
        Features.concatenate([given, Features(normal(4, 3, seed=0))])
    with pytest.raises(BayesVLMError, match="4 rows of activations but 3 of log_variance"):
        Features(normal(4, 3, seed=0), log_variance=normal(3, 3, seed=1))
    with pytest.raises(BayesVLMError, match="give one prompt per class"):
        given.pooled(torch.tensor([0, 0, 1, 1]), 2)
