"""Vision-language models, split at the last linear layer of each tower."""

from bayesvlm.models.adapter import Adapter
from bayesvlm.models.check import AdapterReport, check_adapter
from bayesvlm.models.loading import load_adapter, resolve_device

__all__ = ["Adapter", "AdapterReport", "check_adapter", "load_adapter", "resolve_device"]
