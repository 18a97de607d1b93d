"""Images with the texts that ask for them, to measure a search on: published sets, tables, the world's names."""

from bayesvlm.data.captions.sets import CaptionSet
from bayesvlm.data.captions.source import CaptionSource

__all__ = ["CaptionSet", "CaptionSource"]
