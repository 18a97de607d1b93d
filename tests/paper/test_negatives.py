"""tr(B) against the number and size of contrast batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from core.references import autograd_ggn

from bayesvlm import BayesVLMError
from bayesvlm.core.estimation import TOWERS
from bayesvlm_paper.items.negatives import _judged, batch_sizes, batch_traces, measure, off, relative, tell
from bayesvlm_paper.lab import shuffled
from bayesvlm_paper.plans import CLIP_BASE
from bayesvlm_paper.traces import EmbeddedPairs
from paper.small_pairs import SmallLab, small_pairs, small_vlm
from paper.told import told


def test_sizes_follow_the_pairs() -> None:
    assert batch_sizes(6211) == (64, 256, 1024)
    assert batch_sizes(327_680) == (2048, 8192, 32768)
    assert batch_sizes(192) == (2, 8, 32)


@pytest.mark.parametrize("loss", ["infonce", "sigmoid"])
def test_running_traces_are_those_of_automatic_differentiation(loss: str) -> None:
    pairs, order = EmbeddedPairs.of(small_vlm(loss), *small_pairs(24)), shuffled(24, 1)
    vlm = pairs.vlm
    for tower, other in zip(TOWERS, reversed(TOWERS), strict=True):
        per_batch = []
        for start in range(0, 20, 4):
            rows = order[start : start + 4]
            g, h = pairs.embeddings[tower][rows], pairs.embeddings[other][rows]
            per_batch.append(float(autograd_ggn(g, h, vlm.scale, vlm.logit_bias or 0.0, loss).sum(dim=0).trace()))
        expected = np.cumsum(per_batch) / (4 * np.arange(1, 6))
        assert batch_traces(pairs, tower, order, 4) == pytest.approx(expected.tolist(), rel=1e-9)


def test_ratios_are_relative_to_the_mean_of_five_batches() -> None:
    trials = np.random.default_rng(0).uniform(1, 2, (5, 5))
    level, found = relative(trials.tolist())
    assert level == pytest.approx(trials[:, 4].mean())
    assert found["mean"] == pytest.approx(trials.mean(axis=0) / trials[:, 4].mean())
    assert found["std"] == pytest.approx(trials.std(axis=0, ddof=1) / trials[:, 4].mean())
    assert found["mean"][4] == pytest.approx(1)
    assert off(found) == pytest.approx(np.abs(trials.mean(axis=0) / trials[:, 4].mean() - 1).max())
    with pytest.raises(BayesVLMError, match="zero"):
        relative([[0.0] * 5] * 5)


@pytest.mark.parametrize(
    ("mean", "std", "expected"),
    [(1.01, 0.01, True), (1.03, 0.01, False), (1.03, 0.04, True), (1.01, 0.06, False)],
)
def test_claim_asks_for_both_nearness_and_least_variance(mean: float, std: float, expected: bool) -> None:
    small = {"mean": (0.8, 0.9, 1.1, 1.0, 1.0), "std": (0.1, 0.05, 0.1, 0.1, 0.1)}
    large = {"mean": (1.0, mean, 1.0, 1.0, 1.0), "std": (0.01, std, 0.01, 0.01, 0.01)}
    steady = {"mean": (1.0,) * 5, "std": (0.01,) * 5}
    holds, figure = _judged({"image": {8: small, 32: steady}, "text": {8: small, 32: large}})
    assert holds == expected
    assert f"{mean - 1:.1%} from one" in figure


def test_finding_tells_the_level_from_the_ratio() -> None:
    lab: Any = SmallLab(pairs=200)
    finding = told(lab, measure, tell)
    level = finding.numbers["level"]
    for tower in TOWERS:
        assert list(level[tower]) == ["2", "8", "32", "200"]
        factors = lab.vlm("small").factors[tower]
        assert level[tower]["200"] == pytest.approx(float(factors.B_sum.trace()) / 200)  # what fitting takes
    pairs = EmbeddedPairs.of(lab.vlm("small"), *lab.pairs("small"))
    trials = np.array([batch_traces(pairs, "image", shuffled(200, seed), 8) for seed in range(5)])
    assert level["image"]["8"] == pytest.approx(trials[:, 4].mean())
    ratio = finding.numbers["ratio"]["image"]["8"]
    assert ratio["mean"] == pytest.approx((trials.mean(axis=0) / trials[:, 4].mean()).tolist())
    assert f"{level['text']['200'] / level['text']['2']:.2g} (text)" in finding.answer
    assert level["text"]["200"] > 1.2 * level["text"]["2"]  # more negatives, more curvature
    assert not any(series.dashed for panel in finding.exhibits[0].panels for series in panel.series)


def test_printed_curves_stand_beside_the_published_model_and_data() -> None:
    lab: Any = SmallLab((CLIP_BASE,), pairs=192, source="laion400m")
    image, text = told(lab, measure, tell).exhibits[0].panels
    printed = {series.name: series for series in text.series if series.dashed}
    assert list(printed) == ["paper, K = 2,048", "paper, K = 8,192", "paper, K = 32,768"]
    assert printed["paper, K = 2,048"].error[0] == 0.0871
    assert next(series for series in image.series if series.dashed).y[0] == 0.971


def test_too_few_pairs_are_refused() -> None:
    lab: Any = SmallLab(pairs=191)
    with pytest.raises(BayesVLMError, match="at least 192"):
        told(lab, measure, tell)
