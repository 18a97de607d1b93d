"""Image-text pairs to fit on, labelled images to measure on, and the cache of their features."""

from bayesvlm.data.labelled import ImageFolder, LabelledSet, LabelledShards, Sample, decoded, open_labelled
from bayesvlm.data.pairs import PairDataset, PairFolder, PairShards, open_pairs
from bayesvlm.images.files import SkippedImages, find_images

__all__ = [
    "ImageFolder",
    "LabelledSet",
    "LabelledShards",
    "PairDataset",
    "PairFolder",
    "PairShards",
    "Sample",
    "SkippedImages",
    "decoded",
    "find_images",
    "open_labelled",
    "open_pairs",
]
