"""Turns, ratios of turns, and what is said about the machine."""

from __future__ import annotations

import json
import statistics

import pytest

from bayesvlm import BayesVLMError
from bayesvlm.experiments.bench.machine import Neighbours, load, machine, versions
from bayesvlm.experiments.bench.measured import Comparison, Measured, Plan, compared
from bayesvlm.experiments.bench.running import BENCHMARKS, chosen, disturbances, run_benchmarks
from bayesvlm.experiments.bench.turns import median_seconds, peak_extra_mib, take_turns


def test_ratios_are_taken_turn_by_turn() -> None:
    """A turn in which everything takes ten times as long changes no ratio."""
    found = Comparison([1.0, 10.0, 2.0], [2.0, 20.0, 4.0]).numbers()
    assert (found["ratio"], found["slowest"], found["fastest"]) == (2.0, 2.0, 2.0)


def test_the_slow_way_may_do_less() -> None:
    seconds = {"ours": [8.0, 8.0], "slow": [2.0, 4.0]}
    found = compared(seconds, "slow", {"ours": 800, "slow": 10}, {"ours": {"error": 0.5}})
    assert list(found) == ["ours"]
    numbers = found["ours"].numbers()
    assert numbers["seconds"] == [0.01, 0.01]
    assert numbers["reference_seconds"] == [0.2, 0.4]
    assert numbers["ratio"] == statistics.median([20.0, 40.0])
    assert (numbers["slowest"], numbers["fastest"], numbers["error"]) == (20.0, 40.0, 0.5)


def test_everybody_has_a_turn_and_nobody_always_the_first() -> None:
    order: list[str] = []
    runs = {name: lambda name=name: order.append(name) for name in "abc"}
    taken = take_turns(runs, "cpu", 3, warm_ups=1)
    assert {name: len(each) for name, each in taken.items()} == {"a": 3, "b": 3, "c": 3}
    turns = ["".join(order[start : start + 3]) for start in range(0, 12, 3)]
    assert turns == ["cba", "abc", "cba", "abc"]
    assert median_seconds(runs, "cpu", 1).keys() == runs.keys()


def test_memory_at_the_peak() -> None:
    assert peak_extra_mib(lambda: bytearray(b"x" * 2**26), "cpu") > 32


def test_the_machine_is_json() -> None:
    found = json.loads(json.dumps({"machine": machine("cpu"), "versions": versions(), "load": load()}))
    assert found["machine"]["device"] == "cpu"
    assert found["machine"]["cores"] >= 1
    assert {"python", "torch", "transformers", "bayesvlm"} <= found["versions"].keys()


def test_neighbours_take_no_less_than_nothing() -> None:
    busy = Neighbours().busy()
    assert busy is None or busy >= 0


def test_a_noisy_machine_is_said() -> None:
    quiet = {"machine": {"cores": 2}, "load_before": [0.1, 1, 1], "benchmarks": {"head": {"others_busy_cores": 0.0}}}
    assert disturbances(quiet) == []
    loud = quiet | {"load_before": [3.5, 1, 1], "benchmarks": {"head": {"others_busy_cores": 1.04}}}
    load_said, meanwhile = disturbances(loud)
    assert load_said.startswith("The load was 3.50 before the first benchmark, on 2 cores")
    assert meanwhile.startswith("Cores that others kept busy meanwhile: head 1.0.")
    unknown = quiet | {"load_before": None, "benchmarks": {"head": {"others_busy_cores": None}}}
    assert disturbances(unknown) == []


def test_a_run_that_is_ended_has_kept_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    class Module:
        done = 0

        @classmethod
        def measure(cls, plan: Plan) -> Measured:
            cls.done += 1
            if cls.done == 3:
                raise KeyboardInterrupt
            return Measured("theirs", "row", {"d": plan.repeats or 0}, {"ours": Comparison([1.0], [2.0])})

    monkeypatch.setattr("bayesvlm.experiments.bench.running.import_module", lambda name: Module)
    kept: list[list[str]] = []
    with pytest.raises(KeyboardInterrupt):
        run_benchmarks(list(BENCHMARKS), Plan("cpu", 3), keep=lambda result: kept.append(list(result["benchmarks"])))
    assert kept == [["curvature"], ["curvature", "head"]]


def test_names() -> None:
    assert chosen([]) == list(BENCHMARKS)
    assert chosen(["head", "curvature", "head"]) == ["curvature", "head"]
    with pytest.raises(BayesVLMError, match="no benchmark 'speed'; name some of curvature, head, epig"):
        chosen(["head", "speed"])
