"""Vision-language models, split at the last linear layer of each tower."""

from bayesvlm.models.adapter import Adapter
from bayesvlm.models.loading import load_adapter, resolve_device

__all__ = ["Adapter", "load_adapter", "resolve_device"]
