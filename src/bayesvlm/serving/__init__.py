"""The interfaces people already have: transformers' pipeline, scikit-learn's estimators, ONNX."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # for editors and type checkers; at run time `__getattr__` does the same, later
    from bayesvlm.serving.export import Exported as Exported
    from bayesvlm.serving.export import export_model as export_model
    from bayesvlm.serving.exported import ExportedModel as ExportedModel
    from bayesvlm.serving.exported import load_exported as load_exported

_HOME = {
    "Exported": "bayesvlm.serving.export",
    "ExportedModel": "bayesvlm.serving.exported",
    "export_model": "bayesvlm.serving.export",
    "load_exported": "bayesvlm.serving.exported",
}
"""The public names, and where each lives."""

__all__ = [*_HOME]


def __dir__() -> list[str]:
    return [*__all__, "__doc__"]


def __getattr__(name: str) -> object:
    """Import what is asked for when it is: scikit-learn and ONNX are extras, and torch takes seconds."""
    if name not in _HOME:
        raise AttributeError(f"module 'bayesvlm.serving' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
