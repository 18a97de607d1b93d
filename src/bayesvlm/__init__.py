"""Post-hoc probabilistic vision-language models: CLIP and SigLIP that know what they do not know."""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bayesvlm.core.errors import BayesVLMError
    from bayesvlm.core.features import Features
    from bayesvlm.testing.check import check_adapter
    from bayesvlm.vlm import BayesVLM

__all__ = ["BayesVLM", "BayesVLMError", "Features", "check_adapter"]
try:
    __version__ = version("bayesvlm")
except PackageNotFoundError:  # a source tree on the path, never installed
    __version__ = "0+source"

_HOME = {
    "BayesVLM": "bayesvlm.vlm",
    "BayesVLMError": "bayesvlm.core.errors",
    "Features": "bayesvlm.core.features",
    "check_adapter": "bayesvlm.testing.check",
}


def __dir__() -> list[str]:
    return [*__all__, "__version__", "__doc__"]


def __getattr__(name: str) -> object:
    """Import torch and transformers when they are first needed: `bayesvlm --help` should not wait for them."""
    if name == "world":
        from bayesvlm.embedded import world

        return world("bayesvlm.world")
    if name not in _HOME:
        raise AttributeError(f"module 'bayesvlm' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
