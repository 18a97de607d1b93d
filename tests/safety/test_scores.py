"""Each score against its definition, in float64; float32 with its tolerance."""

from __future__ import annotations

import math

import pytest
import torch
from mpmath import mp, mpf
from scipy.special import logsumexp
from torch import Tensor

from bayesvlm import BayesVLMError
from bayesvlm.safety import scores


def cosines(count: int = 50, classes: int = 6, seed: int = 0) -> Tensor:
    return 2 * torch.rand(count, classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1


def test_each_is_its_definition() -> None:
    c = cosines()
    p = torch.softmax(3 * c, dim=1)
    torch.testing.assert_close(scores.msp(p), p.max(dim=1).values)
    torch.testing.assert_close(scores.entropy(p), (p * p.log()).sum(dim=1))
    torch.testing.assert_close(scores.mcm(c), torch.softmax(c, dim=1).max(dim=1).values)
    torch.testing.assert_close(scores.max_cosine(c), c.max(dim=1).values)
    for t in (1.0, 2.5):
        expected = torch.from_numpy(t * logsumexp(100 * c.numpy() / t, axis=1))
        torch.testing.assert_close(scores.energy(100 * c, t), expected)
    peak, negentropy, best = scores.softmax_scores(3 * c)
    torch.testing.assert_close(peak, scores.msp(p))
    torch.testing.assert_close(negentropy, scores.entropy(p))
    assert torch.equal(best, c.argmax(dim=1))
    for name in ("msp", "entropy"):
        single, double = getattr(scores, name)(p.float()), getattr(scores, name)(p)
        assert single.dtype == torch.float64
        torch.testing.assert_close(single, double, atol=2e-6, rtol=0)


def test_neglabel_is_the_mean_over_groups_of_the_share_of_known_names() -> None:
    known, negative = cosines(20, 4, 1) / 10, cosines(20, 7, 2) / 10
    for groups in (1, 2, 3):
        expected = torch.zeros(20, dtype=torch.float64)
        for group in range(groups):
            together = torch.cat([known, negative[:, group::groups]], dim=1)
            expected += torch.softmax(together / 0.01, dim=1)[:, :4].sum(dim=1) / groups
        torch.testing.assert_close(scores.neglabel(known, negative, groups), expected)
    torch.testing.assert_close(scores.neglabel(known, negative), scores.neglabel(known, negative, 1))
    many = cosines(20, 350, 3) / 10
    torch.testing.assert_close(scores.neglabel(known, many), scores.neglabel(known, many, 3))
    assert bool(((scores.neglabel(known, many) >= 0) & (scores.neglabel(known, many) <= 1)).all())


def test_sure_predictions_are_told_apart_in_single_precision() -> None:
    """Where the largest probability is 1 in float32, the rest is still known: against 40 digits."""
    mp.dps = 40
    gaps = [5.0, 20.0, 30.0, 60.0]
    logits = torch.tensor([[0.0, -gap, -gap - 1] for gap in gaps])
    peak, negentropy, _ = scores.softmax_scores(logits)
    assert bool((peak[:3].diff() > 0).all())
    for row, gap in enumerate(gaps):
        terms = [mpf(1), mp.exp(-gap), mp.exp(-gap - 1)]
        probs = [term / sum(terms) for term in terms]
        assert float(1 - peak[row]) == pytest.approx(float(1 - probs[0]), rel=1e-5, abs=2e-16)
        assert float(-negentropy[row]) == pytest.approx(float(-sum(p * mp.log(p) for p in probs)), rel=1e-5)


def test_far_off_logits_and_no_rows() -> None:
    peak, negentropy, best = scores.softmax_scores(torch.tensor([[0.0, -1e30], [5.0, 5.0]]))
    assert peak.tolist() == [1.0, 0.5]
    assert negentropy.tolist() == pytest.approx([0.0, -math.log(2)], abs=1e-7)
    assert best[0] == 0
    assert [len(part) for part in scores.softmax_scores(torch.zeros(0, 3))] == [0, 0, 0]
    one, _, _ = scores.softmax_scores(torch.randn(4, 1))
    assert one.tolist() == [1.0] * 4


def test_blocks_change_nothing() -> None:
    logits = 5 * cosines(2**11, 300)  # more than a block
    whole = torch.softmax(logits, dim=1)
    peak, negentropy, best = scores.softmax_scores(logits)
    torch.testing.assert_close(peak, whole.amax(dim=1))
    torch.testing.assert_close(negentropy, scores.entropy(whole))
    assert torch.equal(best, logits.argmax(dim=1))


def test_the_least_alike_words_by_their_high_quantile() -> None:
    found = cosines(40, 30)
    quantiles = [sorted(row)[round(0.9 * 29)] for row in found.tolist()]
    close = scores.least_alike(found, share=0.25, quantile=round(0.9 * 29) / 29).tolist()
    assert close == sorted(range(40), key=quantiles.__getitem__)[:10]
    assert len(scores.least_alike(found, share=0.001)) == 1
    with pytest.raises(BayesVLMError, match="share=0"):
        scores.least_alike(found, share=0)


def test_what_it_refuses() -> None:
    with pytest.raises(BayesVLMError, match="temperature="):
        scores.energy(cosines(), 0)
    with pytest.raises(BayesVLMError, match="add up to 1"):
        scores.msp(cosines())
    with pytest.raises(BayesVLMError, match="at least one negative"):
        scores.neglabel(cosines(3, 2), torch.zeros(3, 0))
    with pytest.raises(BayesVLMError, match="groups is 0"):
        scores.neglabel(cosines(3, 2), cosines(3, 2), 0)
