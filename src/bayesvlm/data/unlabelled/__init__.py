"""Images whose labels are not asked for: what a detector is calibrated on or looks at, and sets of unknown things."""

from bayesvlm.data.unlabelled.collection import ImageCollection
from bayesvlm.data.unlabelled.known import OUT_SETS, OutSet
from bayesvlm.data.unlabelled.source import ImageSource

__all__ = ["OUT_SETS", "ImageCollection", "ImageSource", "OutSet"]
