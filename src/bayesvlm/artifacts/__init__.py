"""Posteriors on disk and on the Hub: safetensors + json + model card, versioned, checked on load."""

from bayesvlm.artifacts.saved import PosteriorConfig, SavedPosterior

__all__ = ["PosteriorConfig", "SavedPosterior"]
