"""Labelled images to measure on, wherever they lie: folders, tables, shards, known data sets by name."""

from bayesvlm.data.labelled.folders import ImageFolder
from bayesvlm.data.labelled.known import KNOWN, Known
from bayesvlm.data.labelled.label_files import LabelRow, read_labels
from bayesvlm.data.labelled.listed import ListedImages
from bayesvlm.data.labelled.samples import LabelledSet, Sample
from bayesvlm.data.labelled.shards import LabelledShards
from bayesvlm.data.labelled.templates import read_templates, set_prompts

__all__ = [
    "KNOWN",
    "ImageFolder",
    "Known",
    "LabelRow",
    "LabelledSet",
    "LabelledShards",
    "ListedImages",
    "Sample",
    "read_labels",
    "read_templates",
    "set_prompts",
]
