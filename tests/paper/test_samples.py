"""The trace against the number of pairs: per pair, with equally many negatives whatever the number."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from core.references import autograd_ggn

from bayesvlm import BayesVLMError
from bayesvlm.core.estimation import TOWERS, FactorEstimator, Tower
from bayesvlm_paper.items.samples import (
    Curve,
    contrast_sizes,
    measure,
    subset_sizes,
    subset_traces,
    tell,
)
from bayesvlm_paper.lab import shuffled
from bayesvlm_paper.plans import CLIP_BASE
from bayesvlm_paper.traces import EmbeddedPairs
from paper.small_pairs import SmallLab, small_pairs, small_vlm
from paper.told import told


def reference(pairs: EmbeddedPairs, tower: Tower, rows: list[int], batch: list[int]) -> float:
    """tr(B_sum) by automatic differentiation, one sample at a time."""
    other: Tower = "text" if tower == "image" else "image"
    vlm = pairs.vlm
    source, target = pairs.embeddings[tower][rows], pairs.embeddings[other][batch]
    per_row = autograd_ggn(source, target, vlm.scale, vlm.logit_bias or 0.0, vlm.loss)
    return float(per_row.sum(dim=0).trace())


@pytest.mark.parametrize("tower", TOWERS)
@pytest.mark.parametrize("loss", ["infonce", "sigmoid"])
def test_traces_are_those_of_automatic_differentiation(loss: str, tower: Tower) -> None:
    images, texts = small_pairs(12)
    pairs = EmbeddedPairs.of(small_vlm(loss), images, texts)
    rows, batch = [3, 4, 9], [9, 1, 3, 4, 7]
    found = pairs.trace_B(tower, torch.tensor(rows), torch.tensor(batch))
    assert found == pytest.approx(reference(pairs, tower, rows, batch), rel=1e-9)
    phi = {"image": np.hstack([images.activations, np.ones((12, 1))]), "text": texts.activations.numpy()}[tower]
    assert pairs.trace_A(tower, torch.tensor(rows)) == pytest.approx(np.trace(phi[rows].T @ phi[rows]), rel=1e-12)


@pytest.mark.parametrize("loss", ["infonce", "sigmoid"])
def test_every_pair_of_a_subset_sees_equally_many_candidates(loss: str) -> None:
    pairs = EmbeddedPairs.of(small_vlm(loss), *small_pairs(22))
    order, sizes, K = shuffled(22, 3), (3, 10, 22), 8
    for tower in TOWERS:
        found = subset_traces(pairs, tower, order, sizes, K)
        for size, trace in zip(sizes, found, strict=True):
            A = pairs.trace_A(tower, order[:size])
            B = 0.0
            for place in range(size):
                start = 8 * (place // 8)
                batch = [int(order[(start + k) % 22]) for k in range(K)]
                B += reference(pairs, tower, [int(order[place])], batch)
            assert trace == pytest.approx(A * B / size**2, rel=1e-8)


def test_all_pairs_in_whole_batches_are_what_fitting_estimates() -> None:
    vlm, (images, texts) = small_vlm(), small_pairs(32)
    order = shuffled(32, 0)
    estimator = FactorEstimator(vlm.image, vlm.text, vlm.scale, negatives=8)
    estimator.update(images[order], texts[order])
    for tower, factors in estimator.factors().items():
        found = subset_traces(EmbeddedPairs.of(vlm, images, texts), tower, order, (32,), 8)
        assert found == [pytest.approx(float(factors.A_sum.trace() * factors.B_sum.trace()) / 32**2, rel=1e-9)]
        assert found == [pytest.approx(float(factors.A.trace() * factors.B.trace()) / 32, rel=1e-9)]


def test_sizes_follow_the_pairs() -> None:
    assert subset_sizes(6211) == (97, 194, 388, 776, 1552, 3105, 6211)
    assert contrast_sizes(6211) == (512, 6211)
    assert subset_sizes(327_680)[:4] == (4096, 8192, 16384, 32768)
    assert subset_sizes(327_680)[-1] == 327_680
    assert subset_sizes(10**6)[-1] == 491_520
    assert contrast_sizes(327_680) == (32768,)


def curve(sizes: tuple[int, ...], trials: list[list[float]]) -> Curve:
    mean, std = np.mean(trials, axis=0).tolist(), np.std(trials, axis=0, ddof=1).tolist()
    return Curve.of(sizes, {"trace_per_pair": mean, "std": std})


def test_a_curve_is_judged_from_a_quarter_on() -> None:
    sizes = (97, 388, 1552, 3105, 6211)
    steady = curve(sizes, [[60, 90, 99, 100, 100], [140, 110, 101, 100, 100]])
    assert (steady.full, steady.quarter) == (100, 2)
    assert steady.mean == pytest.approx([1] * 5)
    assert steady.spread == pytest.approx(np.std([0.99, 1.01], ddof=1))
    assert steady.stable
    assert not curve(sizes, [[60, 90, 90, 100, 100], [140, 110, 110, 100, 100]]).stable  # varies at a quarter
    assert not curve(sizes, [[60, 90, 99, 90, 100], [140, 110, 101, 110, 100]]).stable  # and later
    biased = curve(sizes, [[60, 90, 104, 100, 100], [140, 110, 104, 100, 100]])
    assert biased.off == pytest.approx(0.04)
    assert not biased.stable
    assert not curve(sizes, [[100, 90, 99, 100, 100], [100, 110, 101, 100, 100]]).stable  # did not shrink


def test_finding_holds_every_number() -> None:
    lab: Any = SmallLab(pairs=200)
    finding = told(lab, measure, tell)
    numbers = finding.numbers["negatives"]
    assert list(numbers) == ["16", "200"]
    for tower in TOWERS:
        with_all = numbers["200"][tower]
        factors = lab.vlm("small").factors[tower]
        assert with_all["trace_per_pair"][-1] == pytest.approx(float(factors.A.trace() * factors.B.trace()) / 200)
        assert with_all["std"][-1] == pytest.approx(0, abs=1e-9 * with_all["trace_per_pair"][-1])
        assert numbers["16"][tower]["std"][-1] > 0
    panels = finding.exhibits[0].panels
    assert [panel.title for panel in panels] == list(TOWERS)
    assert not any(series.dashed for panel in panels for series in panel.series)
    share = np.array(numbers["16"]["image"]["std"]) / numbers["16"]["image"]["trace_per_pair"][-1]
    assert panels[0].series[0].error == pytest.approx(share)
    assert f"{share[4]:.1%} (image)" in finding.answer


@pytest.mark.parametrize(("model", "source", "beside"), [(CLIP_BASE, "laion400m", True), (CLIP_BASE, "train", False)])
def test_printed_curves_stand_beside_the_published_model_and_data_only(model: str, source: str, beside: bool) -> None:
    lab: Any = SmallLab((model,), source=source, pairs=128)
    panels = told(lab, measure, tell).exhibits[0].panels
    printed = [series for series in panels[1].series if series.dashed]
    assert bool(printed) == beside
    if beside:
        assert printed[0].y[-1] == 1
        assert printed[0].y[0] == pytest.approx(28305117594 / 28333788774)


def test_too_few_pairs_are_refused() -> None:
    lab: Any = SmallLab(pairs=100)
    with pytest.raises(BayesVLMError, match="100 image-text pairs; at least 128"):
        told(lab, measure, tell)


def test_models_with_variances_of_their_own_are_refused() -> None:
    model: Any = SimpleNamespace(predicts_variance=True)
    with pytest.raises(BayesVLMError, match="predicts its variances"):
        EmbeddedPairs.of(model, *small_pairs(4))
