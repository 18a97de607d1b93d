"""How good predictions are: proper scores, calibration, selective prediction, temperature scaling, significance.

And a rival to measure uncertainties against: ICPE.

Functions of probabilities [N, C] and labels [N], or of one number per input. They know nothing of models, and judge a
competitor as they judge us.
"""

from bayesvlm.evaluation.icpe import ICPE
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
from bayesvlm.evaluation.ranking import (
    DeLong,
    PairedBootstrap,
    auroc_interval,
    delong,
    paired_bootstrap,
    rank_interval,
)
from bayesvlm.evaluation.relevance import HeldOut, Relevance, hold_out
from bayesvlm.evaluation.retrieval import (
    AreaDifference,
    Detection,
    Doubted,
    Ranked,
    compare_areas,
    detection,
    flat_cut_off,
    risk_coverage_area,
)
from bayesvlm.evaluation.selective import (
    RiskCoverage,
    augrc,
    aupr,
    aurc,
    auroc,
    coverage_at_risk,
    e_aurc,
    fpr95,
    risk_coverage,
)
from bayesvlm.evaluation.significance import PairedTest, not_worse_than_best, paired_t_test
from bayesvlm.evaluation.temperature import Temperature, apply_temperature, fit_temperature, raised_temperature
from bayesvlm.evaluation.voting import Vote, vote

__all__ = [
    "ICPE",
    "AreaDifference",
    "DeLong",
    "Detection",
    "Doubted",
    "Estimate",
    "HeldOut",
    "Outcomes",
    "PairedBootstrap",
    "PairedTest",
    "Ranked",
    "Relevance",
    "Reliability",
    "RiskCoverage",
    "Temperature",
    "Vote",
    "accuracy",
    "adaptive_ece",
    "apply_temperature",
    "augrc",
    "aupr",
    "aurc",
    "auroc",
    "auroc_interval",
    "balanced_accuracy",
    "bootstrap_interval",
    "brier",
    "compare_areas",
    "coverage_at_risk",
    "delong",
    "detection",
    "e_aurc",
    "ece",
    "fit_temperature",
    "flat_cut_off",
    "fpr95",
    "hold_out",
    "nlpd",
    "not_worse_than_best",
    "outcomes_interval",
    "paired_bootstrap",
    "paired_t_test",
    "raised_temperature",
    "rank_interval",
    "reliability",
    "risk_coverage",
    "risk_coverage_area",
    "vote",
]
