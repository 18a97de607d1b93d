"""Conformal scores and p-values against brute force, crepes and MAPIE."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from crepes import ConformalClassifier
from mapie.conformity_scores import APSConformityScore
from torch import Tensor

from bayesvlm import BayesVLMError
from bayesvlm.safety import conformal

N, M, C = 203, 150, 7  # with 203 images no level used here falls on a whole number


def probabilities(count: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities, labels drawn from them, and uniform numbers."""
    generator = torch.Generator().manual_seed(seed)
    probs = torch.softmax(2 * torch.randn(count, C, generator=generator, dtype=torch.float64), dim=1)
    labels = torch.multinomial(probs, 1, generator=generator)[:, 0]
    return probs.to(dtype), labels, torch.rand(count, generator=generator, dtype=torch.float64)


def scores_of(kind: str, probs: Tensor, u: Tensor) -> Tensor:
    if kind == "lac":
        return conformal.lac(probs)
    return conformal.aps(probs, u) if kind == "aps" else conformal.raps(probs, u, 0.05, 2)


@pytest.mark.parametrize("kind", ["lac", "aps", "raps"])
def test_scores_are_their_definitions(kind: str) -> None:
    probs, _, u = probabilities(40, 0)
    probs[3] = 1 / C  # all equal
    probs[4] = torch.tensor([0.25, 0.25, 0.25, 0.1, 0.1, 0.05, 0.0])
    found = scores_of(kind, probs, u)
    for i in range(len(probs)):
        for y in range(C):
            above = [float(p) for p in probs[i] if p > probs[i, y]]
            expected = sum(above) + float(u[i] * probs[i, y]) if kind != "lac" else 1 - float(probs[i, y])
            if kind == "raps":
                expected += 0.05 * max(0, 1 + len(above) - 2)
            assert float(found[i, y]) == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("kind", ["lac", "aps", "raps"])
@pytest.mark.parametrize("miss", [0.2, 0.1, 0.05])
def test_sets_and_p_values_are_those_of_crepes(kind: str, miss: float) -> None:
    (probs, labels, u), (new, _, v) = probabilities(N, 1), probabilities(M, 2)
    own = conformal.of_labels(scores_of(kind, probs, u), labels)
    scores = scores_of(kind, new, v)
    oracle = ConformalClassifier().fit(own.numpy())
    expected = oracle.predict_set(scores.numpy(), confidence=1 - miss, smoothing=False)
    assert np.array_equal((scores <= conformal.threshold(own, miss)).numpy(), expected.astype(bool))
    p = conformal.p_values(-own, -scores.flatten()).reshape(M, C)  # as unfamiliar as the label's score is high
    np.testing.assert_allclose(p.numpy(), oracle.predict_p(scores.numpy(), smoothing=False), atol=1e-12)
    by_class = ConformalClassifier().fit(own.numpy(), bins=labels.numpy())
    for k in range(C):
        mine = scores[:, k] <= conformal.threshold(own[labels == k], miss)
        bins = np.full(M, k)
        theirs = by_class.predict_set(scores[:, [k]].numpy(), bins=bins, confidence=1 - miss, smoothing=False)
        if (int((labels == k).sum()) + 1) * miss % 1 > 1e-6:  # at a whole number theirs takes one more
            assert np.array_equal(mine.numpy(), theirs[:, 0].astype(bool))


@pytest.mark.parametrize("miss", [0.2, 0.1, 0.05])
def test_aps_is_that_of_mapie_with_its_random_numbers(miss: float) -> None:
    probs, labels, _ = probabilities(N, 3)
    oracle = APSConformityScore()
    oracle.set_external_attributes(classes=np.arange(C), random_state=4)
    theirs = oracle.get_conformity_scores(labels.numpy(), probs.numpy(), y_enc=labels.numpy())
    u = 1 - torch.from_numpy(np.random.RandomState(4).uniform(size=N))
    mine = conformal.of_labels(conformal.aps(probs, u), labels)
    np.testing.assert_allclose(mine.numpy(), theirs[:, 0], atol=1e-12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantile = oracle.get_conformity_score_quantiles(theirs, np.array([miss]), cv="prefit")
    assert conformal.threshold(mine, miss) == pytest.approx(float(np.ravel(quantile)[0]), abs=1e-12)


def test_p_values_count_and_the_threshold_is_where_they_cross() -> None:
    generator = torch.Generator().manual_seed(0)
    for n in (19, 20, 39, 101, 199):
        calibration = torch.randn(n, generator=generator, dtype=torch.float64)
        calibration[: n // 3] = calibration[0]  # ties
        scores = torch.cat([torch.randn(300, generator=generator, dtype=torch.float64), calibration])
        p = conformal.p_values(calibration, scores)
        expected = torch.tensor([(1 + sum(float(c) <= float(s) for c in calibration)) / (n + 1) for s in scores])
        torch.testing.assert_close(p, expected.double(), atol=1e-7, rtol=0)
        for alpha in (0.05, 0.1, 0.15, 0.5):
            assert torch.equal(p <= alpha + 1e-12, scores < conformal.alarm_threshold(calibration, alpha))


def test_the_fewest_images_are_exactly_enough() -> None:
    for alpha in (0.01, 0.05, 0.07, 0.1, 1 / 3, 0.5, 0.9):
        n = conformal.fewest(alpha)
        few, enough = torch.rand(max(n - 1, 1), dtype=torch.float64), torch.rand(n, dtype=torch.float64)
        assert conformal.alarm_threshold(enough, alpha) > -math.inf
        assert conformal.threshold(enough, alpha) < math.inf
        if n > 1:
            assert conformal.alarm_threshold(few, alpha) == -math.inf
            assert conformal.threshold(few, alpha) == math.inf


@pytest.mark.parametrize("kind", ["lac", "aps", "raps"])
def test_the_label_is_in_the_set_as_often_as_promised(kind: str) -> None:
    """Of 400 calibrations with 99 images, coverage is the level on average: 0.9, standard deviation 0.0017."""
    covered = []
    for seed in range(400):
        probs, labels, u = probabilities(99 + 200, 10_000 + seed)
        own = conformal.of_labels(scores_of(kind, probs**0.5 / (probs**0.5).sum(1, keepdim=True), u), labels)
        covered.append(float((own[99:] <= conformal.threshold(own[:99], 0.1)).double().mean()))
    assert 0.89 < sum(covered) / len(covered) < 0.91


def test_false_alarms_are_as_rare_as_promised() -> None:
    """Of 1000 calibrations with 99 images: 0.05 on average, standard deviation 0.0008."""
    generator = torch.Generator().manual_seed(0)
    rates = []
    for _ in range(1000):
        calibration, new = torch.randn(99, generator=generator), torch.randn(200, generator=generator)
        rates.append(float((conformal.p_values(calibration, new) <= 0.05 + 1e-12).double().mean()))
    assert 0.045 < sum(rates) / len(rates) < 0.055


def test_single_precision_is_near() -> None:
    probs, _, u = probabilities(100, 5)
    for kind in ("lac", "aps"):
        torch.testing.assert_close(scores_of(kind, probs.float(), u), scores_of(kind, probs, u), atol=1e-6, rtol=0)


def test_what_it_refuses() -> None:
    probs, _, u = probabilities(10, 0)
    with pytest.raises(BayesVLMError, match=r"u has shape \[9\] for 10 inputs"):
        conformal.aps(probs, u[:9])
    with pytest.raises(BayesVLMError, match="between 0 and 1"):
        conformal.aps(probs, u + 1)
    with pytest.raises(BayesVLMError, match="add up to 1"):
        conformal.lac(probs * 2)
    with pytest.raises(BayesVLMError, match="add up to 1"):
        conformal.lac(probs * math.nan)
    with pytest.raises(BayesVLMError, match=r"tensor of class probabilities \[N, C\]"):
        conformal.lac(probs[0])
    for penalty in (-1, math.nan, "x", True):
        with pytest.raises(BayesVLMError, match="penalty="):
            conformal.raps(probs, u, penalty)  # type: ignore[arg-type]
    with pytest.raises(BayesVLMError, match="rank is -1"):
        conformal.raps(probs, u, 0.1, -1)
    with pytest.raises(BayesVLMError, match="calibration holds NaN"):
        conformal.p_values(torch.tensor([0.0, math.nan]), u)
    with pytest.raises(BayesVLMError, match="scores is list"):
        conformal.threshold([0.1], 0.1)  # type: ignore[arg-type]
