"""Post-hoc probabilistic vision-language models: CLIP and SigLIP that know what they do not know."""

import sys
import warnings
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for editors and type checkers; at run time `__getattr__` does the same, later
    from bayesvlm.core.cosine import CosineMoments as CosineMoments
    from bayesvlm.core.embeddings import GaussianEmbeddings as GaussianEmbeddings
    from bayesvlm.core.errors import BayesVLMError as BayesVLMError
    from bayesvlm.core.features import Features as Features
    from bayesvlm.core.prediction import Prediction as Prediction
    from bayesvlm.core.settings import Settings as Settings
    from bayesvlm.testing.check import check_adapter as check_adapter
    from bayesvlm.vlm import BayesVLM as BayesVLM

_HOME = {
    "BayesVLM": "bayesvlm.vlm",
    "BayesVLMError": "bayesvlm.core.errors",
    "CosineMoments": "bayesvlm.core.cosine",
    "Features": "bayesvlm.core.features",
    "GaussianEmbeddings": "bayesvlm.core.embeddings",
    "Prediction": "bayesvlm.core.prediction",
    "Settings": "bayesvlm.core.settings",
    "check_adapter": "bayesvlm.testing.check",
}
"""The public names, and where each lives."""

__all__ = [*_HOME, *(["world"] if find_spec("bayesvlm_world") else [])]
try:
    __version__ = version("bayesvlm")
except PackageNotFoundError:  # a source tree on the path, never installed
    __version__ = "0+source"

if "ipykernel.zmqshell" in sys.modules:
    # A notebook, where tqdm.auto, by which huggingface_hub draws its bars, takes plain ones if there are no ipywidgets.
    # That needs no warning.
    with warnings.catch_warnings(), suppress(ImportError):
        warnings.filterwarnings("ignore", "IProgress not found")
        import_module("tqdm.auto")


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
