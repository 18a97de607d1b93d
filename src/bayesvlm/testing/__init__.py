"""For people who add a model: tiny random checkpoints in the published layouts, and `check_adapter`."""

from bayesvlm.testing.check import AdapterReport, check_adapter
from bayesvlm.testing.tiny import save_tiny_clip, save_tiny_siglip, save_tiny_siglip2

__all__ = ["AdapterReport", "check_adapter", "save_tiny_clip", "save_tiny_siglip", "save_tiny_siglip2"]
