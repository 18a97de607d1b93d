"""Search that knows its doubt: an index with intervals, cut-offs that mean something, near-duplicates.

    index = Index.create("index/", vlm)
    index.add(images, ids)
    for hit in index.search("a red car", k=10):
        hit.id, hit.mean, hit.std, hit.interval, hit.p_best

Needs the extra `retrieval` (LanceDB).
"""

from bayesvlm.retrieval.duplicates import DuplicateGroup, Duplicates, NearCopy, near_duplicates
from bayesvlm.retrieval.hits import Hit, Hits
from bayesvlm.retrieval.index import Added, Index
from bayesvlm.retrieval.matching import Calibration
from bayesvlm.retrieval.syncing import Synced, sync

__all__ = [
    "Added",
    "Calibration",
    "DuplicateGroup",
    "Duplicates",
    "Hit",
    "Hits",
    "Index",
    "NearCopy",
    "Synced",
    "near_duplicates",
    "sync",
]
