"""What of a cluster each worker gets, and what it can never have."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time

import pytest

from bayesvlm import BayesVLMError
from bayesvlm.engine.cluster import DECODE_CPUS, Node, RayOptions, Resources, cluster, on_workers, share

TWO_CORES = [Node(2, 0)]
GPU_NODES = [Node(16, 8), Node(16, 8), Node(64, 0)]


def left(nodes: list[Node], found: Resources) -> float:
    return sum(node.cpus for node in nodes) - found.actors * found.cpus


@pytest.mark.parametrize(
    ("nodes", "actors", "cpus", "gpus"),
    [
        (TWO_CORES, 2, 0.5, 0),
        ([Node(1, 0)], 1, 0.5, 0),
        ([Node(64, 0)], 8, 4, 0),
        (GPU_NODES, 16, 0.5, 1),
        ([Node(4, 0), Node(4, 0)], 8, 0.5, 0),
    ],
)
def test_the_default_leaves_at_least_half_of_the_processors_to_decoding(
    nodes: list[Node], actors: int, cpus: float, gpus: float
) -> None:
    found = share(nodes, RayOptions())
    assert (found.actors, found.cpus, found.gpus) == (actors, cpus, gpus)
    assert left(nodes, found) >= sum(node.cpus for node in nodes) / 2
    assert found.decode_cpus >= DECODE_CPUS
    assert found.ahead >= 2


def test_what_is_asked_for_is_given_where_it_fits() -> None:
    assert share(TWO_CORES, RayOptions(actors=1)).actors == 1
    assert share(TWO_CORES, RayOptions(actors=3)).actors == 3
    found = share(GPU_NODES, RayOptions(actors=4, gpus_per_actor=2, cpus_per_actor=2))
    assert (found.actors, found.cpus, found.gpus, found.device) == (4, 2, 2, "cuda")
    found = share(GPU_NODES, RayOptions(gpus_per_actor=0))
    assert (found.gpus, found.device) == (0, "cpu")
    assert share(GPU_NODES, RayOptions(gpus_per_actor=0.5)).actors == 32


@pytest.mark.parametrize(
    ("nodes", "options", "sentence"),
    [
        (TWO_CORES, RayOptions(gpus_per_actor=1), "asks for 0.5 CPUs and 1 GPUs, and no node .* nodes of 2 CPUs"),
        (TWO_CORES, RayOptions(cpus_per_actor=3), "asks for 3 CPUs, and no node"),
        (TWO_CORES, RayOptions(actors=5), "5 actors of 0.5 CPUs .* holds 4 at most"),
        (TWO_CORES, RayOptions(actors=2, cpus_per_actor=1), "leave 0 CPUs of the cluster to decode"),
        (TWO_CORES, RayOptions(actors=4), "leave 0 CPUs"),
        ([Node(2, 0), Node(2, 0)], RayOptions(actors=2, cpus_per_actor=4), "no node of the cluster has them"),
        ([], RayOptions(), "no node at all"),
    ],
)
def test_what_can_never_be_scheduled_is_refused(nodes: list[Node], options: RayOptions, sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        share(nodes, options)


@pytest.mark.parametrize(
    "options", [{"actors": 0}, {"gpus_per_actor": -1}, {"gpus_per_actor": 1.5}, {"cpus_per_actor": 0}]
)
def test_what_ray_does_not_take_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(BayesVLMError, match=f"{next(iter(options))} is "):
        RayOptions(**options)  # type: ignore[arg-type]


def test_without_ray_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "ray" else found(name))
    with pytest.raises(BayesVLMError, match=r"pip install 'bayesvlm\[ray\]'"), cluster(RayOptions()):
        pytest.fail("entered")


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ("ModuleNotFoundError: No module named 'bayesvlm'\n", "has no module 'bayesvlm'; install the same packages"),
        (
            "bayesvlm.core.errors.BayesVLMError: The device 'cuda' cannot be used here; try 'cpu'.\n  more",
            r"^On a worker of the cluster: The device 'cuda' cannot be used here; try 'cpu'.$",
        ),
    ],
)
def test_what_workers_lack_is_said_in_a_sentence(told: str, sentence: str) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    with pytest.raises(BayesVLMError, match=sentence), on_workers():
        raise ray.exceptions.RaySystemError(told)


def test_a_process_that_dies_each_time_is_said_in_a_sentence_and_other_failures_are_not_hidden() -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    with pytest.raises(BayesVLMError, match="died each time its work was tried"), on_workers():
        raise ray.exceptions.WorkerCrashedError
    with pytest.raises(ray.exceptions.GetTimeoutError), on_workers():
        raise ray.exceptions.GetTimeoutError("a bug of ours")
    with pytest.raises(ZeroDivisionError), on_workers():
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("address", "why"),
    [("127.0.0.1:1", "refused"), ("nonsense", "expected auto, or a host and a port"), ("a:b", "expected auto")],
)
def test_an_address_where_no_cluster_is_is_refused_at_once(address: str, why: str) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    begun = time.monotonic()
    with (
        pytest.raises(BayesVLMError, match=rf"no Ray cluster .* at --address {address} \(.*{why}.*`ray start --head`"),
        cluster(RayOptions(address=address)),
    ):
        pytest.fail("connected")
    assert time.monotonic() - begun < 60


def test_nothing_imports_ray_before_it_is_asked_for() -> None:
    code = (
        "import sys, bayesvlm, bayesvlm.engine, bayesvlm.cli, bayesvlm.experiments.feature_store\n"
        "sys.exit('ray' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
