"""Labels of images that may carry several, in every form they come in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from bayesvlm import BayesVLMError
from bayesvlm.safety.labels import multi_hot

NAMES = ("cat", "dog", "bird")
MATRIX = torch.tensor([[True, True, False], [False, False, False], [False, False, True]])
FORMS: dict[str, Any] = {
    "names": [["cat", "dog"], [], ["bird"]],
    "tuples and sets": [("dog", "cat"), (), {"bird"}],
    "indices": [[0, 1], [], [2]],
    "tensors of indices": [torch.tensor([0, 1]), torch.tensor([], dtype=torch.long), np.array([2])],
    "a name among lists": [["cat", "dog"], [], "bird"],
    "bool tensor": MATRIX,
    "int tensor": MATRIX.int(),
    "float array": MATRIX.numpy().astype(float),
    "rows of bools": MATRIX.tolist(),
    "frame": pd.DataFrame(MATRIX.numpy(), columns=list(NAMES)),
    "column of lists": pd.Series([["cat", "dog"], [], ["bird"]]),
}


@pytest.mark.parametrize("form", FORMS)
def test_forms(form: str) -> None:
    assert torch.equal(multi_hot(FORMS[form], NAMES, 3, 3), MATRIX)


@pytest.mark.parametrize("labels", [[2, 0], ["bird", "cat"], np.array([2, 0]), np.array(["bird", "cat"])])
def test_one_label_of_each_image(labels: Any) -> None:
    assert multi_hot(labels, NAMES, 2, 3).tolist() == [[False, False, True], [True, False, False]]


REFUSED: dict[str, tuple[Any, str]] = {
    "matrix of another shape": (torch.zeros(3, 2), r"matrix of labels is \[3, 2\].*must be \[3, 3\]"),
    "matrix of scores": (np.full((3, 3), 0.5), "must hold 0 and 1 only"),
    "matrix of words": (np.array([["a", "b", "c"]] * 3), "must hold 0 and 1"),
    "frame of other columns": (pd.DataFrame(MATRIX.numpy(), columns=["dog", "cat", "bird"]), "in their order"),
    "too few": ([["cat"], []], "3 inputs and labels of 2"),
    "too few single ones": (["cat", "dog"], "3 inputs and 2 labels"),
    "unknown name": ([["cat"], ["cow"], []], r"labels\[1\] has 'cow'.*spell them alike"),
    "unknown single name": (["cat", "cow", "dog"], r"Labels \['cow'\]"),
    "index too large": ([[0], [3], []], r"labels\[1\] has 3.*0 to 2"),
    "index below": ([[0], [-1], []], r"labels\[1\] has -1"),
    "fraction": ([[0], [0.5], []], r"labels\[1\] has '0.5', a float"),
    "ambiguous": ([[0, 1, 0], [1, 0, 0], [0, 0, 1]], r"numpy.array\(labels\)"),
    "text": ("cat", "a str"),
    "nothing": (None, "a NoneType"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_refuses(case: str) -> None:
    labels, message = REFUSED[case]
    with pytest.raises(BayesVLMError, match=message):
        multi_hot(labels, NAMES, 3, 3)


def test_names_need_class_names() -> None:
    with pytest.raises(BayesVLMError, match="classes are Features"):
        multi_hot([["cat"]], None, 1, 3)


def test_numbers_without_axes() -> None:
    expected = multi_hot([2, 0], NAMES, 2, 3)
    for make in (torch.tensor, np.array):
        assert torch.equal(multi_hot([make(2), make(0)], NAMES, 2, 3), expected)
        assert torch.equal(multi_hot([make(2), [0]], NAMES, 2, 3), expected)


@pytest.mark.parametrize("labels", [[None, None], [0, None], [1, "cat"], [object(), 1]])
def test_what_is_no_label(labels: list[Any]) -> None:
    with pytest.raises(BayesVLMError, match=r"labels\[[01]\] is '.*; give every input one label"):
        multi_hot(labels, NAMES, 2, 3)
