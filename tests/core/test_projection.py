"""Projection: g = W phi + b + r, with the bias as one more input."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.features import Features
from bayesvlm.core.projection import Projection

from .references import assert_close, normal

WEIGHT, BIAS = normal(4, 3, seed=0), normal(4, seed=1)
PHI, RESIDUAL = normal(5, 3, seed=2), normal(5, 4, seed=3)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("residual", [False, True])
def test_embed_is_the_affine_map(bias: bool, residual: bool) -> None:
    projection = Projection(WEIGHT, BIAS if bias else None)
    expected = torch.stack([WEIGHT @ phi for phi in PHI]) + (BIAS if bias else 0) + (RESIDUAL if residual else 0)
    assert_close(projection.embed(Features(PHI, RESIDUAL if residual else None)), expected, 1e-14)


def test_a_bias_is_one_more_input() -> None:
    projection = Projection(WEIGHT, BIAS)
    assert (projection.embedding_width, projection.activation_width, projection.input_width) == (4, 3, 4)
    assert torch.equal(projection.inputs(Features(PHI)), torch.cat([PHI, torch.ones(5, 1).double()], dim=1))
    assert torch.equal(projection.augmented, torch.cat([WEIGHT, BIAS[:, None]], dim=1))
    assert projection.norm_squared == pytest.approx(float(WEIGHT.square().sum() + BIAS.square().sum()), rel=1e-14)
    plain = Projection(WEIGHT)
    assert plain.input_width == 3
    assert torch.equal(plain.inputs(Features(PHI)), PHI)
    assert torch.equal(plain.augmented, WEIGHT)
    assert plain.norm_squared == pytest.approx(float(WEIGHT.square().sum()), rel=1e-14)


def test_dtypes_meet_in_the_weights() -> None:
    assert Projection(WEIGHT.half()).weight.dtype == torch.float32
    assert Projection(WEIGHT.bfloat16(), BIAS).augmented.dtype == torch.float32
    assert Projection(WEIGHT).weight.dtype == torch.float64
    single = Projection(WEIGHT.float(), BIAS.float())
    assert single.embed(Features(PHI.half(), RESIDUAL.half())).dtype == torch.float32
    assert single.embed(Features(PHI, RESIDUAL)).dtype == torch.float32
    assert Projection(WEIGHT).embed(Features(PHI.float())).dtype == torch.float64


def test_parameters_of_a_module_bring_no_graph() -> None:
    layer = torch.nn.Linear(3, 4)
    projection = Projection(layer.weight, layer.bias)
    assert not projection.embed(Features(PHI.float())).requires_grad
    assert_close(projection.embed(Features(PHI.float())), layer(PHI.float()), 1e-6)


def test_wrong_widths_are_refused() -> None:
    projection = Projection(WEIGHT, BIAS)
    with pytest.raises(BayesVLMError, match="activations are 4 wide but this tower's projection takes 3"):
        projection.embed(Features(normal(2, 4, seed=4)))
    with pytest.raises(BayesVLMError, match="residual is 3 wide but the embedding 4"):
        projection.embed(Features(PHI, PHI))
    with pytest.raises(BayesVLMError, match="bias has 3 entries"):
        Projection(WEIGHT, BIAS[:3])


def test_a_residual_that_is_needed_or_unwanted() -> None:
    with pytest.raises(BayesVLMError, match="carry none"):
        Projection(WEIGHT, residual=True).embed(Features(PHI))
    with pytest.raises(BayesVLMError, match="adds none"):
        Projection(WEIGHT, residual=False).embed(Features(PHI, RESIDUAL))
    both = Projection(WEIGHT)
    assert_close(both.embed(Features(PHI, RESIDUAL)) - both.embed(Features(PHI)), RESIDUAL, 1e-14)


@pytest.mark.parametrize(
    "bad",
    [WEIGHT[0], WEIGHT[None], WEIGHT.long(), WEIGHT[:0], WEIGHT[:, :0], WEIGHT * float("nan"), WEIGHT * float("inf")],
    ids=["vector", "cube", "integers", "no rows", "no columns", "nan", "inf"],
)
def test_weights_are_checked(bad: Any) -> None:
    with pytest.raises(BayesVLMError, match="projection weight"):
        Projection(bad)


@pytest.mark.parametrize("bad", [BIAS[:, None], BIAS.long(), BIAS * float("nan")], ids=["matrix", "integers", "nan"])
def test_biases_are_checked(bad: Any) -> None:
    with pytest.raises(BayesVLMError, match="projection bias"):
        Projection(WEIGHT, bad)


def test_no_inputs_give_no_embeddings() -> None:
    assert Projection(WEIGHT, BIAS).embed(Features(torch.empty(0, 3))).shape == (0, 4)
