"""A small model whose towers differ in width, with a posterior, and an index of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from bayesvlm import BayesVLM, Features
    from bayesvlm.retrieval import Index

D, P, P_TEXT = 16, 24, 20


def draw(count: int, width: int, seed: int) -> Features:
    """So many random activations, of uneven length, so that variances differ."""
    from bayesvlm import Features

    generator = torch.Generator().manual_seed(seed)
    scale = torch.linspace(0.3, 2.0, count)[:, None]
    return Features(torch.randn(count, width, generator=generator) * scale + 0.2)


def model(seed: int = 0, covariance: str = "diagonal", tau: float = 30.0) -> BayesVLM:
    """Random projections with a posterior of random pairs."""
    from bayesvlm import BayesVLM

    pytest.importorskip("lancedb", reason="an index is kept in LanceDB (extra retrieval), which is not installed")
    generator = torch.Generator().manual_seed(seed)
    image, text = (torch.randn(D, width, generator=generator) / width**0.5 for width in (P, P_TEXT))
    vlm = BayesVLM.from_projections(image, text, math.log(20.0))
    vlm.fit([(draw(256, P, 100 + seed), draw(256, P_TEXT, 200 + seed))], negatives=256, progress=False)
    return vlm.replace(covariance=covariance, tau=tau)


@pytest.fixture(scope="session")
def vlm() -> BayesVLM:
    return model()


@pytest.fixture(scope="session")
def images() -> Features:
    return draw(60, P, 1)


@pytest.fixture(scope="session")
def texts() -> Features:
    return draw(9, P_TEXT, 2)


@pytest.fixture
def make(vlm: BayesVLM, images: Features, tmp_path: Path) -> Callable[..., Index]:
    """Makes an index of the images, called "item 0" and so on."""
    from bayesvlm.retrieval import Index

    def made(name: str = "index", count: int = len(images), **arguments: object) -> Index:
        index = Index.create(tmp_path / name, vlm)
        if count:
            index.add(images[:count], [f"item {place}" for place in range(count)], **arguments)  # type: ignore[arg-type]
        return index

    return made


@pytest.fixture(scope="session")
def emoji() -> BayesVLM:
    """A model of the world, with its encoders."""
    from bayesvlm import BayesVLM

    pytest.importorskip("lancedb", reason="an index is kept in LanceDB (extra retrieval), which is not installed")
    return BayesVLM.from_pretrained("emoji-clip")
