"""Image-text pairs to fit on and labelled images to measure on: folders, shards, data sets by name."""

from bayesvlm.data.folders import ImageFolder
from bayesvlm.data.images import SkippedImages, find_images
from bayesvlm.data.labelled import LabelledSet, Sample, decoded
from bayesvlm.data.pairs import PairFolder
from bayesvlm.data.shards import LabelledShards

__all__ = [
    "ImageFolder",
    "LabelledSet",
    "LabelledShards",
    "PairFolder",
    "Sample",
    "SkippedImages",
    "decoded",
    "find_images",
]
