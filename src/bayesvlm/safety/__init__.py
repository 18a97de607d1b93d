"""Decisions at a chosen rate: what is unfamiliar, which classes it may be, when to answer, and with which labels."""

from bayesvlm.safety.detector import Detection, Detector
from bayesvlm.safety.familiar import SCORES, Predictive, familiarities, familiarity
from bayesvlm.safety.negatives import mine_negatives
from bayesvlm.safety.prediction_sets import PredictionSets
from bayesvlm.safety.selector import Selection, Selector
from bayesvlm.safety.splitting import halves
from bayesvlm.safety.thresholds import LabelThresholds

__all__ = [
    "SCORES",
    "Detection",
    "Detector",
    "LabelThresholds",
    "PredictionSets",
    "Predictive",
    "Selection",
    "Selector",
    "familiarities",
    "familiarity",
    "halves",
    "mine_negatives",
]
