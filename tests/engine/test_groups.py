"""Sums of groups: the same whatever order they come in, each counted once, whole on disk at every moment."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from bayesvlm import BayesVLMError
from bayesvlm.core.estimation import TOWERS
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.engine.groups import FinishedGroups, GroupSums

RUN = {"weights": "abc", "negatives": 8}


def sums(seed: int) -> GroupSums:
    """Of a group whose numbers span twelve orders of magnitude, so that the order of a sum shows."""
    draws = torch.Generator().manual_seed(seed)

    def gram(width: int) -> torch.Tensor:
        rows = torch.randn(5, width, dtype=torch.float64, generator=draws) * 10.0 ** (seed % 7)
        return rows.T @ rows

    factors = {tower: KroneckerFactors(gram(4), gram(3), 10 + seed) for tower in TOWERS}
    return GroupSums(factors, {f"{seed}.png": "unreadable"}, {"encode": 0.5})


def same(one: GroupSums, other: GroupSums) -> bool:
    assert one.factors is not None
    assert other.factors is not None
    pairs = [(one.factors[tower], other.factors[tower]) for tower in TOWERS]
    return one.pairs == other.pairs and all(
        torch.equal(a.A_sum, b.A_sum) and torch.equal(a.B_sum, b.B_sum) for a, b in pairs
    )


def in_order(count: int) -> GroupSums:
    total = GroupSums(None)
    for group in range(count):
        total = total + sums(group)
    return total


def test_sums_pass_through_a_file_unchanged(tmp_path: Path) -> None:
    made = sums(3)
    content = made.to_bytes(group=3)
    (tmp_path / "a.safetensors").write_bytes(content)
    for found, facts in (GroupSums.from_bytes(content), GroupSums.read(tmp_path / "a.safetensors")):
        assert same(made, found)
        assert (found.skipped, found.seconds, facts) == (made.skipped, made.seconds, {"group": 3})
    empty, _ = GroupSums.from_bytes(GroupSums(None, {"a": "b"}).to_bytes())
    assert (empty.factors, empty.pairs, empty.skipped) == (None, 0, {"a": "b"})


@pytest.mark.parametrize("seed", range(5))
def test_the_sum_is_that_of_the_groups_in_order_to_the_last_bit(tmp_path: Path, seed: int) -> None:
    order = random.Random(seed).sample(range(9), 9)
    finished = FinishedGroups(tmp_path / "kept", RUN)
    for group in order:
        assert finished.add(group, sums(group))
        finished = FinishedGroups(tmp_path / "kept", RUN)  # as after a driver that died here
    assert finished.done == set(range(9))
    assert finished.before == 9
    assert same(finished.sums, in_order(9))
    assert finished.sums.skipped == {f"{group}.png": "unreadable" for group in range(9)}
    assert finished.sums.seconds == {"encode": 4.5}
    finished.remove()
    assert not (tmp_path / "kept").exists()


def test_a_group_that_comes_twice_counts_once(tmp_path: Path) -> None:
    finished = FinishedGroups(tmp_path, RUN)
    assert [finished.add(group, sums(group)) for group in (2, 2, 0, 0, 1, 2, 1)] == [True, False, True, False, True] + [
        False
    ] * 2
    assert same(finished.sums, in_order(3))
    assert finished.pairs == in_order(3).pairs


def test_a_group_in_the_sum_whose_file_is_still_there_counts_once(tmp_path: Path) -> None:
    """The run ended after the sum was written and before the files in it were deleted."""
    finished = FinishedGroups(tmp_path, RUN)
    finished.add(1, sums(1))
    left = tmp_path / "group-00000001.safetensors"
    content = left.read_bytes()
    finished.add(0, sums(0))
    left.write_bytes(content)
    again = FinishedGroups(tmp_path, RUN)
    assert (again.done, left.exists()) == ({0, 1}, False)
    assert same(again.sums, in_order(2))


def test_a_group_without_pairs_is_finished_too(tmp_path: Path) -> None:
    finished = FinishedGroups(tmp_path, RUN)
    finished.add(0, GroupSums(None, {"0.png": "broken"}))
    finished.add(2, GroupSums(None))
    finished.add(1, sums(1))
    again = FinishedGroups(tmp_path, RUN)
    assert (again.before, again.pairs) == (3, sums(1).pairs)


def test_groups_of_another_run_are_refused(tmp_path: Path) -> None:
    FinishedGroups(tmp_path, RUN).add(1, sums(1))
    with pytest.raises(BayesVLMError, match="another run: negatives is 8 there and 16 here; delete"):
        FinishedGroups(tmp_path, {**RUN, "negatives": 16})


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished = FinishedGroups(tmp_path, RUN)
    finished.add(0, sums(0))
    with monkeypatch.context() as full:
        full.setattr("os.fsync", lambda file: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(BayesVLMError, match=r"No space left on device; make room"):
            finished.add(1, sums(1))
    assert finished.done == {0}
    assert finished.add(1, sums(1))
    assert same(FinishedGroups(tmp_path, RUN).sums, in_order(2))
