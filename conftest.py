"""Modules whose documentation cannot be tested where what they import is not installed."""

from importlib.util import find_spec

collect_ignore = [] if find_spec("triton") else ["src/bayesvlm/core/kernels.py"]
