"""Benchmarks by name, one after another, and what was found on which machine, as json."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

from bayesvlm.core.errors import BayesVLMError
from bayesvlm.experiments.bench.measured import Measured, Plan

BENCHMARKS = {
    "curvature": "a contrast batch's curvature, against a d x d matrix for every row",
    "head": "vlm.head(classes), against plain cosine softmax",
    "epig": 'a step of select(strategy="epig"), against the definition in float64',
    "stream": "vlm.stream, against reading, encoding and predicting one after another",
    "cache": "features from the cache, against encoding again",
    "fit": "a fit from shards of JPEG pairs, against the encoder alone",
}
SCHEMA = "bayesvlm bench 1"
_DISTURBING = 0.2  # cores that others keep busy


def chosen(names: Sequence[str]) -> list[str]:
    """Benchmarks by name, each once, in our order; none named: all."""
    for name in names:
        if name not in BENCHMARKS:
            raise BayesVLMError(
                f"There is no benchmark {name!r}; name some of {', '.join(BENCHMARKS)}, or none for all."
            )
    return [name for name in BENCHMARKS if name in names or not names]


def run_benchmarks(
    names: Sequence[str],
    plan: Plan,
    say: Callable[[str], object] = lambda text: None,
    keep: Callable[[dict[str, Any]], object] = lambda result: None,
) -> dict[str, Any]:  # as json
    """Run benchmarks, and say with everything they found where, when and beside whom that was.

    Args:
        names: of `BENCHMARKS`.
        plan: how.
        say: told what is being measured.
        keep: given all there is after every benchmark, so that a run that is ended loses one at most.
    """
    from bayesvlm.experiments.bench.machine import Neighbours, load, machine, versions

    result: dict[str, Any] = {
        "schema": SCHEMA,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(plan.device),
        "versions": versions(),
        "quick": plan.quick,
        "load_before": load(),
        "benchmarks": {},
    }
    for name in names:
        say(f"{name:<10} {BENCHMARKS[name]}")
        measure: Callable[[Plan], Measured] = import_module(f"bayesvlm.experiments.bench.{name}").measure
        neighbours, started = Neighbours(), time.perf_counter()
        numbers = measure(plan).numbers()
        beside = {"took_seconds": time.perf_counter() - started, "others_busy_cores": neighbours.busy()}
        result["benchmarks"][name] = numbers | beside
        result["load_after"] = load()
        keep(result)
    return result


def disturbances(result: dict[str, Any]) -> list[str]:
    """What to say where the machine was not quiet, so that nobody keeps such figures as good ones."""
    cores, loads, said = result["machine"]["cores"], result["load_before"], []
    if loads and cores and loads[0] > cores:
        said.append(
            f"The load was {loads[0]:.2f} before the first benchmark, on {cores} cores: others were at work, so do not "
            "keep these figures; run again when the machine is quiet."
        )
    busy = {name: each["others_busy_cores"] or 0.0 for name, each in result["benchmarks"].items()}
    if disturbed := {name: cores for name, cores in busy.items() if cores > _DISTURBING}:
        listed = ", ".join(f"{name} {cores:.1f}" for name, cores in disturbed.items())
        said.append(
            f"Cores that others kept busy meanwhile: {listed}. Ways take turns, so ratios stand such company better "
            "than seconds do; a quiet machine is better still."
        )
    return said
