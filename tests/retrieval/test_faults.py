"""Processes killed while they add, two writers, a reader during compaction, a disk that fills up: nothing is lost."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from bayesvlm import BayesVLM
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.retrieval import Index, store
from bayesvlm.retrieval import index as settings
from bayesvlm.retrieval.identity import posterior_files
from bayesvlm.retrieval.making import stamped
from retrieval.conftest import P_TEXT, P, draw

FRESH = multiprocessing.get_context("forkserver")  # from a process in which nothing has begun
FRESH.set_forkserver_preload(["bayesvlm.retrieval"])


def add(at: str, start: int, count: int, step: int, noted: str) -> None:
    """In a process of its own: adds rows, and notes after each call that it returned."""
    index = Index.open(at)
    for first in range(start, start + count, step):
        ids = [f"item {place}" for place in range(first, first + step)]
        index.add(draw(step, P, first), ids, existing="skip", progress=False)
        with Path(noted).open("a") as file:
            file.write(f"{first}\n")


def noted(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


def there(at: Path, vlm: BayesVLM) -> Counter[int]:
    return Counter(int(row["id"].removeprefix("item ")) for row in Index.open(at, vlm).rows())


def test_a_process_that_is_killed_loses_nothing_it_was_promised(
    make: Callable[..., Index], vlm: BayesVLM, tmp_path: Path
) -> None:
    make(count=0)
    at, promised = tmp_path / "index", tmp_path / "noted"
    step = 20
    for least in (1, 8, 20):  # calls that returned before it is killed, in the middle of another one
        killed(add, (str(at), 0, 100_000, step, str(promised)), promised, least, 0.0)
        rows = there(at, vlm)
        assert max(rows.values()) == 1
        assert all(place in rows for first in noted(promised) for place in range(first, first + step))
        assert len(rows) % step == 0, "a call is there as a whole or not at all"
        index = Index.open(at, vlm)
        assert len(index.search(draw(1, P_TEXT, 1), k=5)[0]) == 5
        assert index.add(draw(1, P, 5), ["item 1000000"], existing="replace").rows == 1, "its lock went with it"
        index.delete("item 1000000")


def replace(at: str, promised: str) -> None:
    """In a process of its own: makes the index anew, again and again, each time with rows of its own."""
    vlm = Index.open(at).vlm
    for turn in range(100_000):
        Index.create(at, vlm, overwrite=True).add(draw(20, P, turn), [f"item {place}" for place in range(20)])
        with Path(promised).open("a") as file:
            file.write(f"{turn}\n")


def compact(at: str, promised: str) -> None:
    """In a process of its own: rows that come in many small files, and an index of vectors, again and again."""
    settings.ANN_ROWS = 300
    index = Index.open(at)
    for turn in range(100_000):
        index.add(draw(3, P, turn), [f"item {1000 + 3 * turn + place}" for place in range(3)], existing="replace")
        index.compact()
        with Path(promised).open("a") as file:
            file.write(f"{turn}\n")
        items = index._store.items
        items.drop_index(items.list_indices()[0].name)


def killed(run: Callable[..., None], arguments: tuple[Any, ...], promised: Path, least: int, after: float) -> None:
    """A process that does something again and again, killed some time after it has done it so many times."""
    process = FRESH.Process(target=run, args=arguments)
    before = len(noted(promised))
    process.start()
    while len(noted(promised)) < before + least:
        assert process.is_alive()
        time.sleep(0.003)
    time.sleep(after)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()


AFTER = (0.0, 0.01, 0.03)


def test_a_process_that_is_killed_while_it_replaces_an_index(
    make: Callable[..., Index], vlm: BayesVLM, tmp_path: Path
) -> None:
    make(count=20)
    at, asked, promised = tmp_path / "index", draw(1, P_TEXT, 1), tmp_path / "noted"
    for after in AFTER:
        killed(replace, (str(at), str(promised)), promised, 2, after)
        index = Index.open(at, vlm)
        assert len(index) in (0, 20), "one index or the other"
        assert len(index.search(asked, k=5, where={"id": ("!=", "")})[0]) == min(5, len(index))
        assert index.add(draw(1, P, 5), ["new"], existing="replace").rows == 1


def test_a_process_that_is_killed_while_it_compacts(
    make: Callable[..., Index], vlm: BayesVLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = make(count=0)
    index.add(draw(400, P, 1), [f"item {place}" for place in range(400)])
    at, asked, promised = tmp_path / "index", draw(5, P_TEXT, 1), tmp_path / "noted"
    before: set[int] = set(range(400))
    for after in AFTER:
        killed(compact, (str(at), str(promised)), promised, 1, after)
        rows = there(at, vlm)
        assert max(rows.values()) == 1
        assert rows.keys() >= before | {1000 + 3 * turn + place for turn in noted(promised) for place in range(3)}
        before = set(rows)
        again = Index.open(at, vlm)
        for found, exact in zip(again.search(asked), again.search(asked, exact=True), strict=True):
            assert len(set(found.ids) & set(exact.ids)) >= 8, "whether there is an index of vectors or not"
    monkeypatch.setattr(settings, "ANN_ROWS", 300)
    again.compact()
    assert again.info()["vector_index"]["unindexed_rows"] == 0


def test_two_writers(make: Callable[..., Index], vlm: BayesVLM, tmp_path: Path) -> None:
    make(count=0)
    at = str(tmp_path / "index")
    pair = [FRESH.Process(target=add, args=(at, start, 1000, 50, str(tmp_path / "noted"))) for start in (0, 1000)]
    for process in pair:
        process.start()
    for process in pair:
        process.join()
        assert process.exitcode == 0
    assert there(tmp_path / "index", vlm) == Counter(range(2000))


def test_two_writers_of_the_same_ids(make: Callable[..., Index], vlm: BayesVLM) -> None:
    """Each looks again what is there once the other has written: no id comes twice."""
    index = make(count=0)
    ids = [f"item {place}" for place in range(200)]
    errors: list[Exception] = []

    def write(seed: int) -> None:
        own = Index.open(index.place, vlm)
        for start in range(0, 200, 20):
            try:
                own.add(draw(20, P, seed), ids[start : start + 20], existing="skip", progress=False)
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert Counter(row["id"] for row in index.rows()) == Counter(ids)


def test_readers_while_it_is_compacted(make: Callable[..., Index], vlm: BayesVLM) -> None:
    index = make(count=0)
    for start in range(0, 60, 3):
        index.add(draw(3, P, start), [f"item {place}" for place in range(start, start + 3)])
    reader, asked = Index.open(index.place, vlm), draw(1, P_TEXT, 1)
    before = reader.search(asked, k=60)[0].ids
    done, found, errors = threading.Event(), [], []

    def read() -> None:
        while not done.is_set():
            try:
                found.append((reader.search(asked, k=60)[0].ids, len(list(reader.rows()))))
            except Exception as error:
                errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    slow = reader.rows()  # begun before, read on afterwards
    first = next(slow)
    for _ in range(5):
        index.compact()
    seen = [first, *slow]
    done.set()
    thread.join()
    assert not errors
    assert found
    assert all(each == (before, 60) for each in found)
    assert len(seen) == 60
    assert index.info()["fragments"] < 20


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own, of 6 MB."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("no file system can be mounted here, which takes root on Linux")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def test_a_disk_that_fills_up(vlm: BayesVLM, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        index = Index.create(disk / "index", vlm)
        with pytest.raises(BayesVLMError, match=r"No space left.*make room and do it again"):
            _fill(index)
        added = len(index)
        assert added > 0
        assert added % 2000 == 0
        again = Index.open(disk / "index", vlm)
        assert len(again) == added
        assert len({row["id"] for row in again.rows()}) == added
        assert len(again.search(draw(1, P_TEXT, 1))[0]) == 10
        with (disk / "other").open("wb", buffering=0) as file, suppress(OSError):
            while file.write(bytes(1000)):
                pass
        for way in (lambda: Index.create(disk / "index", vlm, overwrite=True), again.compact):
            with pytest.raises(BayesVLMError, match=r"No space left.*: what was there before is there"):
                way()
            assert len(Index.open(disk / "index", vlm).search(draw(1, P_TEXT, 1))[0]) == 10
        (disk / "other").unlink()
        assert len(Index.create(disk / "index", vlm, overwrite=True)) == 0


def _fill(index: Index) -> None:
    for start in range(0, 2_000_000, 2000):
        index.add(draw(2000, P, start), [f"item {place}" for place in range(start, start + 2000)])


FULL = r"File too large.*make room and do it again: what was there before is there\.$"


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """Files of this process may hold so many bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_files_that_may_not_grow(make: Callable[..., Index], vlm: BayesVLM, tmp_path: Path) -> None:
    """The same by a limit on the size of files, where nothing can be mounted."""
    index = make(count=20)
    with files_up_to(30_000), pytest.raises(BayesVLMError, match=FULL):
        index.add(draw(5000, P, 1), [f"more {place}" for place in range(5000)])
    assert len(Index.open(tmp_path / "index", vlm)) == 20
    assert index.add(draw(5000, P, 1), [f"more {place}" for place in range(5000)]).rows == 5000


def made(at: Path, vlm: BayesVLM, overwrite: bool, size: int) -> str | None:
    """Why making an index did not work where files hold so many bytes; None: it did."""
    files = posterior_files(vlm)  # which takes files of its own
    with pytest.MonkeyPatch.context() as patch, files_up_to(size):
        patch.setattr(settings, "posterior_files", lambda _: files)
        try:
            Index.create(at, vlm, overwrite=overwrite)
        except BayesVLMError as error:
            return str(error)
    return None


SIZES = (0, 300, 1000, 3000, 10_000, 100_000)


def test_an_index_that_cannot_be_replaced_is_still_there(make: Callable[..., Index], vlm: BayesVLM) -> None:
    other, index, asked = vlm.replace(tau=3.0), make(count=20), draw(1, P_TEXT, 1)
    at, before = Path(index.place), index.search(asked, k=3)[0]
    reasons: list[str | None] = []
    for size in SIZES:
        reasons.append(made(at, other, True, size))
        if reasons[-1] is None:
            break
        assert re.search(FULL, reasons[-1])
        for still in (index, Index.open(at), Index.open(at, vlm)):
            assert still.search(asked, k=3)[0].ids == before.ids
        with pytest.raises(BayesVLMError, match="holds an index already"):
            Index.create(at, vlm)
    assert reasons[-1] is None
    assert len(Index.open(at, other)) == 0
    names = Index.open(at)._store._db.open_table("files").to_arrow()["name"].to_pylist()
    assert len({name.split("/")[0] for name in names}) == 1, "nothing is left of those that were not made"


@pytest.mark.parametrize("there", [True, False])
def test_a_disk_that_is_full_at_the_last_commit_of_making_one(
    there: bool, make: Callable[..., Index], vlm: BayesVLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = tmp_path / "index"
    if there:
        make(count=20)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    def filled(*given: Any) -> Any:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        return stamped(*given)

    monkeypatch.setattr(store, "stamped", filled)
    with files_up_to(100_000), pytest.raises(BayesVLMError, match=FULL):
        Index.create(at, vlm, overwrite=there)
    monkeypatch.undo()
    if there:
        assert len(Index.open(at, vlm).search(draw(1, P_TEXT, 1), k=3)[0]) == 3
    else:
        with pytest.raises(BayesVLMError, match="making this one was not finished"):
            Index.open(at)
    assert len(Index.create(at, vlm, overwrite=there)) == 0


def test_an_index_that_cannot_be_made_leaves_nothing_in_the_way(vlm: BayesVLM, tmp_path: Path) -> None:
    for size in SIZES:
        at = tmp_path / str(size)
        for overwrite in (False, True):
            reason = made(at, vlm, overwrite, size)
            if reason is None:
                assert size > 300
                break
            assert re.search(FULL, reason)
            with pytest.raises(BayesVLMError, match="holds no index"):
                Index.open(at)
        Index.create(at, vlm, overwrite=reason is None)
        assert len(Index.open(at, vlm)) == 0


def test_a_full_disk_while_an_index_is_compacted_or_calibrated(make: Callable[..., Index], vlm: BayesVLM) -> None:
    index, asked = make(count=0), draw(60, P_TEXT, 1)
    for start in range(0, 60, 10):
        index.add(draw(10, P, start), [f"item {place}" for place in range(start, start + 10)])
    before = [hits.ids for hits in index.search(asked, k=5)]
    for size in (0, 100, 1000):
        for way in (index.compact, lambda: index.calibrate(asked, None)):
            with files_up_to(size), pytest.raises(BayesVLMError, match=FULL):
                way()
            for still in (index, Index.open(index.place, vlm)):
                assert [hits.ids for hits in still.search(asked, k=5)] == before
                assert still.calibration is None
    index.compact()
    index.calibrate(asked, None)
    assert [hits.ids for hits in Index.open(index.place, vlm).search(asked, k=5)] == before


def test_a_folder_that_cannot_be_written(
    make: Callable[..., Index], vlm: BayesVLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the operating system says so: whoever runs the tests may be root, whom nothing stops."""
    index = make(count=5)

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied", ".writer.lock")

    monkeypatch.setattr(Path, "touch", refused)
    with pytest.raises(BayesVLMError, match=r"cannot be written: .*Permission denied"):
        index.add(draw(1, P, 1), ["new"])
    monkeypatch.undo()
    assert len(index) == 5


def test_making_one_that_was_not_finished(vlm: BayesVLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stops(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "stamped", stops)
    with pytest.raises(KeyboardInterrupt):
        Index.create(tmp_path / "index", vlm)
    monkeypatch.undo()
    with pytest.raises(BayesVLMError, match="making this one was not finished"):
        Index.open(tmp_path / "index")
    assert len(Index.create(tmp_path / "index", vlm)) == 0
    assert len(Index.open(tmp_path / "index")) == 0


def test_an_index_that_was_made_anew_since_it_was_opened(vlm: BayesVLM, make: Callable[..., Index]) -> None:
    """Rows of one posterior never stand beside those of another, nor are they compared by it."""
    other = vlm.replace(tau=3.0)
    asked, relevant = draw(60, P_TEXT, 3), [f"item {place % 20}" for place in range(60)]
    before, looked = make(count=20, columns={"year": list(range(20))}), Index.look(make(count=0, name="x").place)
    after = Index.create(before.place, other, overwrite=True)
    assert len(after) == 0
    after.add(draw(30, P, 1), [f"item {place}" for place in range(30)], columns={"year": list(range(30))})
    after.calibrate(asked, None)
    Index.create(looked.place, vlm, overwrite=True)
    for way in (
        lambda: before.add(draw(1, P, 5), ["new"]),
        lambda: before.add(draw(1, P, 5), ["item 3"], existing="replace"),
        lambda: before.update(["item 3"], {"year": [3]}),
        lambda: before.delete(["item 3"]),
        lambda: before.delete(where={"year": 3}),
        before.compact,
        lambda: before.calibrate(asked, relevant),
        lambda: before.calibrate(asked, None),
        lambda: before.search(asked, k=3),
        lambda: before.search(asked[:1], k=3, where={"year": (">", 3)}),
        lambda: list(before.rows()),
        lambda: list(before.rows({"id": "nothing"})),
        lambda: before.get("nothing"),
        lambda: len(before),
        before.info,
        looked.info,
    ):
        with pytest.raises(BayesVLMError, match=r"was made anew since it was opened; open it again\.$"):
            way()
    again = Index.open(before.place, other)
    assert sorted(row["id"] for row in again.rows()) == sorted(f"item {place}" for place in range(30))
    assert again.calibration is not None
    assert again.calibration.summary() == after.calibration.summary()  # type: ignore[union-attr]
    assert again.search(asked[:1], k=3)[0].ids == after.search(asked[:1], k=3)[0].ids


def test_an_index_that_was_made_anew_with_other_widths(make: Callable[..., Index], tmp_path: Path) -> None:
    from bayesvlm import BayesVLM

    generator = torch.Generator().manual_seed(0)
    image, text = (torch.randn(8, width, generator=generator) for width in (P, P_TEXT))
    narrow = BayesVLM.from_projections(image, text, 3.0)
    narrow.fit([(draw(64, P, 1), draw(64, P_TEXT, 2))], negatives=64, progress=False)
    before = make(count=20)
    Index.create(before.place, narrow, overwrite=True).add(draw(5, P, 1), list("abcde"))
    with pytest.raises(BayesVLMError, match="was made anew"):
        before.search(draw(1, P_TEXT, 1), k=3)
    assert len(Index.open(before.place)) == 5


def test_an_index_that_was_removed_since_it_was_opened(make: Callable[..., Index], tmp_path: Path) -> None:
    index = make(count=20)
    shutil.rmtree(tmp_path / "index")
    for way in (lambda: index.search(draw(1, P_TEXT, 1)), lambda: list(index.rows()), lambda: len(index)):
        with pytest.raises(BayesVLMError, match="Table 'items' was not found"):
            way()


def test_an_index_of_a_later_version_and_a_damaged_one(make: Callable[..., Index], tmp_path: Path) -> None:
    index = make(count=1)
    index._store.put_files({"index.json": b'{"bayesvlm_index": 99}'})
    with pytest.raises(BayesVLMError, match="schema 99, this version reads 1; upgrade"):
        Index.open(tmp_path / "index")
    index._store.put_files({"index.json": b"no json"})
    with pytest.raises(BayesVLMError, match="is damaged"):
        Index.open(tmp_path / "index")
