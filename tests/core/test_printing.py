"""What objects print: a line or a few, whatever their size."""

from __future__ import annotations

import torch

from bayesvlm.core.cosine import PairProduct
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.core.features import Features
from bayesvlm.core.printing import brief


def test_values_are_shown_by_what_they_are() -> None:
    assert brief(torch.zeros(5000, 3)) == "float32 [5000, 3]"
    assert brief(list(range(9))) == "[0, 1, 2, ... 9 in all]"
    assert brief({"a": torch.zeros(2), "b": b"0123"}) == "{'a': float32 [2], 'b': 4 bytes}"
    assert brief(("x" * 100,)) == f"['{'x' * 60}'...]"
    assert brief(None) == "None"
    assert brief(dict.fromkeys(range(5))) == "{0: None, 1: None, 2: None, ... 5 in all}"


def test_holders_of_tensors_name_their_fields() -> None:
    assert repr(Features(torch.zeros(5000, 3))) == (
        "Features(activations=float32 [5000, 3], residual=None, log_variance=None, constant=None)"
    )
    factors = KroneckerFactors(torch.eye(3), torch.eye(2), 7)
    assert repr(factors) == "KroneckerFactors(A_sum=float64 [3, 3], B_sum=float64 [2, 2], n=7)"
    assert repr(factors.A_spectrum) == "Spectrum(values=float64 [3], vectors=float64 [3, 3])"
    assert (
        repr(PairProduct(torch.zeros(4, 2), torch.zeros(3, 2)))
        == "PairProduct(left=float32 [4, 2], right=float32 [3, 2])"
    )
