"""Image-text pairs to fit on and labelled images to tune on, from folders."""

from bayesvlm.data.images import SkippedImages, find_images
from bayesvlm.data.labelled import LabelledImages
from bayesvlm.data.pairs import PairFolder

__all__ = ["LabelledImages", "PairFolder", "SkippedImages", "find_images"]
