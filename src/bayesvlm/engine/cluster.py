"""A Ray cluster to work on: the one that is there, or one of this machine alone; and what of it each worker gets."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from bayesvlm.core.errors import BayesVLMError, check_count, first_line

DECODE_CPUS = 0.25  # the least that a task which decodes asks for
_ACTOR_CPUS = 0.5  # of an actor that drives a GPU, or that has one of a few cores: what is left decodes
_MANY_CORES = 8  # on a node without GPUs, from which on an actor has several
_SEVERAL = 4.0
_BATCHES_AHEAD = 16  # of ready pixels that wait for one actor at most
_TRIES = 20  # of work whose process dies each time: nodes may be lost as often, work that no process survives ends
_PATIENCE = 10  # seconds, for the machine at an address to answer
_ROUNDING = 1e-9


@dataclass(frozen=True)
class RayOptions:
    """What a caller asks of a cluster.

    Args:
        address: of a running cluster, "auto" for the one this machine belongs to; None takes the one that this process
            is connected to, else the one in $RAY_ADDRESS, else starts Ray on this machine and ends it again.
        actors: how many processes hold the model; None takes as many as fit.
        gpus_per_actor: None takes one where the cluster has GPUs, else none.
        cpus_per_actor: None leaves at least half of the processors to decoding.
    """

    address: str | None = None
    actors: int | None = None
    gpus_per_actor: float | None = None
    cpus_per_actor: float | None = None

    def __post_init__(self) -> None:
        if self.actors is not None:
            check_count("actors", self.actors)
        for name, least in (("gpus_per_actor", 0.0), ("cpus_per_actor", 0.01)):
            value = getattr(self, name)
            if value is not None and not (least <= value < 1 or (value >= 1 and float(value).is_integer())):
                raise BayesVLMError(
                    f"{name} is {value}; Ray takes a share from {least:g} to 1 or a whole number, such as 0.5 or 2."
                )


@dataclass(frozen=True)
class Node:
    """What a machine of the cluster has."""

    cpus: float
    gpus: float


@dataclass(frozen=True)
class Resources:
    """How the work is spread.

    Args:
        actors: processes that hold the model.
        cpus, gpus: what each of them asks for.
        decode_cpus: what a task that decodes asks for.
        ahead: batches that are decoded, or being decoded, before an actor takes them.
    """

    actors: int
    cpus: float
    gpus: float
    decode_cpus: float = DECODE_CPUS
    ahead: int = 4

    @property
    def device(self) -> str:
        """Where the actors compute."""
        return "cuda" if self.gpus else "cpu"

    @property
    def of_actor(self) -> dict[str, float]:
        """What Ray is told of an actor. One whose process or node dies is replaced, and does the same work again."""
        return {"num_cpus": self.cpus, "num_gpus": self.gpus, "max_restarts": -1, "max_task_retries": _TRIES}

    @property
    def in_all(self) -> tuple[float, float]:
        """CPUs and GPUs that have to be free before everything runs."""
        return self.actors * self.cpus + self.decode_cpus, self.actors * self.gpus


def share(nodes: Sequence[Node], options: RayOptions) -> Resources:
    """How many actors of what size the nodes hold, with something left for decoding.

    Raises:
        BayesVLMError: where the cluster can never hold what is asked for. Ray itself would wait for it without end.
    """
    gpus = options.gpus_per_actor
    if gpus is None:
        gpus = 1.0 if any(node.gpus >= 1 for node in nodes) else 0.0
    largest = max((node.cpus for node in nodes if node.gpus >= gpus), default=0.0)
    cpus = options.cpus_per_actor
    if cpus is None:
        cpus = _ACTOR_CPUS if gpus or largest < _MANY_CORES else _SEVERAL
    asked = f"{cpus:g} CPUs and {gpus:g} GPUs" if gpus else f"{cpus:g} CPUs"
    room = [_fitting(node, cpus, gpus) for node in nodes]
    if not any(room):
        has = ", ".join(sorted({f"{node.cpus:g} CPUs and {node.gpus:g} GPUs" for node in nodes})) or "no node at all"
        raise BayesVLMError(
            f"An actor asks for {asked}, and no node of the cluster has them (there are nodes of {has}); lower "
            "--cpus-per-actor or --gpus-per-actor, or add such a node first."
        )
    sharing = [_fitting(Node(node.cpus / 2, node.gpus), cpus, gpus) for node in nodes]  # half of each node decodes
    actors = options.actors or max(1, sum(sharing))
    if actors > sum(room):
        raise BayesVLMError(
            f"{actors} actors of {asked} were asked for, and the cluster holds {sum(room)} at most; lower --actors, "
            "--cpus-per-actor or --gpus-per-actor."
        )
    free = sum(node.cpus for node in nodes) - actors * cpus
    if free < DECODE_CPUS - _ROUNDING:
        raise BayesVLMError(
            f"{actors} actors of {asked} leave {max(free, 0):g} CPUs of the cluster to decode images, which takes at "
            f"least {DECODE_CPUS:g}; lower --actors or --cpus-per-actor."
        )
    decode = 1.0 if free >= 2 * actors else DECODE_CPUS
    return Resources(actors, cpus, gpus, decode, max(2, min(_BATCHES_AHEAD, round(free / actors / decode) + 1)))


def _fitting(node: Node, cpus: float, gpus: float) -> int:
    """How many actors a node holds."""
    by_cpu = int(node.cpus / cpus + _ROUNDING)
    return min(by_cpu, int(node.gpus / gpus + _ROUNDING)) if gpus else by_cpu


@contextmanager
def cluster(options: RayOptions) -> Iterator[Resources]:
    """Be connected to a cluster in this block.

    What this block started it ends; a Ray that this process was connected to before stays as it is.

    Raises:
        BayesVLMError: where Ray is not installed, the address leads nowhere, or the cluster is too small.
    """
    ray = import_ray()
    mine = not ray.is_initialized()
    with _quiet(ray):
        try:
            if mine:
                _connect(ray, options.address)
            nodes = [_node(found["Resources"]) for found in ray.nodes() if found["Alive"]]
            yield share(nodes, options)
        finally:
            if mine:
                ray.shutdown()


def busy(resources: Resources) -> str | None:
    """A sentence where others hold what is needed of the cluster at this moment: then Ray waits for it."""
    import ray

    free = ray.available_resources()
    has = (free.get("CPU", 0.0), free.get("GPU", 0.0))
    if all(here >= needed - _ROUNDING for here, needed in zip(has, resources.in_all, strict=True)):
        return None
    needed = "{:g} CPUs and {:g} GPUs".format(*resources.in_all)
    return f"{needed} are needed, and the cluster has {has[0]:g} and {has[1]:g} free: waiting for the others"


@contextmanager
def on_workers() -> Iterator[None]:
    """Say in a sentence what workers of a cluster lack, or why they cannot go on, where this block waits for them."""
    import ray

    try:
        yield
    except ray.exceptions.RayError as error:
        if (sentence := _sentence(str(error))) is not None:
            raise BayesVLMError(sentence) from error
        died = (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError)
        if isinstance(error, died):
            raise BayesVLMError(
                f"A process on the cluster died each time its work was tried ({first_line(error)}), mostly for want of "
                "memory: use smaller batches or fewer actors per node."
            ) from error
        raise


def _sentence(told: str) -> str | None:
    """What a worker's traceback comes to, where that is a sentence for a user."""
    if lacking := re.findall(r"No module named '([\w.]+)'", told):
        return (
            f"A worker of the cluster has no module {lacking[-1]!r}; install the same packages on every node, of the "
            "same versions."
        )
    said = re.findall(r"BayesVLMError: (.+)", told)
    return f"On a worker of the cluster: {said[-1].strip()}" if said else None


@cache
def end_with_node() -> None:
    """Have this worker end when the process of Ray that started it is gone, killed with its driver maybe.

    Ray looks whether its worker became a child of process 1, which it does not where orphans go to another one, as in
    sessions of systemd: then actors would keep their memory, and their GPU, for good.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, name="ends with its node", daemon=True).start()


def import_ray() -> Any:
    """The module, or a sentence on what to install."""
    if importlib.util.find_spec("ray") is None:
        raise BayesVLMError("--engine ray needs Ray, which is not installed: `pip install 'bayesvlm[ray]'`.")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # what is done here is reported to nobody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray
    import ray.data

    return ray


def _connect(ray: Any, address: str | None) -> None:
    place = address or os.environ.get("RAY_ADDRESS") or "local"
    own = {"include_dashboard": False} if place == "local" else {}
    try:
        _knock(place)
        with _muted(), _sigterm_kept():
            ray.init(address=place, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        if place == "local":
            raise BayesVLMError(
                f"Ray cannot be started on this machine ({first_line(error)}); make room in {_session_folder()}, or "
                "leave --engine ray out."
            ) from error
        raise BayesVLMError(
            f"There is no Ray cluster to be had at --address {place} ({first_line(error)}); start one with "
            "`ray start --head`, set RAY_AUTH_MODE=token where it asks for a token, or leave --address out to use this "
            "machine alone."
        ) from error


def _knock(address: str) -> None:
    """Refuse an address where nobody listens: Ray would try for minutes."""
    if address in ("auto", "local"):
        return
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError("expected auto, or a host and a port such as 10.0.0.1:6379")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()


def _session_folder() -> str:
    return os.environ.get("RAY_TMPDIR", "/tmp/ray")


def _node(has: dict[str, float]) -> Node:
    return Node(has.get("CPU", 0.0), has.get("GPU", 0.0))


@contextmanager
def _quiet(ray: Any) -> Iterator[None]:
    """Keep off the terminal what Ray tells of itself, some of it on standard output; its log files have it."""
    handlers = [handler for handler in logging.getLogger("ray.data").handlers if handler.get_name() == "console"]
    levels = [handler.level for handler in handlers]
    worker = ray._private.worker
    told = getattr(worker, "_worker_logs_enabled", True)
    for handler in handlers:
        handler.setLevel(logging.CRITICAL)
    worker._worker_logs_enabled = False  # as Ray's own debugger does; there is no other way
    try:
        yield
    finally:
        worker._worker_logs_enabled = told
        for handler, level in zip(handlers, levels, strict=True):
            handler.setLevel(level)


@contextmanager
def _muted() -> Iterator[None]:
    """Have Ray's C++ begin here without the lines that no log level of Python's keeps off the error stream.

    It reads its level once, when it begins, and says so; what goes wrong meanwhile is raised.
    """
    given = os.environ.get("RAY_BACKEND_LOG_LEVEL")
    os.environ["RAY_BACKEND_LOG_LEVEL"] = given or "fatal"
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
        if given is None:
            del os.environ["RAY_BACKEND_LOG_LEVEL"]


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Undo at the end that `ray.init` takes over SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if handler is None else handler)
