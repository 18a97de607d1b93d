"""Labelled images to measure on, wherever they lie: folders, shards, known data sets by name."""

from bayesvlm.data.labelled.folders import ImageFolder
from bayesvlm.data.labelled.known import KNOWN, Known
from bayesvlm.data.labelled.samples import LabelledSet, Sample
from bayesvlm.data.labelled.shards import LabelledShards
from bayesvlm.data.labelled.templates import read_templates, set_prompts

__all__ = [
    "KNOWN",
    "ImageFolder",
    "Known",
    "LabelledSet",
    "LabelledShards",
    "Sample",
    "read_templates",
    "set_prompts",
]
