"""Image-text pairs to fit on, labelled images and captions to measure on, and the cache of their features.

`resolve` is the door: a name, to where the data is and how it is opened.
"""

from bayesvlm.data.captions import CaptionSet
from bayesvlm.data.labelled import ImageFolder, LabelledSet, LabelledShards, Sample
from bayesvlm.data.pairs import PairDataset, PairFolder, PairSet, PairShards
from bayesvlm.data.resolution import resolve
from bayesvlm.data.sources import Source
from bayesvlm.images.files import SkippedImages, find_images

__all__ = [
    "CaptionSet",
    "ImageFolder",
    "LabelledSet",
    "LabelledShards",
    "PairDataset",
    "PairFolder",
    "PairSet",
    "PairShards",
    "Sample",
    "SkippedImages",
    "Source",
    "find_images",
    "resolve",
]
