"""Synthetic embeddings with the cosines of a real CLIP, under the name that scripts know: the library has them."""

from bayesvlm.experiments.bench.generated import clip_like

__all__ = ["clip_like"]
