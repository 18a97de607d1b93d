"""Small work is not split among the cores, large work is; results keep their order, and the setting comes back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from bayesvlm.core.threads import WORTH, in_threads, threads_for


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("operations", "threads"), [(0, 1), (1.9 * WORTH, 1), (2.1 * WORTH, 2), (1e9 * WORTH, 4)])
def test_threads_for_so_much_work(operations: float, threads: int) -> None:
    with threads_for(operations):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 4


def test_the_setting_comes_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda part: 1 // part, [1, 0], 0)
    assert torch.get_num_threads() == 4


@pytest.mark.parametrize(("operations", "most"), [(0, 1), (3 * WORTH, 3), (1e9 * WORTH, 4)])
def test_parts_in_order_each_in_one_thread(operations: float, most: int) -> None:
    seen: set[int] = set()

    def work(part: int) -> tuple[int, int]:
        seen.add(threading.get_ident())
        return part**2, torch.get_num_threads()

    found = in_threads(work, list(range(50)), operations)
    assert [square for square, _ in found] == [part**2 for part in range(50)]
    assert {threads for _, threads in found} == {1}, "no operation is split further"
    assert 1 <= len(seen) <= most
    assert in_threads(work, [], operations) == []


def test_two_at_once_leave_the_setting_as_it_was() -> None:
    """One begins, the other begins, the first ends, the second ends: each in a thread of its own."""
    first, second = threads_for(0), threads_for(0)
    steps = (first.__enter__, second.__enter__, lambda: first.__exit__(None, None, None))
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        for worker, step in zip((one, other, one), steps, strict=True):
            worker.submit(step).result()
        other.submit(second.__exit__, None, None, None).result()
    with ThreadPoolExecutor(1) as later:
        assert later.submit(torch.get_num_threads).result() == 4
