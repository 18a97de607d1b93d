"""An environment in which open_clip can be imported, and its tiny models; without the package, no tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

from openclip.tiny import CONFIGURATIONS, PIXELS, save_hf_text, save_tiny

if importlib.util.find_spec("open_clip") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        # The published torchvision looks for operators of its CUDA build; on a CPU build of torch they are missing.
        # Nothing here calls them: declared, they let the package be imported.
        operators = torch.library.Library("torchvision", "FRAGMENT")
        for operator in ("nms", "qnms"):
            operators.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        for module in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[module]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("open_clip")
    made = {
        name: save_tiny(root / name, configuration, PIXELS.get(name)) for name, configuration in CONFIGURATIONS.items()
    }
    return made | {"hf-text": save_hf_text(root)}
