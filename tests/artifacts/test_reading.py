"""What posteriors read: no pair counts twice, wherever its copies lie, and nothing that is missing goes unsaid."""

from __future__ import annotations

import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from fitting.made import members, write_folder, write_shard, write_shards

from bayesvlm import BayesVLMError
from bayesvlm.artifacts.reading import check_disjoint, runs, summary
from bayesvlm.data import resolve
from bayesvlm.data.pairs import PairFolder, PairPlan, PairShards


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("pairs") / "shards", 6, 0, 5, 7, 6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("pairs") / "folder", 20)


def provenance(plan: PairPlan) -> dict[str, Any]:
    return {"source": "pairs", "fingerprint": plan.fingerprint(), "read": plan.record()}


def of_shards(folder: Path, *numbers: int) -> dict[str, Any]:
    return provenance(PairPlan.of(PairShards.of([folder / f"{n:05}.tar" for n in numbers]), 4))


def check(*provenances: dict[str, Any]) -> list[str]:
    return check_disjoint({f"run {number}": found for number, found in enumerate(provenances)})


# Shards --------------------------------------------------------------------------------------------------------------


def test_shares_of_one_plan_are_disjoint(shards: Path) -> None:
    for options in ({}, {"shuffle": True}, {"limit": 16}):
        plan = PairPlan.of(PairShards.open(shards), 4, **options)  # type: ignore[arg-type]
        parts = len(plan.groups)
        assert parts > 2
        assert check(*(provenance(plan.share(part, parts)) for part in range(parts))) == []
        with pytest.raises(BayesVLMError, match=r"run 0 and run 2 both read .*\.tar"):
            check(*(provenance(plan.share(part, parts)) for part in (0, 1, 0)))


def test_overlapping_shards_are_named(shards: Path, tmp_path: Path) -> None:
    assert check(of_shards(shards, 0, 1), of_shards(shards, 1, 2)) == [], "an empty shard holds no pair"
    with pytest.raises(
        BayesVLMError, match=r"run 0 and run 1 both read 00002\.tar, 00003\.tar; their pairs would count"
    ):
        check(of_shards(shards, 0, 2, 3), of_shards(shards, 3, 2, 4))
    shutil.copytree(shards, tmp_path / "copy")
    (tmp_path / "copy/00003.tar").rename(tmp_path / "copy/00000.tar")
    with pytest.raises(BayesVLMError, match=r"both read 00003\.tar"):
        check(of_shards(shards, 3), of_shards(tmp_path / "copy", 0))
    assert check(of_shards(shards, 0), of_shards(tmp_path / "copy", 0)) == [], "the same name is not the same shard"


def test_a_shard_that_grew_is_the_same_shard(shards: Path, tmp_path: Path) -> None:
    grown = write_shard(tmp_path / "00000.tar", [*members(range(6)), *members(range(100, 130))])
    with pytest.raises(BayesVLMError, match=r"both read 00000\.tar, which changed in between"):
        check(of_shards(shards, 0), provenance(PairPlan.of(PairShards.of([grown]), 4)))


# Rows ----------------------------------------------------------------------------------------------------------------


def test_overlapping_rows_are_named(folder: Path) -> None:
    pairs = PairFolder.open(folder)
    whole = PairPlan.of(pairs, 5)
    first, second = (whole.share(part, 2) for part in range(2))
    assert check(provenance(first), provenance(second)) == []
    begin = provenance(PairPlan.of(pairs, 5, limit=7))
    with pytest.raises(BayesVLMError, match=r"run 0 and run 1 both read 5 pair\(s\), rows 0 to 4 of folder"):
        check(provenance(first), begin)
    with pytest.raises(BayesVLMError, match=r"both read 2 pair\(s\), rows 5 to 6 of folder"):
        check(begin, provenance(second))


def test_rows_of_shuffled_runs_are_compared_one_by_one(folder: Path) -> None:
    """Against the numbers in the captions of what was read."""
    pairs = PairFolder.open(folder)
    compared = [0, 0]
    for seed in range(12):
        plan = PairPlan.of(pairs, 3, limit=4, shuffle=True, seed=seed)
        read = {int(pair.text.rpartition(" ")[2]) for group in plan.groups for pair in plan.stored(group)}
        plain = PairPlan.of(pairs, 3, limit=5)
        both = sorted(read & set(range(5)))
        if both:
            with pytest.raises(BayesVLMError, match=rf"both read {len(both)} pair\(s\), rows {both[0]}"):
                check(provenance(plan), provenance(plain))
        else:
            assert check(provenance(plan), provenance(plain)) == []
        compared[bool(both)] += 1
    assert min(compared) > 0, "both cases were tried"
    shares = [PairPlan.of(pairs, 3, shuffle=True, seed=9).share(part, 6) for part in range(6)]
    assert check(*map(provenance, shares)) == []


def test_a_copied_folder_is_the_same_data(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "elsewhere")
    one, other = (provenance(PairPlan.of(PairFolder.open(place), 5)) for place in (folder, tmp_path / "elsewhere"))
    with pytest.raises(BayesVLMError, match="rows 0 to 19 of "):
        check(one, other)


def test_a_list_that_grew_is_remarked_on(folder: Path, tmp_path: Path) -> None:
    grown = write_folder(tmp_path / "folder", 25)
    (remark,) = check(*(provenance(PairPlan.of(PairFolder.open(place), 5)) for place in (folder, grown)))
    assert "several posteriors read pairs called folder" in remark


def test_splits_of_the_world_are_lists_of_their_own() -> None:
    one, other, both = (
        provenance(PairPlan.of(resolve(name, "pairs").open(), 100))
        for name in ("validation", "new-drawing", "new-drawing+validation")
    )
    assert check(one, other) == []
    for part, title in ((one, "validation"), (other, "new-drawing")):
        with pytest.raises(BayesVLMError, match=f"of {title}"):
            check(part, both)


# Merges of merges, records that are missing ---------------------------------------------------------------------------


def test_merges_are_looked_into(shards: Path) -> None:
    inner = {"merged": [of_shards(shards, 0), {"merged": [of_shards(shards, 2), of_shards(shards, 3)]}], "pairs": 18}
    assert len(list(runs(inner))) == 3
    assert check(inner, of_shards(shards, 4)) == []
    with pytest.raises(BayesVLMError, match=r"run 0 and run 1 both read 00003\.tar"):
        check({"merged": [of_shards(shards, 4), inner]}, of_shards(shards, 3))


def test_posteriors_that_do_not_say_what_they_read(shards: Path) -> None:
    earlier = {"source": "pairs", "fingerprint": "1" * 64}
    (remark,) = check(earlier, {**earlier, "fingerprint": "2" * 64}, of_shards(shards, 0))
    assert remark.startswith("whether pairs count twice cannot be checked for run 0, run 1:")
    assert check({}, {})[0].startswith("whether pairs count twice cannot be checked for run 0, run 1:")
    with pytest.raises(BayesVLMError, match="both read pairs"):
        check(earlier, dict(earlier))
    now = of_shards(shards, 0, 2)
    with pytest.raises(BayesVLMError, match=r"both read pairs \(it has the same fingerprint\)"):
        check(now, {"source": "pairs", "fingerprint": now["fingerprint"]})


def test_shares_that_are_missing_are_named(shards: Path, folder: Path) -> None:
    plan = PairPlan.of(PairFolder.open(folder), 5)
    shares = [provenance(plan.share(part, 4)) for part in range(4)]
    assert check(*shares) == []
    (remark,) = check(shares[0], shares[2])
    assert remark.startswith("the shards 1/4, 3/4 are missing")
    (remark,) = check({"merged": shares[:2], "pairs": 10}, shares[3])
    assert remark.startswith("the shards 2/4 are missing")
    assert check({"merged": shares[:2], "pairs": 10}, {"merged": shares[2:], "pairs": 10}) == []
    (remark,) = check(provenance(plan.share(0, 2)), provenance(plan.share(1, 4)))
    assert remark.startswith("1 of its 4 groups")


def test_a_summary_counts_long_lists(shards: Path, folder: Path) -> None:
    plan = PairPlan.of(PairFolder.open(folder), 5, shuffle=True, seed=2).share(1, 2)
    merged = {"merged": [of_shards(shards, 0, 2), provenance(plan)], "pairs": 21}
    lines = list(summary({**merged, "seconds": {"waiting": 0.0, "images": 1.5}}))
    assert "- 2 posteriors, merged:" in lines
    assert "    - read: 2 group(s), 2 tar shard(s) (00000.tar, 00002.tar)" in lines
    assert "    - read: shard 1/2, 2 of 4 groups, 10 rows of folder, shuffled with seed 2" in lines
    assert "- pairs: 21" in lines
    assert "- seconds: images 1.5" in lines
    assert not any("content" in line or "lists" in line for line in chain(lines))
