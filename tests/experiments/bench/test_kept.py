"""Results against kept ones: what is compared with what, and the sentences about it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from bayesvlm import BayesVLMError
from bayesvlm.experiments.bench.kept import Kept, Speed, check, find_kept, kept_in_checkout
from bayesvlm.experiments.bench.running import SCHEMA

CPU = {"device": "cpu", "name": "Processor A", "cores": 2, "threads": 2, "torch": "2.13.0"}
GPU = {"device": "cuda", "name": "NVIDIA H200", "cores": 16, "threads": 16, "torch": "2.13.0"}


def speed(ratio: float, slowest: float, fastest: float) -> dict[str, float]:
    return {"ratio": ratio, "slowest": slowest, "fastest": fastest}


def results(
    way: dict[str, float], machine: dict[str, Any] | None = None, date: str = "2026-11-19", **sizes: int
) -> dict[str, Any]:
    """Those of one benchmark with one way."""
    one = {"reference": "per sample", "per": "row", "sizes": {"d": 512, **sizes}, "ways": {"float32": way}}
    return {"schema": SCHEMA, "date": date, "machine": machine or CPU, "benchmarks": {"curvature": one}}


def written(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def lines(tmp_path: Path, now: dict[str, Any], *kept: dict[str, Any]) -> list[tuple[str, str]]:
    for number, each in enumerate(kept):
        written(tmp_path / f"{number}.json", each)
    said: list[str] = []
    found = check(now, find_kept(tmp_path, said.append))
    assert not said
    return [(line.verdict, line.sentence) for line in found]


def test_slower_beyond_the_spread_of_both(tmp_path: Path) -> None:
    (found,) = lines(tmp_path, results(speed(180, 170, 190)), results(speed(233, 228, 240)))
    assert found == (
        "slower",
        "curvature, float32: slower, 180x (170 to 190) against 233x (228 to 240) on 2026-11-19: "
        "20 % beyond the spread of both.",
    )


def test_slower_within_the_spread_is_as_kept(tmp_path: Path) -> None:
    (found,) = lines(tmp_path, results(speed(180, 170, 230)), results(speed(233, 228, 240)))
    assert found == (
        "as kept",
        "curvature, float32: as kept, 180x (170 to 230) against 233x (228 to 240) on 2026-11-19.",
    )


def test_faster(tmp_path: Path) -> None:
    (found,) = lines(tmp_path, results(speed(0.99, 0.98, 1.0)), results(speed(0.49, 0.48, 0.5)))
    assert found[0] == "faster"
    assert found[1].endswith("96 % beyond the spread of both.")


def test_another_processor_is_compared_and_named(tmp_path: Path) -> None:
    other = {**CPU, "name": "Processor B", "cores": 64, "threads": 64}
    (found,) = lines(tmp_path, results(speed(100, 99, 101)), results(speed(233, 228, 240), other))
    assert found[0] == "slower"
    assert "on 2026-11-19 (elsewhere: Processor B, 64 cores, 64 threads): 126 % beyond" in found[1]


@pytest.mark.parametrize("machine", [GPU, {**GPU, "name": "another GPU"}], ids=["a GPU", "another GPU"])
def test_other_devices_are_not_compared(tmp_path: Path, machine: dict[str, Any]) -> None:
    mine = {**GPU, "name": "mine"} if machine is not GPU else CPU
    (found,) = lines(tmp_path, results(speed(1, 1, 1), mine), results(speed(233, 228, 240), machine))
    device = "mine" if machine is not GPU else "cpu"
    assert found == ("nothing kept", f"curvature, float32: nothing kept for {device} at these sizes (d 512).")


def test_the_same_gpu_is_compared(tmp_path: Path) -> None:
    (found,) = lines(tmp_path, results(speed(1, 1, 1), GPU), results(speed(233, 228, 240), GPU))
    assert found[0] == "slower"


def test_other_sizes_references_and_benchmarks_are_not_compared(tmp_path: Path) -> None:
    other_sizes, other_reference, other_name, other_way = (results(speed(233, 228, 240)) for _ in range(4))
    other_sizes["benchmarks"]["curvature"]["sizes"]["d"] = 256
    other_reference["benchmarks"]["curvature"]["reference"] = "something else"
    other_name["benchmarks"] = {"head": other_name["benchmarks"]["curvature"]}
    other_way["benchmarks"]["curvature"]["ways"] = {"tf32": speed(1, 1, 1)}
    kept = [other_sizes, other_reference, other_name, other_way]
    (found,) = lines(tmp_path, results(speed(1, 1, 1)), *kept)
    assert found[0] == "nothing kept"


def test_the_newest_that_fits_is_compared_with(tmp_path: Path) -> None:
    old = results(speed(1, 1, 1), date="2026-01-02")
    new = results(speed(2, 2, 2), date="2026-03-04")
    newest = results(speed(3, 3, 3), date="2026-05-06", K=5)  # which has other sizes
    (found,) = lines(tmp_path, results(speed(2, 1.9, 2.1)), newest, old, new)
    assert found == ("as kept", "curvature, float32: as kept, 2x (1.9 to 2.1) against 2x (2 to 2) on 2026-03-04.")


def test_numbers_of_a_line_are_json(tmp_path: Path) -> None:
    written(tmp_path / "a.json", results(speed(2, 2, 2)))
    (line,) = check(results(speed(1, 1, 1)), find_kept(tmp_path))
    found = json.loads(json.dumps(line.numbers()))
    assert found["verdict"] == "slower"
    assert found["beyond"] == 1.0
    assert found["kept"] == speed(2, 2, 2)


# Files ----------------------------------------------------------------------------------------------------------------


def damaged() -> list[object]:
    """What may stand in a file instead of results."""
    whole = results(speed(2, 1, 3))
    no_ways, negative, not_finite, upside_down, text, missing, listed = (copy.deepcopy(whole) for _ in range(7))
    del no_ways["benchmarks"]["curvature"]["ways"]
    negative["benchmarks"]["curvature"]["ways"]["float32"] = speed(-1, -2, 3)
    not_finite["benchmarks"]["curvature"]["ways"]["float32"] = speed(1, 1, float("inf"))
    upside_down["benchmarks"]["curvature"]["ways"]["float32"] = speed(2, 3, 1)
    text["benchmarks"]["curvature"]["ways"]["float32"]["ratio"] = "fast"
    del missing["machine"]
    listed["benchmarks"] = [1, 2]
    return [no_ways, negative, not_finite, upside_down, text, missing, listed]


@pytest.mark.parametrize("content", damaged())
def test_damaged_results_are_named(tmp_path: Path, content: object) -> None:
    path = written(tmp_path / "kept.json", content)
    with pytest.raises(BayesVLMError, match=r"kept\.json is damaged \(.*\); make it again with `bayesvlm bench --out`"):
        Kept.load(path)


@pytest.mark.parametrize("content", ["", "{", "[1, 2", "\x00"])
def test_what_is_no_json_is_named(tmp_path: Path, content: str) -> None:
    with pytest.raises(BayesVLMError, match=r"kept\.json is not json"):
        Kept.load(written(tmp_path / "kept.json", content))


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "kept.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BayesVLMError, match=r"kept\.json is not json"):
        Kept.load(tmp_path / "kept.json")


@pytest.mark.parametrize(("content", "schema"), [({"a": 1}, "None"), ([1], "'list'"), ({"schema": "x"}, "'x'")])
def test_other_json_is_named(tmp_path: Path, content: object, schema: str) -> None:
    with pytest.raises(BayesVLMError, match=rf"holds no results of `bayesvlm bench` \(its schema is {schema}\)"):
        Kept.load(written(tmp_path / "kept.json", content))


def test_in_a_folder_the_rest_counts(tmp_path: Path) -> None:
    written(tmp_path / "whole.json", results(speed(2, 1, 3)))
    written(tmp_path / "of another script.json", {"machine": "x"})
    written(tmp_path / "torn.json", '{"schema"')
    said: list[str] = []
    assert [kept.path.name for kept in find_kept(tmp_path, said.append)] == ["whole.json"]
    assert len(said) == 1
    assert "torn.json is not json" in said[0]


def test_a_place_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BayesVLMError, match=r"nowhere does not exist; name a folder or a file of results"):
        find_kept(tmp_path / "nowhere")


def test_every_kept_file_of_the_checkout_can_be_read() -> None:
    folder = kept_in_checkout()
    assert folder is not None
    said: list[str] = []
    assert find_kept(folder, said.append)
    assert not said


def test_speeds_in_words() -> None:
    assert str(Speed(0.97654, 0.9, 1.25)) == "0.977x (0.9 to 1.25)"
