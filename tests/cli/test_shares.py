"""`fit --shard`, `--limit`, `--shuffle`, and `merge`: a fit shared out by hand is the fit of one machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from command_line import Run
from fitting.made import members, write_folder, write_shard, write_shards

from bayesvlm.artifacts import SavedPosterior
from bayesvlm.artifacts.reading import check_disjoint
from bayesvlm.core.estimation import TOWERS
from bayesvlm.testing import save_tiny_clip

NEGATIVES = 12


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shares")
    save_tiny_clip(folder / "model")
    write_shards(folder / "shards", 14, 5, 9, 13, 12, broken=frozenset({3, 30}))
    write_folder(folder / "folder", 50, broken=frozenset({3, 30}))
    return folder


@pytest.fixture(autouse=True)
def beside(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("model", "shards", "folder"):
        (tmp_path / name).symlink_to(place / name)
    monkeypatch.chdir(tmp_path)


def fit(pairs: object, *options: object) -> tuple[object, ...]:
    return ("fit", "model", pairs, "--negatives", NEGATIVES, "--device", "cpu", *options)


@pytest.mark.parametrize("options", [(), ("--shuffle", "--seed", 3), ("--limit", 40)])
@pytest.mark.parametrize("pairs", ["shards", "folder"])
def test_all_shares_merged_are_the_whole(run: Run, pairs: str, options: tuple[object, ...]) -> None:
    whole = run(*fit(pairs, *options), "--out", "whole", "--json").json
    groups, count = whole["groups"], whole["pairs"]
    assert groups == 3 if options[:1] == ("--limit",) else groups == 4
    for number in range(3):
        assert run(*fit(pairs, *options), "--shard", f"{number}/3", "--out", f"part-{number}").code == 0
    merged = run("merge", "part-2", "part-0", "part-1", "--out", "merged", "--json")
    assert merged.json["pairs"] == count
    assert merged.err == "", "nothing is missing, and nothing could not be checked"
    one, other = SavedPosterior.load("whole"), SavedPosterior.load("merged")
    for tower in TOWERS:
        for name in ("A_sum", "B_sum"):
            expected = getattr(one.factors[tower], name)
            error = (getattr(other.factors[tower], name) - expected).abs().max() / expected.abs().max()
            assert error <= 1e-10
        assert other.config.lam[tower] == pytest.approx(one.config.lam[tower], rel=1e-8)
    assert other.config.provenance["pairs"] == count
    card = Path("merged/README.md").read_text()
    assert "- 3 posteriors, merged:" in card
    assert "shard 2/3" in card


def test_what_would_count_twice_is_refused(run: Run, refuse: Run) -> None:
    for number in range(2):
        run(*fit("shards"), "--shard", f"{number}/2", "--out", f"part-{number}")
    run("merge", "part-0", "part-1", "--out", "both")
    shutil.copytree("shards", "copied")
    run(*fit("copied", "--tau", 1, "--negatives", 9), "--shard", "0/3", "--out", "other")
    overlap = refuse("merge", "part-0", "other", "--out", "out").err
    assert overlap.startswith("error: part-0 and other both read 00000.tar; their pairs would count twice")
    assert "both read 00000.tar" in refuse("merge", "both", "part-0", "--out", "out").err
    shutil.copytree("part-0", "again")
    assert "copies of one another" in refuse("merge", "part-0", "again", "--out", "out").err
    for name, options in (("first", ("--limit", 20)), ("shuffled", ("--shuffle", "--limit", 40))):
        assert run(*fit("folder", *options), "--out", name).code == 0
    error = refuse("merge", "first", "shuffled", "--out", "out").err
    assert "first and shuffled both read" in error
    assert "pair(s), rows" in error
    assert not Path("out").exists()


def test_shares_that_are_missing_are_said(run: Run) -> None:
    for number in (0, 2):
        run(*fit("folder"), "--shard", f"{number}/4", "--out", f"part-{number}")
    merged = run("merge", "part-0", "part-2", "--out", "some")
    assert merged.code == 0
    assert "the shards 1/4, 3/4 are missing" in merged.err


def test_limits_and_seeds(run: Run, refuse: Run) -> None:
    few = run(*fit("shards", "--limit", 5), "--out", "few", "--json")
    assert few.json["pairs"] == 4, "fewer than are contrasted, and one of them cannot be read"
    record = json.loads(Path("few/config.json").read_text())["provenance"]
    assert (record["contrast"], record["read"]["limit"]) == (4, 5)
    many = run(*fit("shards", "--limit", 1000), "--out", "many", "--json")
    assert many.json["pairs"] == 51
    assert "--limit 1000: there are only 53 pairs, and all are read" in many.err
    for options, sentence in (
        (("--seed", 1), "seed=1 needs shuffling"),
        (("--limit", 1), "limit is 1; expected a whole number of at least 2"),
        (("--shard", "4/4"), "--shard is '4/4'; expected i/n with i from 0 to n-1, such as 0/4"),
        (("--shard", "one"), "--shard is 'one'; expected i/n"),
        (("--shard", "0/0"), "--shard is '0/0'"),
        (
            ("--shard", "5/9"),
            "would read nothing: the pairs make 4 group(s) of at least 12 (negatives); ask for at most 4",
        ),
        (("--workers", "-1"), "Invalid value for '--workers'"),
    ):
        assert sentence in run(*fit("shards", *options), "--out", "out").err.replace("\n", " "), options
        assert not Path("out").exists()
    assert "needs shuffling" in refuse(*fit("shards", "--seed", 0), "--out", "out").err


def test_shards_that_are_odd(run: Run, refuse: Run) -> None:
    """An empty one, one that is given twice, one that grows while a fit is interrupted."""
    write_shards(Path("odd"), 13, 0, 12)
    assert run(*fit("odd"), "--out", "out", "--json").json["pairs"] == 25
    shutil.copy("odd/00000.tar", "odd/00003.tar")
    assert "odd/00000.tar and odd/00003.tar are copies" in refuse(*fit("odd"), "--out", "twice").err
    assert "odd/00000.tar is given twice" in refuse(*fit("odd/0000{0,2,0}.tar"), "--out", "twice").err
    write_shard(Path("odd/00003.tar"), members(range(100, 112)))
    assert run(*fit("odd/0000{0..2}.tar"), "--shard", "0/2", "--out", "before").code == 0
    write_shard(Path("odd/00000.tar"), [*members(range(13)), *members(range(200, 240))])
    assert run(*fit("odd"), "--shard", "0/3", "--out", "after").code == 0
    assert "both read 00000.tar, which changed in between" in refuse("merge", "before", "after", "--out", "sum").err


def test_what_is_kept_says_what_was_read(run: Run) -> None:
    found = run(*fit("shards", "--shuffle"), "--shard", "1/4", "--workers", 0, "--out", "part", "--json").json
    assert found["shard"] == "1/4"
    assert set(found["seconds"]) == {"waiting", "images", "texts", "curvature", "checkpoint"}
    assert found["pairs_per_second"] > 0
    record = run("info", "part", "--json").json["provenance"]["read"]
    assert (record["shard"], record["shuffled"], record["of"], record["groups"]) == ("1/4", 0, 4, [[1, 2]])
    assert check_disjoint({"part": {"read": record}}) == [
        "the shards 0/4, 2/4, 3/4 are missing: this is not the posterior of all pairs; fit them, and merge again"
    ]
