"""How good predictions are: proper scores, calibration, selective prediction, temperature scaling, significance.

Functions of probabilities [N, C] and labels [N], or of one number per input. They know nothing of models, and judge a
competitor as they judge us.
"""

from bayesvlm.evaluation.metrics import (
    Estimate,
    accuracy,
    adaptive_ece,
    balanced_accuracy,
    bootstrap_interval,
    brier,
    ece,
    nlpd,
    outcomes_interval,
    reliability,
)
from bayesvlm.evaluation.outcomes import Outcomes, Reliability
from bayesvlm.evaluation.selective import RiskCoverage, aurc, auroc, fpr95, risk_coverage
from bayesvlm.evaluation.significance import PairedTest, not_worse_than_best, paired_t_test
from bayesvlm.evaluation.temperature import Temperature, apply_temperature, fit_temperature
from bayesvlm.evaluation.voting import Vote, vote

__all__ = [
    "Estimate",
    "Outcomes",
    "PairedTest",
    "Reliability",
    "RiskCoverage",
    "Temperature",
    "Vote",
    "accuracy",
    "adaptive_ece",
    "apply_temperature",
    "aurc",
    "auroc",
    "balanced_accuracy",
    "bootstrap_interval",
    "brier",
    "ece",
    "fit_temperature",
    "fpr95",
    "nlpd",
    "not_worse_than_best",
    "outcomes_interval",
    "paired_t_test",
    "reliability",
    "risk_coverage",
    "vote",
]
