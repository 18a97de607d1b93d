"""Decisions at a chosen rate: thresholds that keep a promise."""

from bayesvlm.safety.thresholds import LabelThresholds

__all__ = ["LabelThresholds"]
