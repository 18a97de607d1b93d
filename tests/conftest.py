"""Settings every test shares, made before torch is imported."""

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # workers share the cores
# Some virtual machines announce AMX and then trap on it; oneDNN reads this at its first bfloat16 product.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


pytest_plugins = ["checkpoints", "command_line"]


@pytest.fixture(autouse=True, scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Features go to a folder of the tests' own, not to the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BAYESVLM_CACHE", str(tmp_path_factory.mktemp("features")))
        yield
