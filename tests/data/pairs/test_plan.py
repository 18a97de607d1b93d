"""Plans: groups of enough pairs, in an order that is the same everywhere, shared out without gaps or overlaps."""

from __future__ import annotations

import gzip
import json
import pickle
import shutil
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest
from fitting.made import members, write_folder, write_shard, write_shards
from hypothesis import given, settings
from hypothesis import strategies as st

from bayesvlm import BayesVLMError
from bayesvlm.core.shuffling import shuffled_order
from bayesvlm.data import resolve
from bayesvlm.data.pairs import PairDataset, PairFolder, PairPlan, PairShards
from bayesvlm.data.pairs.plan import _runs

SIZES = (7, 3, 0, 6, 5, 8, 2)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("pairs") / "shards", *SIZES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("pairs") / "folder", 31)


def numbers(plan: PairPlan, start: int = 0) -> list[list[int]]:
    """What each group's captions tell."""
    return [[int(pair.text.rpartition(" ")[2]) for pair in plan.stored(group, start)] for group in plan.groups]


# Groups --------------------------------------------------------------------------------------------------------------


def test_shards_make_groups_of_at_least_as_many_as_are_contrasted(shards: Path) -> None:
    plan = PairPlan.of(PairShards.open(shards), 9)
    assert numbers(plan) == [[*range(10)], [*range(10, 21)], [*range(21, 31)]]
    assert [group.size for group in plan.groups] == [10, 11, 10]
    assert PairPlan.of(PairShards.open(shards), 16).size == 31, "the last takes what is left over"
    assert len(PairPlan.of(PairShards.open(shards), 16).groups) == 1
    assert len(PairPlan.of(PairShards.open(shards), 1000).groups) == 1


def test_rows_make_groups_of_as_many_as_are_contrasted(folder: Path) -> None:
    pairs = PairFolder.open(folder)
    assert numbers(PairPlan.of(pairs, 10)) == [[*range(10)], [*range(10, 20)], [*range(20, 31)]]
    assert numbers(PairPlan.of(pairs, 16)) == [[*range(31)]], "fewer than twice as many are one group"
    assert numbers(PairPlan.of(pairs, 1000)) == [[*range(31)]]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(2, 30))
def test_no_group_but_a_lone_one_is_small(sizes: list[int], least: int) -> None:
    runs = _runs(sizes, least)
    assert [place for start, stop in runs for place in range(start, stop)] == list(range(len(sizes)))
    assert len(runs) == 1 or min(sum(sizes[start:stop]) for start, stop in runs) >= least
    assert all(sum(sizes[start : stop - 1]) < least for start, stop in runs[:-1]), "nor larger than need be"


def test_pairs_of_a_data_set_and_of_the_world() -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"image": [b"x"] * 9, "text": [f"number {row}" for row in range(9)]})
    plan = PairPlan.of(PairDataset.of(rows), 4, shuffle=True)
    assert sorted(chain.from_iterable(numbers(plan))) == list(range(9))
    world = resolve("validation+new-drawing", "pairs").open()
    plan = PairPlan.of(world, 100)
    assert [pair for group in plan.groups for pair in plan.stored(group)] == list(world.stored())
    assert [title for title, _, _ in plan.record()["lists"]] == ["validation", "new-drawing"]


# Order ---------------------------------------------------------------------------------------------------------------


def test_an_order_is_the_same_for_ever() -> None:
    """Against numbers that were written down: another version of numpy must not change what a seed means."""
    assert shuffled_order(10, 0).tolist() == WRITTEN
    assert shuffled_order(0, 0).tolist() == []
    assert sorted(shuffled_order(1000, 7, 3).tolist()) == list(range(1000))
    assert shuffled_order(50, 1).tolist() != shuffled_order(50, 2).tolist()


WRITTEN = [0, 8, 9, 3, 7, 5, 1, 2, 6, 4]


@pytest.mark.parametrize("kind", ["shards", "folder"])
def test_a_shuffled_plan_reads_everything_once(kind: str, shards: Path, folder: Path) -> None:
    pairs = PairShards.open(shards) if kind == "shards" else PairFolder.open(folder)
    first, second = (PairPlan.of(pairs, 9, shuffle=True, seed=seed) for seed in (0, 1))
    assert sorted(chain.from_iterable(numbers(first))) == list(range(31))
    assert numbers(first) != numbers(second) != numbers(PairPlan.of(pairs, 9))
    assert numbers(first) == numbers(PairPlan.of(pairs, 9, shuffle=True)), "0 is the usual seed"
    assert numbers(pickle.loads(pickle.dumps(first))) == numbers(first)


def test_a_plan_reads_the_same_in_another_process(shards: Path) -> None:
    plan = PairPlan.of(PairShards.open(shards), 9, shuffle=True)
    program = (
        "import sys, pickle; plan = pickle.load(sys.stdin.buffer)\n"
        "print([[int(pair.text.rpartition(' ')[2]) for pair in plan.stored(group)] for group in plan.groups])"
    )
    other = subprocess.run([sys.executable, "-c", program], input=pickle.dumps(plan), capture_output=True, check=True)
    assert json.loads(other.stdout) == numbers(plan)


def test_within_a_group_pairs_of_its_shards_are_mixed(shards: Path) -> None:
    plan = PairPlan.of(PairShards.open(shards), 9, shuffle=True)
    ends = [0, 7, 10, 10, 16, 21, 29, 31]
    for group in numbers(plan):
        of_shard = [sum(number >= end for end in ends) for number in group]
        assert of_shard != sorted(of_shard)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("kind", ["shards", "folder"])
def test_reading_goes_on_anywhere(kind: str, shuffle: bool, shards: Path, folder: Path) -> None:
    pairs = PairShards.open(shards) if kind == "shards" else PairFolder.open(folder)
    plan = PairPlan.of(pairs, 9, limit=27, shuffle=shuffle)
    for start in range(12):
        assert numbers(plan, start) == [group[start:] for group in numbers(plan)]


def test_samples_that_are_passed_over_are_not_read(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    content = sys.modules["bayesvlm.data.tars"]._content

    def noted(archive: object, member: object, wanted: bool) -> bytes:
        read.extend([member.name] if wanted else [])  # type: ignore[attr-defined]
        return content(archive, member, wanted)

    monkeypatch.setattr("bayesvlm.data.tars._content", noted)
    plan = PairPlan.of(PairShards.open(shards), 9)
    assert len(list(plan.stored(plan.groups[1], 8))) == 3
    assert sorted({name.partition(".")[0] for name in read}) == ["000018", "000019", "000020"]


def test_compressed_shards_are_read_the_same(shards: Path, tmp_path: Path) -> None:
    for shard in shards.glob("*.tar"):
        (tmp_path / f"{shard.name}.gz").write_bytes(gzip.compress(shard.read_bytes()))
    for shuffle in (False, True):
        plain, packed = (PairPlan.of(PairShards.open(place), 9, shuffle=shuffle) for place in (shards, tmp_path))
        assert numbers(packed, 2) == numbers(plain, 2)


@pytest.mark.parametrize("shuffle", [False, True])
def test_what_cannot_be_used_has_a_place_of_its_own(shuffle: bool, tmp_path: Path) -> None:
    """So that whoever goes on, goes on with the same pairs."""
    write_shards(tmp_path, 5, 5, 5)
    write_shard(tmp_path / "00001.tar", [*members(range(5, 7)), ("lonely.png", b"x"), *members(range(8, 10))])
    cut = (tmp_path / "00002.tar").read_bytes()
    (tmp_path / "00002.tar").write_bytes(cut[: len(cut) // 2])
    (tmp_path / "00003.tar").write_bytes(b"no archive")
    plan = PairPlan.of(PairShards.open(tmp_path), 100, shuffle=shuffle)
    (group,) = plan.groups
    everything = list(plan.stored(group))
    wrong = [str(pair.image) for pair in everything if isinstance(pair.image, BayesVLMError)]
    assert len(everything) == 5 + 5 + 3 + 1 + 1
    assert len(wrong) == 3
    for sentence in ("lonely has no caption", "00002.tar cannot be read to its end", "00003.tar cannot be read to its"):
        assert any(sentence in reason for reason in wrong), wrong
    for start in range(1, len(everything)):
        later = list(plan.stored(group, start))
        assert [pair.name for pair in later] == [pair.name for pair in everything[start:]]


# Limits and shares ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("kind", ["shards", "folder"])
@pytest.mark.parametrize("limit", [2, 8, 9, 10, 17, 18, 30, 31, 1000])
def test_a_limit_takes_the_first(kind: str, shuffle: bool, limit: int, shards: Path, folder: Path) -> None:
    pairs = PairShards.open(shards) if kind == "shards" else PairFolder.open(folder)
    plan = PairPlan.of(pairs, 9, limit=limit, shuffle=shuffle)
    found = list(chain.from_iterable(numbers(plan)))
    assert len(found) == len(set(found)) == plan.size == min(limit, 31)
    assert len(plan.groups) == 1 or min(map(len, numbers(plan))) >= 9
    if not shuffle:
        assert found == list(range(min(limit, 31)))
    elif kind == "folder":
        assert found == list(chain.from_iterable(numbers(PairPlan.of(pairs, 9, shuffle=True))))[:limit]


@pytest.mark.parametrize("kind", ["shards", "folder"])
@pytest.mark.parametrize("options", [{}, {"limit": 25}, {"shuffle": True, "seed": 5}])
def test_shares_are_disjoint_and_together_everything(kind: str, options: dict, shards: Path, folder: Path) -> None:
    pairs = PairShards.open(shards) if kind == "shards" else PairFolder.open(folder)
    plan = PairPlan.of(pairs, 4, **options)
    for parts in range(1, len(plan.groups) + 1):
        shares = [plan.share(part, parts) for part in range(parts)]
        groups = sorted(chain.from_iterable(share.groups for share in shares), key=lambda group: group.index)
        assert tuple(groups) == plan.groups
        assert {share.record()["plan"] for share in shares} == {plan.record()["plan"]}
        assert sorted(chain.from_iterable(chain.from_iterable(map(numbers, shares)))) == sorted(
            chain.from_iterable(numbers(plan))
        )
    with pytest.raises(BayesVLMError, match=f"ask for at most {len(plan.groups)} shard"):
        plan.share(len(plan.groups), len(plan.groups) + 1)
    for part, parts in ((3, 3), (-1, 2)):
        with pytest.raises(BayesVLMError, match=f"There is no shard {part}/{parts}"):
            plan.share(part, parts)
    with pytest.raises(BayesVLMError, match="is the share 0/2 already"):
        plan.share(0, 2).share(0, 2)


# What cannot be planned ----------------------------------------------------------------------------------------------


def test_mistakes_get_a_sentence(shards: Path, folder: Path, tmp_path: Path) -> None:
    pairs = PairFolder.open(folder)
    for options, sentence in (
        ({"negatives": 1}, "negatives=1; a contrast batch needs at least 2 pairs"),
        ({"limit": 1}, "limit is 1; expected a whole number of at least 2"),
        ({"seed": 3}, "seed=3 needs shuffling"),
        ({"shuffle": True, "seed": -1}, "seed is -1"),
    ):
        with pytest.raises(BayesVLMError, match=sentence):
            PairPlan.of(pairs, **{"negatives": 4, **options})  # type: ignore[arg-type]
    with pytest.raises(BayesVLMError, match="a list, which cannot be split into groups"):
        PairPlan.of([], 4)  # type: ignore[arg-type]
    files = sorted(shards.glob("*.tar"))
    with pytest.raises(BayesVLMError, match=r"00000\.tar is given twice"):
        PairPlan.of(PairShards.of([*files, files[0]]), 4)
    shutil.copy(files[0], tmp_path / "copy.tar")
    with pytest.raises(BayesVLMError, match=r"00000\.tar and .*copy\.tar are copies of one another"):
        PairPlan.of(PairShards.of([*files, tmp_path / "copy.tar"]), 4).record()
    with pytest.raises(BayesVLMError, match="none of its 1 shard"):
        PairPlan.of(PairShards.of([files[2]]), 4)


# Records -------------------------------------------------------------------------------------------------------------


def test_a_record_says_what_was_read(shards: Path, folder: Path) -> None:
    rows = PairPlan.of(PairFolder.open(folder), 10, shuffle=True, seed=4).share(1, 2).record()
    assert (rows["rows"], rows["shuffled"], rows["shard"], rows["of"]) == ([[10, 20]], 4, "1/2", 3)
    assert rows["lists"][0][0] == "folder"
    assert rows["lists"][0][2] == 31
    plan = PairPlan.of(PairShards.open(shards), 9)
    assert [name for name, _, _ in plan.record()["shards"]] == [f"{n:05}.tar" for n in (0, 1, 3, 4, 5, 6)], (
        "not empty ones"
    )
    assert [name for name, _, _ in plan.share(1, 2).record()["shards"]] == ["00003.tar", "00004.tar"]
    assert json.loads(json.dumps(plan.record())) == plan.record()
    assert plan.fingerprint() == PairShards.open(shards).fingerprint()
    assert plan.record([plan.groups[2]])["groups"] == [[2, 3]]


def test_statistics_spare_the_counting(shards: Path, tmp_path: Path) -> None:
    shutil.copytree(shards, tmp_path / "told")
    for number, size in enumerate(SIZES):
        (tmp_path / f"told/{number:05}_stats.json").write_text(json.dumps({"successes": size}))
    told, counted = (PairPlan.of(PairShards.open(place), 9) for place in (tmp_path / "told", shards))
    assert told.groups == counted.groups
    assert told.record()["plan"] == counted.record()["plan"]
    (tmp_path / "told/00000_stats.json").write_text(json.dumps({"successes": 4}))  # fewer than there are
    assert len(numbers(PairPlan.of(PairShards.open(tmp_path / "told"), 9))[0]) == 16
    assert sum(map(len, numbers(PairPlan.of(PairShards.open(tmp_path / "told"), 9, limit=12)))) == 12


def test_a_copy_elsewhere_is_the_same_data(shards: Path, tmp_path: Path) -> None:
    shutil.copytree(shards, tmp_path / "elsewhere")
    for place in (tmp_path / "elsewhere").glob("*.tar"):
        place.rename(place.with_name(f"renamed-{place.name}"))
    one, other = (PairPlan.of(PairShards.open(place), 9).record() for place in (shards, tmp_path / "elsewhere"))
    assert [content for _, content, _ in one["shards"]] == [content for _, content, _ in other["shards"]]
