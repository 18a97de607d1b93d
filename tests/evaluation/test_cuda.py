"""The same numbers on a GPU, with the labels left on the CPU."""

from __future__ import annotations

import pytest
import torch

from bayesvlm.evaluation import (
    ICPE,
    Outcomes,
    augrc,
    aupr,
    aurc,
    auroc,
    auroc_interval,
    bootstrap_interval,
    coverage_at_risk,
    delong,
    e_aurc,
    fit_temperature,
    fpr95,
    paired_bootstrap,
    paired_t_test,
    raised_temperature,
    rank_interval,
)

from .references import generator, predictions

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")

BATCHED = [
    Outcomes.accuracy,
    Outcomes.nlpd,
    Outcomes.brier,
    Outcomes.balanced_accuracy,
    Outcomes.ece,
    Outcomes.adaptive_ece,
]


def test_metrics_and_intervals_equal_those_of_the_cpu() -> None:
    probs, labels = predictions(500, 10, seed=0, dtype=torch.float32)
    for metric in BATCHED:
        there, here = metric(Outcomes.of(probs.cuda(), labels)), metric(Outcomes.of(probs, labels))
        assert float(there) == pytest.approx(float(here), rel=1e-12), metric.__name__
        drawn = [bootstrap_interval(metric, given, labels, resamples=100) for given in (probs.cuda(), probs)]
        assert drawn[0] == pytest.approx(drawn[1], rel=1e-12), metric.__name__


def test_ranks_temperatures_and_tests_equal_those_of_the_cpu() -> None:
    probs, labels = predictions(500, 10, seed=1)
    outcomes, uncertainty = Outcomes.of(probs, labels), 1 - probs.max(dim=1).values
    for area in (aurc, e_aurc, augrc):
        here = area(uncertainty, outcomes.correct)
        assert area(uncertainty.cuda(), outcomes.correct) == pytest.approx(here, rel=1e-12)
    there, here = (coverage_at_risk(doubt, outcomes.correct, 0.3) for doubt in (uncertainty.cuda(), uncertainty))
    assert there == here
    for detect in (auroc, fpr95, aupr):
        here = detect(uncertainty, ~outcomes.correct)
        assert detect(uncertainty.cuda(), ~outcomes.correct) == pytest.approx(here, rel=1e-12)
    logits = probs.log()
    assert fit_temperature(logits.cuda(), labels).value == pytest.approx(
        fit_temperature(logits, labels).value, rel=1e-10
    )
    there, here = (raised_temperature(given, labels).value for given in (logits.cuda(), logits))
    assert there == pytest.approx(here, rel=1e-9)
    there, here = paired_t_test(outcomes.nll.cuda(), uncertainty), paired_t_test(outcomes.nll, uncertainty)
    assert there.p == pytest.approx(here.p, rel=1e-8)


def test_rankings_are_compared_as_on_the_cpu() -> None:
    a, b = torch.randn(2, 300, generator=generator(2), dtype=torch.float64)
    wrong = torch.rand(300, generator=generator(3)) < 0.3
    a, b = ((column + wrong).mul(4).round() for column in (a, b))
    for metric in (auroc, fpr95, aupr):
        there, here = (rank_interval(metric, scores, wrong, 200) for scores in (a.cuda(), a))
        assert there == pytest.approx(here, abs=1e-12), metric.__name__
        pair, same = (paired_bootstrap(metric, *scores, wrong, 200) for scores in ((a.cuda(), b.cuda()), (a, b)))
        assert (pair.low, pair.high, pair.p) == pytest.approx((same.low, same.high, same.p), abs=1e-12)
    assert auroc_interval(a.cuda(), wrong) == pytest.approx(auroc_interval(a, wrong), abs=1e-12)
    assert delong(a.cuda(), b.cuda(), wrong).p == pytest.approx(delong(a, b, wrong).p, rel=1e-9)


def test_icpe_equals_that_of_the_cpu() -> None:
    features = torch.randn(120, 8, generator=generator(4), dtype=torch.float64)
    labels = torch.arange(120) % 4
    confidence = torch.rand(120, generator=generator(5))
    there, here = (ICPE.fit(given, labels, 4).score(given, labels, confidence) for given in (features.cuda(), features))
    torch.testing.assert_close(there.cpu(), here, rtol=1e-9, atol=1e-9)
