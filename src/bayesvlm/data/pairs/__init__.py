"""Image-text pairs to fit on: folders with captions, img2dataset's shards, published captions files, HF data sets."""

from bayesvlm.data.pairs.batches import Pair, PairSet
from bayesvlm.data.pairs.datasets import PairDataset
from bayesvlm.data.pairs.folders import PairFolder
from bayesvlm.data.pairs.plan import Group, PairPlan
from bayesvlm.data.pairs.shards import PairShards

__all__ = ["Group", "Pair", "PairDataset", "PairFolder", "PairPlan", "PairSet", "PairShards"]
