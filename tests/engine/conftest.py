"""One Ray for all tests of a session, on two processors, in a folder that goes with it."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """Ray, which this process is connected to."""
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # sockets lie in it, whose paths must be short
    with pytest.MonkeyPatch.context() as patch:
        tests = str(Path(__file__).parents[1])  # workers import held_pairs
        patch.setenv("RAY_worker_niceness", "0")  # else other tests on the same processors come first
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH")])))
        _start(ray, folder)
    try:
        yield
    finally:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _start(ray: Any, folder: Path) -> None:
    ray.init(
        address="local",
        num_cpus=2,
        object_store_memory=150 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=str(folder),
    )


@pytest.fixture(scope="session")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tar shards, with images among them that cannot be read."""
    from held_pairs import write_shards

    return write_shards(tmp_path_factory.mktemp("pairs") / "shards")
