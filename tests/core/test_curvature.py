"""The collapsed curvature sums against per-sample differentiation, Decimal arithmetic and each other."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bayesvlm.core.contrast import ContrastBatch
from bayesvlm.core.curvature import infonce_curvature, sigmoid_curvature
from bayesvlm.core.errors import BayesVLMError

from .references import (
    assert_close,
    autograd_ggn,
    contrastive_batch,
    decimal_infonce,
    normal,
    relative_error,
    shifted_ggn,
    textbook_ggn,
    unit,
)

SHAPES = [(6, 6, 4), (5, 9, 4), (9, 5, 4), (4, 7, 1), (3, 1, 4), (1, 1, 3), (1, 8, 5), (7, 2, 3), (4, 4, 2)]  # N, K, d
LOSSES = ["infonce", "sigmoid"]
TINY = 700  # bytes: one or two targets a tile, so that every path with several tiles is taken


def curvature(loss: str, source: Tensor, target: Tensor, scale: float, bias: float = -1.0, **options: object) -> Tensor:
    """Either curvature through one call."""
    if loss == "infonce":
        return infonce_curvature(source, target, scale, **options)  # type: ignore[arg-type]
    return sigmoid_curvature(source, target, scale, bias, **options)  # type: ignore[arg-type]


def batch(rows: int, targets: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Random raw embeddings in float64, of varied lengths."""
    return normal(rows, width, seed=seed) * 3, normal(targets, width, seed=seed + 1)


# ------------------------------------------------------------------------------------------- against differentiation


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 14.0])
def test_equals_the_per_sample_autograd_ggn(loss: str, shape: tuple[int, int, int], scale: float) -> None:
    source, target = batch(*shape)
    expected = autograd_ggn(source, target, scale, -1.0, loss).sum(dim=0)
    actual = curvature(loss, source, target, scale)
    if shape[2] == 1 or (loss == "infonce" and shape[1] == 1):  # nothing to turn, nothing to choose: zero
        assert float(actual.abs().max()) <= 1e-12 * scale**2
        assert float(expected.abs().max()) <= 1e-12 * scale**2
    else:
        assert_close(actual, expected, 1e-10)


@pytest.mark.parametrize("loss", LOSSES)
def test_duplicates_on_both_sides(loss: str) -> None:
    source, target = batch(6, 4, 5, seed=20)
    source, target = torch.cat([source, source[:3], source[:1]]), torch.cat([target, target, target[1:2]])
    expected = autograd_ggn(source, target, 9.0, -1.0, loss).sum(dim=0)
    assert_close(curvature(loss, source, target, 9.0), expected, 1e-10)
    assert_close(curvature(loss, source, target, 9.0, memory=TINY), expected, 1e-10)


def test_all_targets_alike_carry_no_infonce_curvature() -> None:
    source, target = batch(6, 1, 5, seed=21)
    assert float(infonce_curvature(source, target.expand(7, 5), 9.0).abs().max()) <= 1e-12


@pytest.mark.parametrize("label", [0, 3])
def test_the_label_does_not_matter(label: int) -> None:
    """Gauss-Newton curvature of both losses is even in the labels: differentiation with any label agrees."""
    source, target = batch(5, 6, 4, seed=22)
    labels = torch.full((5,), label)
    for loss in LOSSES:
        expected = autograd_ggn(source, target, 6.0, -1.0, loss, labels).sum(dim=0)
        assert_close(curvature(loss, source, target, 6.0), expected, 1e-10, loss)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("shape", [(17, 23, 6), (23, 23, 6), (40, 3, 2)], ids=str)
@pytest.mark.parametrize("memory", [0, TINY, 4_000, 20_000])
def test_tiles_do_not_change_the_result(loss: str, shape: tuple[int, int, int], memory: int) -> None:
    source, target = batch(*shape, seed=2)
    whole = curvature(loss, source, target, 20.0)
    assert_close(curvature(loss, source, target, 20.0, memory=memory), whole, 1e-12)


def test_tiles_do_not_change_a_saturated_result() -> None:
    source, target = contrastive_batch(30, 50, 64, match=0.8, seed=3, spread=0.09)
    expected = shifted_ggn(source, target, 100.0)
    assert_close(infonce_curvature(source, target, 100.0, memory=20_000), expected, 1e-10)


def test_ties_for_the_most_probable_target_across_tiles() -> None:
    source, target = batch(4, 5, 3, seed=23)
    target = torch.cat([target, source, target, source])  # the best target of every row twice, in different tiles
    expected = autograd_ggn(source, target, 30.0).sum(dim=0)
    assert_close(infonce_curvature(source, target, 30.0, memory=TINY), expected, 1e-10)


# ------------------------------------------------------------------------------------------------------- saturation


def test_shifted_reference_and_source_agree_with_decimal_arithmetic() -> None:
    """Sixty digits, from the definition: justifies `shifted_ggn`, and checks the source where the answer is 2e-30."""
    target = torch.cat([torch.eye(3, dtype=torch.float64), -torch.ones(1, 3, dtype=torch.float64)])
    target = target + 0.1 * normal(4, 3, seed=30)
    source = target[:2] * 5 + 0.1 * normal(2, 3, seed=31)
    for scale in (1.0, 30.0, 100.0):
        exact = decimal_infonce(source, target, scale)
        assert_close(shifted_ggn(source, target, scale), exact, 1e-12, f"reference at t={scale}")
        assert_close(infonce_curvature(source, target, scale), exact, 1e-12, f"source at t={scale}")
    assert relative_error(textbook_ggn(source, target, 100.0), decimal_infonce(source, target, 100.0)) > 1e-1


def test_float32_at_clip_like_cosines() -> None:
    """d=128, K=1024, match 0.30, rest 0.12 +- 0.04, t=100: measured 6e-7."""
    source, target = (rows.float() for rows in contrastive_batch(1024, 1024, 128, match=0.30, seed=0))
    expected = shifted_ggn(source, target, 100.0)
    assert_close(infonce_curvature(source, target, 100.0), expected, 1e-5)
    assert_close(infonce_curvature(source, target, 100.0, memory=2**20), expected, 1e-5, "in tiles")


@pytest.mark.parametrize("scale", [10.0, 100.0])
def test_float32_sigmoid_at_siglip_like_cosines(scale: float) -> None:
    source, target = (rows.float() for rows in contrastive_batch(64, 64, 24, match=0.30, seed=4, spread=0.1))
    expected = sigmoid_curvature(source.double(), target.double(), scale, -10.0)
    reference = autograd_ggn(source[:8], target, scale, -10.0, "sigmoid").sum(dim=0)
    assert_close(sigmoid_curvature(source[:8].double(), target.double(), scale, -10.0), reference, 1e-10)
    assert_close(sigmoid_curvature(source, target, scale, -10.0), expected, 1e-5)


@pytest.mark.parametrize("wrong", [False, True], ids=["right", "wrong"])
def test_float32_saturated_keeps_its_digits_where_the_textbook_form_loses_them(wrong: bool) -> None:
    """Match near 0.7: e_i is about 1e-15. Measured 9e-6; the textbook form is 20 times the answer off."""
    source, target = (rows.float() for rows in contrastive_batch(256, 1024, 128, match=0.70, seed=0, spread=0.078))
    positives = torch.arange(256).roll(1) if wrong else torch.arange(256)
    pi = torch.softmax(100 * unit(source) @ unit(target).T, dim=1)
    assert float(pi[:, :256].diagonal().median()) > 1 - 1e-12
    expected = shifted_ggn(source, target, 100.0)
    assert_close(infonce_curvature(source, target, 100.0, positives), expected, 1e-3)
    assert_close(infonce_curvature(source, target, 100.0, positives, memory=2**20), expected, 1e-3, "in tiles")
    assert relative_error(textbook_ggn(source, target, 100.0), expected) > 1e-1


def test_float32_saturated_on_a_target_that_is_not_the_match() -> None:
    """Rows pulled hard to somebody else's target: the anchor, not the positive, is what must leave the sum."""
    source, target = contrastive_batch(128, 512, 128, match=0.70, seed=5, spread=0.078)
    source, target = source.roll(1, dims=0).float(), target.float()
    expected = shifted_ggn(source, target, 100.0)
    assert_close(infonce_curvature(source, target, 100.0, torch.arange(128)), expected, 1e-3)


@pytest.mark.parametrize("match", [0.3, 0.7, 0.9])
@pytest.mark.parametrize("memory", [512 * 2**20, 40_000])
def test_repeated_targets(match: float, memory: int) -> None:
    """Captions repeat in web data and more so in labelled data: 24 captions, 20 images of each."""
    captions = unit(normal(24, 64, seed=6)).repeat(20, 1).float()
    source = match * captions + math.sqrt(1 - match**2) * unit(normal(480, 64, seed=7)).float()
    expected = shifted_ggn(source, captions, 100.0)
    assert_close(infonce_curvature(source.double(), captions.double(), 100.0, memory=memory), expected, 1e-9, "float64")
    assert_close(infonce_curvature(source, captions, 100.0, memory=memory), expected, 1e-4, "float32")
    rounded = captions * (1 + 1e-7 * normal(480, 64, seed=8).float())  # as encoders in other batches round
    assert_close(infonce_curvature(source, rounded, 100.0, memory=memory), expected, 1e-4, "nearly equal")


def test_copies_of_neighbours_are_told_apart() -> None:
    """Clusters of targets nearer than a cell of the grid, each with copies: every distinct one is found, once."""
    centres = unit(normal(3, 16, seed=10)).double()
    distinct = torch.cat([unit(centres + 1e-4 * normal(3, 16, seed=20 + k)) for k in range(5)])
    targets = distinct.repeat(7, 1)[torch.randperm(105, generator=torch.Generator().manual_seed(0))]
    batch = ContrastBatch(targets, targets, None, 2**20, merged=True)
    assert batch.target_count == 15
    assert batch.log_copies is not None
    assert torch.allclose(batch.log_copies.exp(), torch.full((15,), 7.0).double())


def test_targets_that_all_but_coincide() -> None:
    """A collapsed model: hundreds of distinct targets in one cell must neither take forever nor be merged."""
    targets = unit(unit(normal(1, 16, seed=11)) + 1e-3 * normal(400, 16, seed=12)).double()
    assert ContrastBatch(targets, targets, None, 2**20, merged=True).target_count == 400
    source = unit(normal(30, 16, seed=13)).double()
    assert_close(infonce_curvature(source, targets, 100.0), shifted_ggn(source, targets, 100.0), 1e-9)


def test_targets_that_are_near_but_not_equal_are_kept_apart() -> None:
    captions = unit(normal(24, 64, seed=6)).double()
    targets = torch.cat([captions, unit(captions + 1e-3 * normal(24, 64, seed=9))])
    source = captions + 0.3 * unit(normal(24, 64, seed=7))
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 1e-2)):
        actual = infonce_curvature(source.to(dtype), targets.to(dtype), 100.0)
        assert_close(actual, shifted_ggn(source, targets, 100.0), tolerance)


def test_extreme_temperature() -> None:
    source, target = (rows.float() for rows in contrastive_batch(64, 256, 64, match=0.30, seed=8, spread=0.08))
    expected = shifted_ggn(source, target, 1000.0)
    assert_close(infonce_curvature(source.double(), target.double(), 1000.0), expected, 1e-9, "float64")
    assert_close(infonce_curvature(source, target, 1000.0), expected, 1e-3, "float32")


def test_extreme_temperature_and_saturation() -> None:
    """The answer is 1e-121: float64 has it, float32 cannot and says zero."""
    source, target = (rows.float() for rows in contrastive_batch(64, 256, 64, match=0.70, seed=8, spread=0.08))
    expected = shifted_ggn(source, target, 1000.0)
    assert 0 < float(expected.norm()) < 1e-100
    assert_close(infonce_curvature(source.double(), target.double(), 1000.0), expected, 1e-9, "float64")
    assert float(infonce_curvature(source, target, 1000.0).abs().max()) <= 1e-30


# --------------------------------------------------------------------------------------------- dtypes and magnitudes


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("size", [1e-15, 1e-6, 1e6, 1e15])
def test_huge_and_tiny_norms_in_float32(loss: str, size: float) -> None:
    source, target = (rows.float() for rows in batch(12, 15, 6, seed=9))
    scaled = source * size
    expected = curvature(loss, scaled.double(), target.double() / size, 10.0)
    assert_close(expected * size**2, curvature(loss, source.double(), target.double(), 10.0), 1e-5)
    assert_close(curvature(loss, scaled, (target / size), 10.0), expected, 1e-5)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("size", [1e-25, 1e-21, 1e-20, 1e20, 1e25])
def test_norms_whose_squares_leave_float32_are_right_or_refused(loss: str, size: float) -> None:
    """1/|g|^2 overflows float32 below 1e-19: never a NaN in silence."""
    source, target = (rows.float() for rows in batch(12, 15, 6, seed=9))
    expected = curvature(loss, (source * size).double(), target.double(), 10.0)
    try:
        actual = curvature(loss, source * size, target, 10.0)
    except BayesVLMError:
        return
    assert_close(actual, expected, 1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_rows_of_very_different_norms(loss: str) -> None:
    source, target = (rows.float() for rows in batch(12, 15, 6, seed=10))
    source = source * torch.logspace(-6, 6, 12)[:, None]
    expected = curvature(loss, source.double(), target.double(), 10.0)
    assert_close(curvature(loss, source, target, 10.0), expected, 1e-5)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_half_precision_inputs_are_read_exactly(loss: str, dtype: torch.dtype) -> None:
    """Half precision rounds what it is given; nothing more is lost from there on."""
    source, target = (rows.to(dtype) for rows in contrastive_batch(32, 48, 32, match=0.4, seed=11, spread=0.1))
    expected = curvature(loss, source.double(), target.double(), 30.0)
    actual = curvature(loss, source, target, 30.0)
    assert actual.dtype == torch.float64
    assert_close(actual, expected, 1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_float16_norms_beyond_the_range_of_float16(loss: str) -> None:
    source = torch.full((3, 64), 3e4, dtype=torch.float16) * torch.tensor([[1.0], [-1.0], [0.5]], dtype=torch.float16)
    source[:, 0] = 1
    target = normal(5, 64, seed=12, dtype=torch.float32)
    expected = curvature(loss, source.double(), target.double(), 5.0)
    assert_close(curvature(loss, source, target, 5.0), expected, 1e-5)


def test_precision_of_the_products_can_be_chosen() -> None:
    source, target = contrastive_batch(64, 128, 32, match=0.4, seed=13, spread=0.1)
    exact = infonce_curvature(source, target, 50.0)
    single = infonce_curvature(source, target, 50.0, precision="float32")
    assert 1e-12 < relative_error(single, exact) < 1e-5
    from_single = infonce_curvature(source.float(), target.float(), 50.0, precision="float64")
    assert_close(from_single, infonce_curvature(source.float().double(), target.float().double(), 50.0), 1e-14)


def test_mixed_dtypes_take_the_wider() -> None:
    source, target = batch(6, 7, 4, seed=14)
    expected = infonce_curvature(source, target.float().double(), 10.0)
    assert_close(infonce_curvature(source, target.float(), 10.0), expected, 1e-14)


# ---------------------------------------------------------------------------------------------------------- sigmoid


def test_sigmoid_normalise_paper_is_sum_over_the_batch_size() -> None:
    source, target = batch(6, 9, 4, seed=15)
    paper = sigmoid_curvature(source, target, 8.0, -2.0)
    total = sigmoid_curvature(source, target, 8.0, -2.0, normalise="sum")
    assert_close(paper * 9, total, 1e-14)
    assert float(paper.norm()) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", [-200.0, 0.0, 200.0])
def test_sigmoid_at_extreme_logits(dtype: torch.dtype, bias: float) -> None:
    source, target = (rows.to(dtype) for rows in batch(6, 9, 4, seed=16))
    result = sigmoid_curvature(source, target, 200.0, bias)
    assert bool(torch.isfinite(result).all())
    if dtype == torch.float64:
        assert_close(result, autograd_ggn(source, target, 200.0, bias, "sigmoid").sum(dim=0), 1e-9)
    else:
        exact = sigmoid_curvature(source.double(), target.double(), 200.0, bias)
        assert float((result - exact).norm()) <= 1e-4 * float(exact.norm()) + 1e-30


def test_sigmoid_is_symmetric_in_the_sign_of_the_logit() -> None:
    source, target = batch(6, 9, 4, seed=17)
    assert_close(sigmoid_curvature(source, -target, 8.0, -3.0), sigmoid_curvature(source, target, 8.0, 3.0), 1e-12)


def test_sigmoid_falls_off_on_both_sides_of_zero_bias() -> None:
    source, target = batch(6, 9, 4, seed=18)
    at = {bias: float(sigmoid_curvature(source, target, 1.0, bias).trace()) for bias in (-10.0, 0.0, 10.0)}
    assert at[0.0] > 1e3 * max(at[-10.0], at[10.0])


# ------------------------------------------------------------------------------------------- structure and invariance

SEEDS = st.integers(0, 10_000)
SIZES = st.tuples(st.integers(1, 8), st.integers(2, 8), st.integers(2, 6))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(SIZES, SEEDS, st.floats(0.1, 200.0), st.sampled_from(LOSSES))
def test_symmetric_and_positive_semi_definite(size: tuple[int, int, int], seed: int, scale: float, loss: str) -> None:
    result = curvature(loss, *batch(*size, seed=seed), scale)
    assert torch.equal(result, result.T)
    values = torch.linalg.eigvalsh(result)
    assert float(values[0]) >= -1e-12 * max(float(values[-1]), 1e-6 * scale**2)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(SIZES, SEEDS, st.sampled_from(LOSSES))
def test_rotation_equivariance(size: tuple[int, int, int], seed: int, loss: str) -> None:
    source, target = batch(*size, seed=seed)
    rotation = torch.linalg.qr(normal(size[2], size[2], seed=seed + 2)).Q
    expected = rotation.T @ curvature(loss, source, target, 10.0) @ rotation
    difference = curvature(loss, source @ rotation, target @ rotation, 10.0) - expected
    assert float(difference.norm()) <= 1e-10 * float(expected.norm()) + 1e-12


@settings(max_examples=30, deadline=None, derandomize=True)
@given(SIZES, SEEDS, st.floats(1e-3, 1e3), st.sampled_from(LOSSES))
def test_target_lengths_do_not_matter_and_source_lengths_act_as_their_inverse_square(
    size: tuple[int, int, int], seed: int, stretch: float, loss: str
) -> None:
    source, target = batch(*size, seed=seed)
    base = curvature(loss, source, target, 10.0)
    lengths = 0.5 + torch.rand(size[1], 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    floor = 1e-12 * float(base.norm()) + 1e-13
    assert float((curvature(loss, source, target * lengths, 10.0) - base).norm()) <= 100 * floor
    stretched = curvature(loss, source * stretch, target, 10.0) * stretch**2
    assert float((stretched - base).norm()) <= 100 * floor


@settings(max_examples=30, deadline=None, derandomize=True)
@given(SIZES, SEEDS, st.sampled_from(LOSSES))
def test_additive_over_rows_and_blind_to_order(size: tuple[int, int, int], seed: int, loss: str) -> None:
    source, target = batch(size[0] + 1, *size[1:], seed=seed)
    whole = curvature(loss, source, target, 10.0)
    parts = curvature(loss, source[:1], target, 10.0) + curvature(loss, source[1:], target, 10.0)
    assert float((parts - whole).norm()) <= 1e-11 * float(whole.norm()) + 1e-12
    order = torch.randperm(size[1], generator=torch.Generator().manual_seed(seed))
    shuffled = curvature(loss, source.flip(0), target[order], 10.0)
    assert float((shuffled - whole).norm()) <= 1e-11 * float(whole.norm()) + 1e-12


@pytest.mark.parametrize("loss", LOSSES)
def test_each_row_annihilates_its_own_direction(loss: str) -> None:
    """M_i ghat_i = 0: lengthening an embedding changes no loss."""
    source, target = batch(1, 8, 5, seed=19)
    result = curvature(loss, source, target, 10.0)
    assert float((result @ unit(source)[0]).norm()) <= 1e-12 * float(result.norm())


@pytest.mark.parametrize("loss", LOSSES)
def test_inputs_are_left_alone_and_carry_no_graph(loss: str) -> None:
    source, target = (rows.requires_grad_() for rows in batch(6, 7, 4, seed=24))
    before = source.detach().clone(), target.detach().clone()
    result = curvature(loss, source, target, 10.0)
    assert not result.requires_grad
    assert torch.equal(source.detach(), before[0])
    assert torch.equal(target.detach(), before[1])


@pytest.mark.parametrize("loss", LOSSES)
def test_views_of_other_strides(loss: str) -> None:
    source, target = batch(6, 7, 4, seed=25)
    strided_source = source.T.contiguous().T
    strided_target = torch.stack([target, target], dim=2)[:, :, 0]
    expected = curvature(loss, source, target, 10.0)
    assert_close(curvature(loss, strided_source, strided_target, 10.0), expected, 1e-13)


# ------------------------------------------------------------------------------------------------------------ errors


def test_positives_are_checked_and_cannot_change_the_value() -> None:
    source, target = batch(4, 6, 3, seed=26)
    base = infonce_curvature(source, target, 5.0)
    for positives in (torch.arange(4), torch.tensor([5, 5, 0, 1]), torch.arange(4, dtype=torch.int32)):
        assert torch.equal(infonce_curvature(source, target, 5.0, positives), base)
    for wrong in (torch.arange(5), torch.tensor([0, 1, 2, 6]), torch.tensor([0, 1, 2, -1]), torch.zeros(4)):
        with pytest.raises(BayesVLMError, match="positives"):
            infonce_curvature(source, target, 5.0, wrong)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_scale_must_be_positive(loss: str, bad: float) -> None:
    with pytest.raises(BayesVLMError, match="scale"):
        curvature(loss, *batch(4, 6, 3), bad)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("value", [0.0, float("nan"), float("inf")])
@pytest.mark.parametrize("side", ["source", "target"])
def test_rows_without_a_direction_are_named(loss: str, value: float, side: str) -> None:
    rows = dict(zip(("source", "target"), batch(4, 6, 3), strict=True))
    rows[side][2] = value
    with pytest.raises(BayesVLMError, match=rf"{side} rows \[2\]"):
        curvature(loss, rows["source"], rows["target"], 5.0)


@pytest.mark.parametrize("loss", LOSSES)
def test_shapes_and_dtypes_are_checked(loss: str) -> None:
    source, target = batch(4, 6, 3)
    for bad in (source[0], source[:0], source.long(), source[None], source[:, :0]):
        with pytest.raises(BayesVLMError, match="source"):
            curvature(loss, bad, target, 5.0)
        with pytest.raises(BayesVLMError, match="target"):
            curvature(loss, source, bad, 5.0)
    with pytest.raises(BayesVLMError, match="same d"):
        curvature(loss, source, target[:, :2], 5.0)


def test_options_are_checked() -> None:
    source, target = batch(4, 6, 3)
    with pytest.raises(BayesVLMError, match="normalise"):
        sigmoid_curvature(source, target, 5.0, 0.0, normalise="mean")  # type: ignore[arg-type]
    with pytest.raises(BayesVLMError, match="bias"):
        sigmoid_curvature(source, target, 5.0, float("nan"))
    with pytest.raises(BayesVLMError, match="precision"):
        infonce_curvature(source, target, 5.0, precision="float16")  # type: ignore[arg-type]
    with pytest.raises(BayesVLMError, match="CUDA"):
        infonce_curvature(source, target, 5.0, precision="tf32")


# ------------------------------------------------------------------------------------------------------------ memory

PEAK = textwrap.dedent(
    """
    import json, torch
    from bayesvlm.core.curvature import infonce_curvature, sigmoid_curvature
    from pathlib import Path
    torch.set_num_threads(2)
    generator = torch.Generator().manual_seed(0)
    source, target = (torch.randn(6000, 64, generator=generator) for _ in range(2))

    def status(key):
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(key)) * 1024

    def peak(work):
        Path("/proc/self/clear_refs").write_text("5")  # start the high-water mark again from here
        before = status("VmRSS")
        work()
        return status("VmHWM") - before

    many = torch.randn(200_000, 64, generator=generator).half()
    infonce_curvature(source[:64], target[:64], 100.0)  # thread pools and libraries
    allowed = {"memory": 32 * 2**20}
    print(json.dumps({
        "infonce": peak(lambda: infonce_curvature(source, target, 100.0, **allowed)),
        "many float16 rows": peak(lambda: infonce_curvature(many, target[:32], 100.0, **allowed)),
        "sigmoid": peak(lambda: sigmoid_curvature(source, target, 10.0, -10.0, **allowed)),
        "roomy": peak(lambda: sigmoid_curvature(source, target, 10.0, -10.0, memory=2**30)),
    }))
    """
)


@pytest.fixture(scope="module")
def peaks() -> dict[str, float]:
    """MiB a process grows by at its peak, for several calls that were allowed 32 (and one that was allowed 1024)."""
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}  # what is freed goes back at once
    command = [sys.executable, "-c", PEAK]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    if "/proc/self" in done.stderr:
        pytest.skip("needs Linux's /proc/self/clear_refs to measure a peak")
    assert done.returncode == 0, done.stderr
    sizes = {name: size / 2**20 for name, size in json.loads(done.stdout).items()}
    print("peak MiB of 32 allowed:", sizes)
    return sizes


@pytest.mark.parametrize("loss", LOSSES)
def test_memory_stays_within_what_was_allowed(peaks: dict[str, float], loss: str) -> None:
    """6000 x 6000 pairs in 32 MiB (two [N, K] matrices take 288 MB).

    The tolerance of 16 MiB is for the allocator and the BLAS buffers of two threads.
    """
    assert peaks["roomy"] >= 200  # the measurement sees what it should
    assert peaks[loss] <= 48


def test_memory_does_not_grow_with_the_number_of_float16_rows(peaks: dict[str, float]) -> None:
    """200,000 x 64: a float64 copy of the source alone would be 98 MiB."""
    assert peaks["many float16 rows"] <= 48


def test_bfloat16_products() -> None:
    """Measured 1.1e-2 at CLIP-like cosines: logits rounded to bfloat16, sums in float64.

    In a process of its own, held to AVX2: on processors that announce AMX and do not allow it, PyTorch's own bfloat16
    product dies of an illegal instruction.
    """
    program = """
import torch
from bayesvlm.core.curvature import infonce_curvature
from references import contrastive_batch, relative_error
source, target = contrastive_batch(64, 256, 128, match=0.30, seed=0)
rounded = infonce_curvature(source, target, 100.0, precision="bf16")
print(relative_error(rounded, infonce_curvature(source, target, 100.0)))
"""
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "PYTHONPATH": path}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert 1e-5 < float(done.stdout) < 3e-2
