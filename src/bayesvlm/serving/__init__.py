"""The interfaces people already have: transformers' pipeline, scikit-learn's estimators, ONNX."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for editors and type checkers; at run time `__getattr__` does the same, later
    from bayesvlm.serving.estimator import BayesianZeroShotClassifier as BayesianZeroShotClassifier

_HOME = {"BayesianZeroShotClassifier": "bayesvlm.serving.estimator"}
"""The public names, and where each lives: each needs an extra that the others do without."""

__all__ = [*(["BayesianZeroShotClassifier"] if find_spec("sklearn") else [])]


def __dir__() -> list[str]:
    return [*__all__, "__doc__"]


def __getattr__(name: str) -> object:
    """Import what a name needs when it is first asked for."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
