"""Options of commands that can have a cluster do their work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from bayesvlm.engine import RayOptions

ENGINES = ("local", "ray")

Engine = Annotated[
    str, typer.Option("--engine", help="What does the work: local (this process), or ray (actors of a Ray cluster).")
]
Address = Annotated[
    str | None,
    typer.Option(
        "--address",
        help="Where a Ray cluster runs; auto is the one this machine belongs to. [default: $RAY_ADDRESS, else Ray is "
        "started on this machine alone]",
    ),
]
Actors = Annotated[
    int | None, typer.Option("--actors", help="Processes that hold the model. [default: as many as fit]")
]
GpusPerActor = Annotated[
    float | None,
    typer.Option("--gpus-per-actor", help="GPUs of each of them. [default: 1 where the cluster has GPUs, else 0]"),
]
CpusPerActor = Annotated[
    float | None,
    typer.Option("--cpus-per-actor", help="CPUs of each; the rest decodes. [default: 0.5; 4 on 8 cores without GPUs]"),
]


def ray_options(
    engine: str,
    address: str | None,
    actors: int | None,
    gpus_per_actor: float | None,
    cpus_per_actor: float | None,
    device: str | None,
    workers: int | None = None,
) -> RayOptions | None:
    """What a command asks of Ray; None where this process is to do the work.

    Args:
        device, workers: of this process, which have no use beside Ray.
    """
    from bayesvlm.core.errors import BayesVLMError, check_choice
    from bayesvlm.engine import RayOptions

    check_choice("--engine", engine, ENGINES)
    asked = RayOptions(address, actors, gpus_per_actor, cpus_per_actor)
    if engine == "ray":
        for name, value, instead in (("device", device, "gpus-per-actor"), ("workers", workers, "cpus-per-actor")):
            if value is not None:
                raise BayesVLMError(f"--{name} {value} is of one process; with --engine ray, --{instead} says it.")
        return asked
    for name, value in vars(asked).items():
        if value is not None:
            option = f"--{name.replace('_', '-')} {value}"
            raise BayesVLMError(f"{option} goes with --engine ray; add that, or leave this out.")
    return None
