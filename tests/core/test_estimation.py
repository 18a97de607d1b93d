"""Factors from a stream: against differentiation, and whatever way the stream is cut."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import hessian, jacrev

from bayesvlm.core.curvature import infonce_curvature, sigmoid_curvature
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import TOWERS, FactorEstimator
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.core.features import Features
from bayesvlm.core.projection import Projection

from .references import assert_close, autograd_ggn, infonce_loss, normal, sigmoid_loss, unit

WIDTH, IMAGE_INPUTS, TEXT_INPUTS, SCALE, LOGIT_BIAS = 4, 5, 3, 12.0, -3.0


def towers(bias: bool) -> dict[str, Projection]:
    """Two float64 projections to one space."""
    return {
        "image": Projection(normal(WIDTH, IMAGE_INPUTS, seed=0), normal(WIDTH, seed=1) if bias else None),
        "text": Projection(normal(WIDTH, TEXT_INPUTS, seed=2), normal(WIDTH, seed=3) if bias else None),
    }


def pairs(count: int, residual: bool = False, seed: int = 10) -> tuple[Features, Features]:
    """Random features of images and texts."""
    extra = [normal(count, WIDTH, seed=seed + 2), normal(count, WIDTH, seed=seed + 3)] if residual else [None, None]
    images = Features(normal(count, IMAGE_INPUTS, seed=seed), extra[0])
    return images, Features(normal(count, TEXT_INPUTS, seed=seed + 1), extra[1])


def estimator(bias: bool = False, **options: Any) -> FactorEstimator:
    """An estimator with the module's temperature and, by default, contrast batches of 8."""
    return FactorEstimator(**towers(bias), **{"scale": SCALE, "bias": LOGIT_BIAS, "negatives": 8, **options})  # type: ignore[arg-type]


def factors_of(count: int, cuts: list[int] | None = None, **options: Any) -> dict[Any, KroneckerFactors]:
    """Factors of `count` pairs, fed in batches cut at the given places."""
    images, texts = pairs(count)
    collector = estimator(**options)
    places = [0, *sorted(cuts or []), count]
    for start, stop in pairwise(places):
        collector.update(images[start:stop], texts[start:stop])
    return collector.factors()


# ---------------------------------------------------------------------------------------------- against differentiation


@pytest.mark.parametrize("loss", ["infonce", "sigmoid"])
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("residual", [False, True], ids=["no residual", "residual"])
def test_factors_of_one_batch_equal_autograd(loss: Any, bias: bool, residual: bool) -> None:
    images, texts = pairs(8, residual)
    collector = estimator(bias, loss=loss)
    collector.update(images, texts)
    factors = collector.factors()
    features = {"image": images, "text": texts}
    embeddings: dict[str, Tensor] = {}
    for tower, projection in towers(bias).items():
        g = features[tower].activations @ projection.weight.T
        g = g if projection.bias is None else g + projection.bias
        extra = features[tower].residual
        embeddings[tower] = g if extra is None else g + extra
    for tower, other in (("image", "text"), ("text", "image")):
        phi = features[tower].activations
        phi = torch.cat([phi, torch.ones(8, 1).double()], dim=1) if bias else phi
        A_sum = sum(torch.outer(row, row) for row in phi)
        B_sum = autograd_ggn(embeddings[tower], embeddings[other], SCALE, LOGIT_BIAS, loss).sum(dim=0)
        actual = factors[tower]  # type: ignore[index]
        assert actual.n == 8
        assert_close(actual.A_sum, torch.as_tensor(A_sum), 1e-12, f"A of {tower}")
        assert_close(actual.B_sum, B_sum, 1e-10, f"B of {tower}")
        assert_close(actual.A, actual.A_sum / 8**0.5, 1e-14)
        assert_close(actual.B, actual.B_sum / 8**0.5, 1e-14)


@pytest.mark.parametrize("loss", ["infonce", "sigmoid"])
@pytest.mark.parametrize("bias", [False, True], ids=["no bias", "bias"])
def test_ggn_of_the_weights_is_the_kronecker_product_for_one_sample(loss: Any, bias: bool) -> None:
    """From the loss to vec(W) by autograd, one sample, residual included: (phi phi^T) (x) (J^T Lambda J)."""
    images, texts = pairs(6, residual=True, seed=30)
    projections = towers(bias)
    hhat = unit(projections["text"].embed(texts))
    assert images.residual is not None
    residual = images.residual[0]
    phi = torch.cat([images.activations[0], torch.ones(1).double()]) if bias else images.activations[0]
    weight = projections["image"].augmented
    objective = infonce_loss if loss == "infonce" else sigmoid_loss

    def logits(flat: Tensor) -> Tensor:  # [p d], columns of W one after the other -> [K]
        g = flat.reshape(len(phi), WIDTH).T @ phi + residual
        return SCALE * hhat @ (g / g.norm()) + LOGIT_BIAS

    flat = weight.T.flatten()
    jacobian = jacrev(logits)(flat)
    middle = hessian(lambda z: objective(z, torch.tensor(0)))(logits(flat))
    expected = jacobian.T @ middle @ jacobian

    g = projections["image"].embed(images[0])
    if loss == "infonce":
        B = infonce_curvature(g, projections["text"].embed(texts), SCALE)
    else:
        B = sigmoid_curvature(g, projections["text"].embed(texts), SCALE, LOGIT_BIAS)
    assert_close(torch.kron(torch.outer(phi, phi), B), expected, 1e-10)


# ------------------------------------------------------------------------------------------------------- the stream


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(2, 40), st.lists(st.integers(0, 40), max_size=6), st.sampled_from(["infonce", "sigmoid"]))
def test_batch_boundaries_do_not_matter(count: int, cuts: list[int], loss: Any) -> None:
    cuts = [min(cut, count) for cut in cuts]
    whole, cut = factors_of(count, loss=loss), factors_of(count, cuts, loss=loss)
    for tower in TOWERS:
        assert cut[tower].n == whole[tower].n == count
        assert_close(cut[tower].A_sum, whole[tower].A_sum, 1e-12)
        assert_close(cut[tower].B_sum, whole[tower].B_sum, 1e-11)


def test_full_batches_are_contrasted_with_themselves() -> None:
    factors = factors_of(16)
    images, texts = pairs(16)
    projections = towers(False)
    g, h = projections["image"].embed(images), projections["text"].embed(texts)
    expected = infonce_curvature(g[:8], h[:8], SCALE) + infonce_curvature(g[8:], h[8:], SCALE)
    assert_close(factors["image"].B_sum, expected, 1e-12)
    expected = infonce_curvature(h[:8], g[:8], SCALE) + infonce_curvature(h[8:], g[8:], SCALE)
    assert_close(factors["text"].B_sum, expected, 1e-12)


@pytest.mark.parametrize("loss", ["infonce", "sigmoid"])
@pytest.mark.parametrize("rest", [1, 3, 7])
def test_the_remainder_borrows_negatives_from_the_batch_before(loss: Any, rest: int) -> None:
    factors = factors_of(16 + rest, loss=loss)
    images, texts = pairs(16 + rest)
    projections = towers(False)
    embeddings = {"image": projections["image"].embed(images), "text": projections["text"].embed(texts)}
    own, before = slice(16, None), slice(8, 8 + 8 - rest)
    for tower, other in (("image", "text"), ("text", "image")):
        g, h = embeddings[tower], embeddings[other]
        batches = [(g[:8], h[:8]), (g[8:16], h[8:16]), (g[own], torch.cat([h[own], h[before]]))]
        expected = sum(autograd_ggn(*batch, SCALE, LOGIT_BIAS, loss).sum(dim=0) for batch in batches)
        assert_close(factors[tower].B_sum, torch.as_tensor(expected), 1e-10, tower)


def test_fewer_pairs_than_negatives_are_contrasted_with_what_there_is() -> None:
    images, texts = pairs(5)
    projections = towers(False)
    expected = infonce_curvature(projections["image"].embed(images), projections["text"].embed(texts), SCALE)
    assert_close(factors_of(5)["image"].B_sum, expected, 1e-12)


def test_shards_merge_to_the_whole() -> None:
    """Two machines with whole contrast batches each, against one that saw everything."""
    images, texts = pairs(32)
    parts = []
    for part in (slice(0, 16), slice(16, 32)):
        collector = estimator()
        collector.update(images[part], texts[part])
        parts.append(collector.factors())
    whole = factors_of(32)
    for tower in TOWERS:
        merged = parts[0][tower].merge(parts[1][tower])
        assert merged.n == 32
        assert_close(merged.A, whole[tower].A, 1e-13)
        assert_close(merged.B, whole[tower].B, 1e-12)


def test_resuming_from_closed_batches_equals_one_run() -> None:
    images, texts = pairs(27)
    first = estimator()
    first.update(images[:20], texts[:20])
    assert (first.pairs_closed, first.pairs_seen) == (16, 20)
    second = estimator(closed=dict(first.closed), recent=dict(first.recent))
    second.update(images[16:], texts[16:])
    whole = factors_of(27)
    for tower in TOWERS:
        assert_close(second.factors()[tower].B_sum, whole[tower].B_sum, 1e-12)
        assert_close(second.factors()[tower].A_sum, whole[tower].A_sum, 1e-12)


def test_resuming_does_not_change_the_callers_state() -> None:
    first = estimator()
    first.update(*pairs(8))
    closed, recent = dict(first.closed), dict(first.recent)
    second = estimator(closed=closed, recent=recent)
    second.update(*pairs(8, seed=50))
    assert closed["image"].n == 8


def test_asking_twice_gives_the_same() -> None:
    collector = estimator()
    collector.update(*pairs(11))
    once, twice = collector.factors(), collector.factors()
    for tower in TOWERS:
        assert torch.equal(once[tower].B_sum, twice[tower].B_sum)
        assert twice[tower].n == 11


def test_update_leaves_its_inputs_alone() -> None:
    images, texts = pairs(11, residual=True)
    assert images.residual is not None
    before = [images.activations.clone(), texts.activations.clone(), images.residual.clone()]
    collector = estimator()
    collector.update(images, texts)
    collector.factors()
    assert torch.equal(images.activations, before[0])
    assert torch.equal(texts.activations, before[1])
    assert torch.equal(images.residual, before[2])
    assert len(images) == 11


def test_later_changes_of_the_callers_buffer_do_not_reach_the_factors() -> None:
    """Loaders reuse buffers: what was given to `update` may be overwritten afterwards."""
    images, texts = pairs(6)
    collector = estimator(bias=False)
    collector.update(images, texts)
    images.activations.zero_()
    assert_close(collector.factors()["image"].B_sum, factors_of(6)["image"].B_sum, 1e-12)


def test_float32_stream_is_close_to_float64() -> None:
    images, texts = pairs(20)
    single = FactorEstimator(
        **{name: Projection(tower.weight.float()) for name, tower in towers(False).items()},  # type: ignore[arg-type]
        scale=SCALE,
        negatives=8,
    )
    single.update(images.to(torch.float32), texts.to(torch.float32))
    whole = factors_of(20)
    for tower in TOWERS:
        assert_close(single.factors()[tower].A_sum, whole[tower].A_sum, 1e-6)
        assert_close(single.factors()[tower].B_sum, whole[tower].B_sum, 1e-5)


# ------------------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize("count", [0, 1])
def test_fewer_than_two_pairs_are_an_error(count: int) -> None:
    collector = estimator()
    collector.update(*pairs(count))
    with pytest.raises(BayesVLMError, match=f"{count} pair"):
        collector.factors()


def test_unequal_lengths_are_an_error() -> None:
    with pytest.raises(BayesVLMError, match="5 images and 4 texts"):
        estimator().update(pairs(5)[0], pairs(4)[1])


@pytest.mark.parametrize("negatives", [1, 0, -4])
def test_a_contrast_batch_needs_two(negatives: int) -> None:
    with pytest.raises(BayesVLMError, match=f"negatives={negatives}"):
        estimator(negatives=negatives)


def test_an_unknown_loss_is_refused() -> None:
    """Not quietly taken for the sigmoid loss."""
    with pytest.raises(BayesVLMError, match="InfoNCE"):
        factors_of(8, loss="InfoNCE")


def test_a_refused_batch_leaves_the_estimator_as_it_was() -> None:
    """A caller who skips bad batches must not end up with images and texts out of step."""
    images, texts = pairs(10)
    collector = estimator()
    collector.update(images[:3], texts[:3])
    with pytest.raises(BayesVLMError, match="wide"):
        collector.update(images[3:6], Features(torch.ones(3, TEXT_INPUTS + 1)))
    collector.update(images[3:], texts[3:])
    factors, expected = collector.factors(), factors_of(10)
    for tower in TOWERS:
        assert factors[tower].n == 10
        assert_close(factors[tower].B_sum, expected[tower].B_sum, 1e-12)
