"""The interfaces people already have: transformers' pipeline, scikit-learn's estimators, ONNX."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for editors and type checkers; at run time `__getattr__` does the same, later
    from bayesvlm.serving.estimator import BayesianZeroShotClassifier as BayesianZeroShotClassifier
    from bayesvlm.serving.export import Exported as Exported
    from bayesvlm.serving.export import export_model as export_model
    from bayesvlm.serving.exported import ExportedModel as ExportedModel
    from bayesvlm.serving.exported import load_exported as load_exported
    from bayesvlm.serving.zero_shot import ZeroShotImageClassificationPipeline as ZeroShotImageClassificationPipeline
    from bayesvlm.serving.zero_shot import pipeline as pipeline

_HOME = {
    "BayesianZeroShotClassifier": "bayesvlm.serving.estimator",
    "Exported": "bayesvlm.serving.export",
    "ExportedModel": "bayesvlm.serving.exported",
    "ZeroShotImageClassificationPipeline": "bayesvlm.serving.zero_shot",
    "export_model": "bayesvlm.serving.export",
    "load_exported": "bayesvlm.serving.exported",
    "pipeline": "bayesvlm.serving.zero_shot",
}
"""The public names, and where each lives: some need an extra that the others do without."""

_EXTRAS = {"BayesianZeroShotClassifier": "sklearn"}

__all__ = [name for name in _HOME if name not in _EXTRAS or find_spec(_EXTRAS[name])]


def __dir__() -> list[str]:
    return [*__all__, "__doc__"]


def __getattr__(name: str) -> object:
    """Import what a name needs when it is first asked for."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
