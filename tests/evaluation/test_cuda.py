"""The same numbers on a GPU, with the labels left on the CPU."""

from __future__ import annotations

import pytest
import torch

from bayesvlm.evaluation import Outcomes, aurc, auroc, bootstrap_interval, fit_temperature, fpr95, paired_t_test

from .references import predictions

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
    assert aurc(uncertainty.cuda(), outcomes.correct) == pytest.approx(aurc(uncertainty, outcomes.correct), rel=1e-12)
    for detect in (auroc, fpr95):
        here = detect(uncertainty, ~outcomes.correct)
        assert detect(uncertainty.cuda(), ~outcomes.correct) == pytest.approx(here, rel=1e-12)
    logits = probs.log()
    assert fit_temperature(logits.cuda(), labels).value == pytest.approx(
        fit_temperature(logits, labels).value, rel=1e-10
    )
    there, here = paired_t_test(outcomes.nll.cuda(), uncertainty), paired_t_test(outcomes.nll, uncertainty)
    assert there.p == pytest.approx(here.p, rel=1e-8)
