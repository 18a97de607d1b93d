"""Sums of groups: the same whatever order they come in, each counted once, whole on disk at every moment."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from bayesvlm import BayesVLMError
from bayesvlm.artifacts.checkpoint import restore_checkpoint, save_checkpoint
from bayesvlm.core.estimation import TOWERS
from bayesvlm.core.factors import KroneckerFactors
from bayesvlm.core.groups import GroupFactors, GroupSums, OpenGroup, Tally
from bayesvlm.engine.groups import FinishedGroups, waiting_file, waiting_files

RUN = {"weights": "abc", "negatives": 8}
ORDER = [1, 4, 7, 10, 13, 16, 19]  # a share of a plan, as --shard 1/3 has it


def made(index: int) -> GroupFactors:
    """A group whose numbers span many orders of magnitude, so that the order of a sum shows."""
    draws = torch.Generator().manual_seed(index)

    def gram(width: int) -> torch.Tensor:
        rows = torch.randn(5, width, dtype=torch.float64, generator=draws) * 10.0 ** (index % 7)
        return rows.T @ rows

    factors = {tower: KroneckerFactors(gram(4), gram(3), 10 + index) for tower in TOWERS}
    return GroupFactors(index, factors, Tally(12 + index, 2, {f"{index}.png": "unreadable"}, {"images": 0.5}))


def in_order(*indices: int) -> GroupSums:
    sums = GroupSums()
    for index in indices:
        sums = sums.add(made(index))
    return sums


def assert_same(found: GroupSums, expected: GroupSums) -> None:
    """To the last bit."""
    assert found.groups == expected.groups
    assert found.tally == expected.tally
    assert found.factors is not None
    assert expected.factors is not None
    for tower in TOWERS:
        assert torch.equal(found.factors[tower].A_sum, expected.factors[tower].A_sum)
        assert torch.equal(found.factors[tower].B_sum, expected.factors[tower].B_sum)


def test_the_order_of_a_sum_shows_in_these_groups() -> None:
    one, other = in_order(*ORDER).factors, in_order(*reversed(ORDER)).factors
    assert one is not None
    assert other is not None
    assert not torch.equal(one["image"].A_sum, other["image"].A_sum)


@pytest.mark.parametrize("seed", range(4))
def test_the_sum_is_that_of_the_groups_in_order_to_the_last_bit(tmp_path: Path, seed: int) -> None:
    kept = tmp_path / "kept"
    finished = FinishedGroups(ORDER, kept, RUN)
    for count, index in enumerate(random.Random(seed).sample(ORDER, len(ORDER)), start=1):
        assert finished.add(made(index))
        finished = FinishedGroups(ORDER, kept, RUN)  # as after a driver that died here
        assert len(finished.left) == len(ORDER) - count
        assert index not in finished.left
    assert_same(finished.sums, in_order(*ORDER))
    assert (finished.left, waiting_files(kept)) == ([], [])
    assert_same(restore_checkpoint(kept, RUN)[0], in_order(*ORDER))


def test_nothing_is_written_where_nothing_is_to_be_kept(tmp_path: Path) -> None:
    finished = FinishedGroups(ORDER, None, RUN)
    for index in reversed(ORDER):
        assert finished.add(made(index))
    assert_same(finished.sums, in_order(*ORDER))
    assert not any(tmp_path.iterdir())


def test_a_group_that_comes_twice_counts_once(tmp_path: Path) -> None:
    finished = FinishedGroups(ORDER, tmp_path / "kept", RUN)
    came = [7, 7, 1, 1, 4, 7, 4, 99]
    assert [finished.add(made(index)) for index in came] == [True, False, True, False, True, False, False, False]
    assert_same(finished.sums, in_order(1, 4, 7))
    assert (finished.tally.read, finished.tally.seconds) == (3 * 12 + 12, {"images": 1.5})


def test_a_group_in_the_sum_whose_own_file_is_still_there_counts_once(tmp_path: Path) -> None:
    """The run ended after the sum was written and before the files of what is in it were deleted."""
    kept = tmp_path / "kept"
    finished = FinishedGroups(ORDER, kept, RUN)
    finished.add(made(4))
    content = waiting_file(kept, 4).read_bytes()
    finished.add(made(1))
    waiting_file(kept, 4).write_bytes(content)
    again = FinishedGroups(ORDER, kept, RUN)
    assert waiting_files(kept) == []
    assert_same(again.sums, in_order(1, 4))


def test_a_group_without_pairs_is_finished_too(tmp_path: Path) -> None:
    finished = FinishedGroups([0, 1, 2], tmp_path / "kept", RUN)
    finished.add(GroupFactors(0, None, Tally(3, 3, {"0.png": "broken"})))
    finished.add(GroupFactors(2, None, Tally(1, 1)))
    finished.add(made(1))
    again = FinishedGroups([0, 1, 2], tmp_path / "kept", RUN)
    assert (again.left, again.sums.pairs, again.sums.tally.skipped) == ([], made(1).pairs, 6)


def test_what_one_process_has_finished_is_not_done_again(tmp_path: Path) -> None:
    """Only its group that is not finished is begun anew."""
    opened = OpenGroup(7, 2, {}, {})
    save_checkpoint(tmp_path / "kept", RUN, in_order(1, 4), opened)
    finished = FinishedGroups(ORDER, tmp_path / "kept", RUN)
    assert finished.left == ORDER[2:]
    for index in finished.left:
        finished.add(made(index))
    assert_same(finished.sums, in_order(*ORDER))


def test_groups_of_another_run_are_refused(tmp_path: Path) -> None:
    FinishedGroups(ORDER, tmp_path / "kept", RUN).add(made(4))
    with pytest.raises(BayesVLMError, match="another run: negatives is 8 there and 16 here; delete"):
        FinishedGroups(ORDER, tmp_path / "kept", {**RUN, "negatives": 16})


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished = FinishedGroups(ORDER, tmp_path / "kept", RUN)
    finished.add(made(1))
    with monkeypatch.context() as full:
        full.setattr("os.fsync", lambda file: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        for index in (4, 10):
            with pytest.raises(BayesVLMError, match=r"No space left on device; make room"):
                finished.add(made(index))
    assert finished.left == ORDER[1:]
    assert finished.add(made(4))
    assert_same(FinishedGroups(ORDER, tmp_path / "kept", RUN).sums, in_order(1, 4))
