"""`bayesvlm bench`: that everything runs, what it writes, and what --check says and how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import Result, Run, run_command

from bayesvlm.experiments.bench.kept import Kept
from bayesvlm.experiments.bench.running import BENCHMARKS


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path]:
    """All benchmarks, quick, printed as json and kept."""
    out = tmp_path_factory.mktemp("bench") / "results.json"
    return run_command("bench", "--quick", "--repeats", "2", "--device", "cpu", "--out", out, "--json"), out


def test_every_benchmark_runs(everything: tuple[Result, Path]) -> None:
    result, _ = everything
    found = result.json["benchmarks"]
    assert list(found) == list(BENCHMARKS)
    for each in found.values():
        assert each["sizes"]
        for way in each["ways"].values():
            assert len(way["seconds"]) == len(way["reference_seconds"]) == 2
            assert 0 < way["slowest"] <= way["ratio"] <= way["fastest"]
    assert result.json["machine"]["device"] == "cpu"
    assert result.json["quick"] is True
    for name in BENCHMARKS:
        assert name in result.err  # told while it runs


def test_ours_and_the_reference_agree(everything: tuple[Result, Path]) -> None:
    found = everything[0].json["benchmarks"]
    assert found["curvature"]["ways"]["float32"]["relative_error"] < 1e-3
    assert found["head"]["facts"]["largest_difference_to_classify"] < 1e-4
    assert found["epig"]["ways"]["scores"]["largest_difference"] < 1e-4
    assert found["cache"]["facts"]["largest_difference"] < 1e-4
    fit = found["fit"]["ways"]["ours"]
    assert all(0 <= share <= 1 for share in fit["share_outside_the_encoder"])
    assert all(len(fit[f"seconds_{stage}"]) == 2 for stage in ("waiting", "images", "texts", "curvature"))


def test_what_is_kept_is_what_was_printed(everything: tuple[Result, Path]) -> None:
    result, out = everything
    assert json.loads(out.read_text()) == result.json
    assert Kept.load(out).benchmarks.keys() == BENCHMARKS.keys()


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the head."""
    path = tmp_path_factory.mktemp("kept") / "kept.json"
    result = run_command("bench", "head", "--quick", "--repeats", "2", "--device", "cpu", "--out", path)
    assert result.code == 0, result.err
    assert "head, one image" in result.out
    assert "plain cosine softmax, per image" in result.out
    assert "Tiny sizes" in result.out
    return path


def scaled(kept: Path, into: Path, factor: float) -> Path:
    """The same results, all of them so many times as fast."""
    found: dict[str, Any] = json.loads(kept.read_text())
    for each in found["benchmarks"].values():
        for way in each["ways"].values():
            way |= {name: way[name] * factor for name in ("ratio", "slowest", "fastest")}
    into.write_text(json.dumps(found))
    return into


def again(run: Run, *words: object) -> Result:
    return run("bench", "head", "--quick", "--repeats", "2", "--device", "cpu", "--check", *words)


def test_slower_than_kept_ends_with_one(run: Run, kept: Path, tmp_path: Path) -> None:
    result = again(run, scaled(kept, tmp_path / "faster.json", 1e4))
    assert result.code == 1
    assert "head, one image: slower, " in result.out
    assert "beyond the spread of both." in result.out
    assert "2 of 2 got slower." in result.out


def test_faster_than_kept_ends_well(run: Run, kept: Path, tmp_path: Path) -> None:
    result = again(run, scaled(kept, tmp_path / "slower.json", 1e-4), "--json")
    assert [line["verdict"] for line in result.json["check"]] == ["faster", "faster"]
    assert result.json["slower"] == 0


def test_other_sizes_are_not_compared(run: Run, kept: Path, tmp_path: Path) -> None:
    found = json.loads(kept.read_text())
    found["benchmarks"]["head"]["sizes"]["images"] += 1
    (tmp_path / "a.json").write_text(json.dumps(found))
    result = again(run, tmp_path)
    assert result.code == 0
    assert result.out.count("nothing kept for cpu at these sizes (images 50, classes 10, d 16, p 24)") == 2
    assert "got slower" not in result.out


def test_without_a_place_the_checkouts_results_are_taken(run: Run) -> None:
    result = again(run)
    assert result.code == 0
    assert "nothing kept for cpu at these sizes" in result.out  # the checkout keeps full sizes only


def test_an_installed_library_says_that_it_keeps_none(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bayesvlm.experiments.bench.kept.kept_in_checkout", lambda: None)
    result = again(run)
    assert result.code == 0
    assert "No results are kept with an installed library; name a folder or a file of yours" in result.err


def test_refusals(refuse: Run, kept: Path, tmp_path: Path) -> None:
    assert "no benchmark 'speed'" in refuse("bench", "speed").err
    assert "'nowhere.json' is no benchmark (curvature, " in refuse("bench", "--check", "nowhere.json").err
    assert "--repeats of at least 2" in refuse("bench", "--check", "--repeats", "1").err
    assert "of one place, not of" in refuse("bench", "--check", str(kept), str(tmp_path)).err
    assert "is there already" in refuse("bench", "--out", str(kept)).err
    assert "'abacus' cannot be used" in refuse("bench", "--device", "abacus").err
    torn = tmp_path / "torn.json"
    torn.write_text('{"schema": ')
    assert "torn.json is not json" in refuse("bench", "--check", str(torn)).err


def test_help_names_every_benchmark(run: Run) -> None:
    words = " ".join(run("bench", "--help").out.split())
    assert all(name in words for name in BENCHMARKS)
