"""The feature cache: what it gives back is what was encoded for that very key, whatever happened to its files."""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import queue
import re
import resource
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from safetensors import safe_open
from torch import Tensor

from bayesvlm import BayesVLMError
from bayesvlm.data import cache as module
from bayesvlm.data.cache import Entry, FeatureCache, Part, default_cache, tensor_fingerprint

KEY: dict[str, Any] = {
    "model": "tiny-clip",
    "revision": None,
    "data": {"name": "pets", "sha256": "abc", "prompts": ["a {c}.", "a löwe"]},
    "dtype": "float32",
}
SAMPLES, BATCH = 23, 3


def rows_of(number: int) -> dict[str, Tensor]:
    """What the encoder makes of one sample, the same whatever batch it is in."""
    draw = torch.Generator().manual_seed(number)
    return {
        "activations": torch.randn(5, generator=draw),
        "residual": torch.randn(2, 2, generator=draw).to(torch.bfloat16),
        "labels": torch.tensor(number),
    }


def unreadable(number: int) -> bool:
    return number % 7 == 4 or 12 <= number < 15  # the latter are a whole batch


class Encoder:
    """Encodes SAMPLES samples in batches of BATCH; remembers where it was asked to start, and may fail on the way."""

    def __init__(self, fails_at: int | None = None, samples: int = SAMPLES) -> None:
        self.fails_at, self.samples, self.starts = fails_at, samples, list[int]()

    def __call__(self, start: int) -> Iterator[Part]:
        self.starts.append(start)
        for first in range(start, self.samples, BATCH):
            numbers = range(first, min(first + BATCH, self.samples))
            if self.fails_at in numbers:
                raise KeyboardInterrupt
            made = {number: rows_of(number) for number in numbers if not unreadable(number)}
            names = next(iter(made.values()), {})
            tensors = {name: torch.stack([rows[name] for rows in made.values()]) for name in names}
            skipped = [{"key": f"{n}.png", "why": "torn"} for n in numbers if n not in made]
            yield Part(tensors, {"keys": [f"{n}.png" for n in made], "skipped": skipped}, len(numbers))


def check_complete(entry: Entry | None, samples: int = SAMPLES) -> None:
    """Every readable sample once, in order, bit for bit."""
    assert entry is not None
    numbers = [number for number in range(samples) if not unreadable(number)]
    assert entry.tensors.keys() == rows_of(0).keys()
    for name, tensor in entry.tensors.items():
        expected = torch.stack([rows_of(number)[name] for number in numbers])
        assert tensor.dtype == expected.dtype, name
        assert torch.equal(tensor, expected), name
    assert entry.notes["keys"] == [f"{number}.png" for number in numbers]
    assert [note["key"] for note in entry.notes["skipped"]] == [f"{n}.png" for n in range(samples) if unreadable(n)]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def entry_file(folder: Path) -> Path:
    (path,) = (path for path in folder.glob("*.safetensors") if ".part-" not in path.name)
    return path


def part_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.part-*.safetensors"))


def interrupted(folder: Path, fails_at: int, part_rows: int = 5) -> list[Path]:
    with pytest.raises(KeyboardInterrupt):
        FeatureCache(folder).collect(KEY, Encoder(fails_at), part_rows)
    return part_files(folder)


def header(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return dict(json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")]))


@pytest.fixture
def cache(tmp_path: Path) -> FeatureCache:
    return FeatureCache(tmp_path / "cache")


# An entry ------------------------------------------------------------------------------------------------------------


def test_what_is_put_comes_back_bit_for_bit_in_every_dtype(cache: FeatureCache) -> None:
    draw = torch.Generator().manual_seed(0)
    given = {
        f"{str(dtype)[6:]}-{width}": torch.randint(0, 2, (7, width), generator=draw).to(dtype)
        for dtype in module._DTYPES
        for width in (0, 1, 3)
    }
    given["strided"] = torch.randn(3, 7, generator=draw).T
    given["one dimension"] = torch.arange(7)
    given["shared"] = given["one dimension"]
    given["rows of another"] = torch.randn(20, 3, generator=draw)[5:12].requires_grad_()
    notes = {"keys": ["ü.png", "\udce9.png", 'q"\n'], "counts": [1, 2.5, None, {"a": [True]}]}
    put = cache.put(KEY, given, notes)
    for entry in (put, cache.get(KEY)):
        assert entry is not None
        assert entry.notes == notes
        assert entry.tensors.keys() == given.keys()
        for name, tensor in given.items():
            assert entry.tensors[name].dtype == tensor.dtype, name
            assert torch.equal(entry.tensors[name], tensor), name
            assert entry.tensors[name].data_ptr() % tensor.itemsize == 0, f"{name} is not aligned"


def test_special_values_keep_their_bits(cache: FeatureCache) -> None:
    values = torch.tensor([[-0.0, 5e-324, torch.finfo(torch.float64).max]], dtype=torch.float64)
    entry = cache.put(KEY, {"activations": values})
    assert torch.equal(entry.tensors["activations"].view(torch.int64), values.view(torch.int64))


def test_no_rows_are_an_entry_too(cache: FeatureCache) -> None:
    cache.put(KEY, {"activations": torch.empty(0, 4)})
    entry = cache.get(KEY)
    assert entry is not None
    assert entry.tensors["activations"].shape == (0, 4)
    assert entry.notes == {}


def test_safetensors_itself_reads_the_file_and_finds_the_key_in_it(cache: FeatureCache) -> None:
    cache.put(KEY, {"activations": torch.ones(3, 2)}, {"keys": ["a", "b", "c"]})
    with safe_open(entry_file(cache.folder), framework="pt") as file:
        assert json.loads(file.metadata()["identity"]) == {"schema": module.SCHEMA, "key": KEY}
        assert torch.equal(file.get_tensor("rows.activations"), torch.ones(3, 2))


def test_the_order_of_a_keys_names_does_not_matter_and_a_second_put_replaces(cache: FeatureCache) -> None:
    cache.put(KEY, {"activations": torch.zeros(3, 2)})
    held = cache.get(KEY)
    cache.put(dict(reversed(KEY.items())), {"activations": torch.ones(1, 2)})
    found = cache.get(KEY)
    assert found is not None
    assert torch.equal(found.tensors["activations"], torch.ones(1, 2))
    assert held is not None
    assert torch.equal(held.tensors["activations"], torch.zeros(3, 2)), "what a reader holds does not change under it"
    assert len(names(cache.folder)) == 1


@pytest.mark.parametrize(
    "other",
    [
        {**KEY, "data": {**KEY["data"], "sha256": "abd"}},
        {**KEY, "data": {**KEY["data"], "prompts": ["a löwe", "a {c}."]}},
        {**KEY, "revision": "None"},
        {**KEY, "more": None},
        {name: value for name, value in KEY.items() if name != "revision"},
        {"schema": 1, "key": KEY},
    ],
)
def test_a_key_that_differs_in_one_value_is_another_entry(cache: FeatureCache, other: dict[str, Any]) -> None:
    cache.put(KEY, {"activations": torch.ones(3, 2)})
    assert cache.get(other) is None
    assert cache.get(KEY) is not None


def test_the_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("BAYESVLM_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_cache() == tmp_path / ".cache" / "bayesvlm"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache() == tmp_path / "xdg" / "bayesvlm"
    monkeypatch.setenv("BAYESVLM_CACHE", "~/chosen")
    assert default_cache() == FeatureCache().folder == tmp_path / "chosen"


# Mapped, not read ----------------------------------------------------------------------------------------------------


def resident(path: Path) -> tuple[int, int]:
    """Bytes of a file that this process has mapped, and those of them that have been brought into memory."""
    mapped = touched = 0
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Size:"):
            mapped += int(line.split()[1]) * 1024
        elif inside and line.startswith("Rss:"):
            touched += int(line.split()[1]) * 1024
    return mapped, touched


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux says what is mapped, others do not")
def test_loading_maps_the_file_and_reads_only_what_is_used(cache: FeatureCache) -> None:
    size = 2**26
    cache.put(KEY, {"activations": torch.ones(2**14, 2**10), "labels": torch.arange(2**14)}, {"keys": ["k"] * 2**14})
    path = entry_file(cache.folder)
    assert resident(path) == (0, 0)
    entry = cache.get(KEY)
    assert entry is not None
    mapped, touched = resident(path)
    assert mapped >= size
    assert touched < size // 8
    assert float(entry.tensors["activations"][100].sum()) == 2**10
    assert resident(path)[1] < size // 4
    assert float(entry.tensors["activations"].sum()) == 2**24
    assert resident(path)[1] >= size, "the measurement sees what is read"


def test_changing_a_loaded_tensor_does_not_change_the_file(cache: FeatureCache) -> None:
    before = cache.put(KEY, {"activations": torch.ones(3, 2)})
    before.tensors["activations"].zero_()
    after = cache.get(KEY)
    assert after is not None
    assert torch.equal(after.tensors["activations"], torch.ones(3, 2))


# Collecting and resuming ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part_rows", [1, 5, 4096])
def test_collecting_encodes_once_and_leaves_one_file(
    cache: FeatureCache, caplog: pytest.LogCaptureFixture, part_rows: int
) -> None:
    encode = Encoder()
    check_complete(cache.collect(KEY, encode, part_rows))
    check_complete(cache.collect(KEY, encode, part_rows))
    check_complete(cache.get(KEY))
    assert encode.starts == [0]
    assert len(names(cache.folder)) == 1
    assert caplog.text == "", "an entry that is not there yet is nothing to speak of"


@pytest.mark.parametrize("fails_at", range(0, SAMPLES, BATCH))
def test_an_interrupted_run_goes_on_where_its_last_part_ends(tmp_path: Path, fails_at: int) -> None:
    """Interrupted in every batch, resumed, interrupted again: the file is the one of a run that was left alone."""
    cut, alone = tmp_path / "cut", tmp_path / "alone"
    interrupted(cut, fails_at)
    done = {0: 0, 3: 0, 6: 6, 9: 6, 12: 12, 15: 12, 18: 12, 21: 21}[fails_at]  # samples that gave 5 rows, 10, 15
    encode = Encoder()
    check_complete(FeatureCache(cut).collect(KEY, encode, part_rows=2))
    assert encode.starts == [done]
    FeatureCache(alone).collect(KEY, Encoder())
    assert names(cut) == names(alone)
    assert entry_file(cut).read_bytes() == entry_file(alone).read_bytes()


def test_several_interruptions(tmp_path: Path) -> None:
    counts = [len(interrupted(tmp_path, fails_at, part_rows=2)) for fails_at in (7, 11, 19)]
    assert counts == sorted(set(counts)), "every run adds parts"
    check_complete(FeatureCache(tmp_path).collect(KEY, Encoder()))


def test_a_run_cut_off_while_merging_encodes_nothing_again(
    cache: FeatureCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*_: object) -> Entry:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FeatureCache, "_finish", cut_off)
        with pytest.raises(KeyboardInterrupt):
            cache.collect(KEY, Encoder(samples=21), part_rows=1)
    encode = Encoder(samples=21)
    check_complete(cache.collect(KEY, encode), samples=21)
    assert encode.starts == [21]


@pytest.mark.parametrize("damage", ["truncated", "empty", "flipped", "missing", "another's", "number"])
def test_a_part_that_does_not_fit_is_encoded_again(tmp_path: Path, damage: str) -> None:
    parts = interrupted(tmp_path, fails_at=20, part_rows=3)
    assert len(parts) == 3
    content = parts[1].read_bytes()
    if damage == "truncated":
        parts[1].write_bytes(content[:-1])
    elif damage == "empty":
        parts[1].write_bytes(b"")
    elif damage == "flipped":
        parts[1].write_bytes(content.replace(b'"read"', b'"reed"'))
    elif damage == "missing":
        parts[1].unlink()
    elif damage == "number":
        parts[1].write_bytes(parts[2].read_bytes())
    else:
        with pytest.raises(KeyboardInterrupt):
            FeatureCache(tmp_path / "other").collect({**KEY, "model": "other"}, Encoder(20), part_rows=3)
        parts[1].write_bytes(part_files(tmp_path / "other")[1].read_bytes())
    encode = Encoder()
    check_complete(FeatureCache(tmp_path).collect(KEY, encode, part_rows=4))
    assert encode.starts == [3], "the first part stays"


def test_parts_that_overlap_are_not_joined(tmp_path: Path) -> None:
    """Parts of two runs with other sizes: number 1 of the one does not begin where number 0 of the other ends."""
    small, large = tmp_path / "small", tmp_path / "large"
    interrupted(small, 20, part_rows=3)
    interrupted(large, 20, part_rows=5)
    part_files(small)[0].write_bytes(part_files(large)[0].read_bytes())
    encode = Encoder()
    check_complete(FeatureCache(small).collect(KEY, encode))
    assert encode.starts == [6]


def test_an_encoder_may_write_the_next_part_over_the_last(cache: FeatureCache) -> None:
    buffer, notes = torch.empty(2, 3), ["", ""]

    def encode(start: int) -> Iterator[Part]:
        for number in range(start, 10, 2):
            buffer.fill_(number)
            notes[:] = [str(number), str(number + 1)]
            yield Part({"activations": buffer}, {"keys": notes}, 2)

    entry = cache.collect(KEY, encode, part_rows=4)
    assert entry.tensors["activations"][:, 0].tolist() == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8]
    assert entry.notes["keys"] == [str(number) for number in range(10)]


# Files that cannot be used -------------------------------------------------------------------------------------------


def check_made_again(cache: FeatureCache, caplog: pytest.LogCaptureFixture, note: str) -> None:
    with caplog.at_level(logging.WARNING, logger=module.__name__):
        assert cache.get(KEY) is None
    assert note in caplog.text
    encode = Encoder()
    check_complete(cache.collect(KEY, encode))
    assert encode.starts == [0]
    check_complete(FeatureCache(cache.folder).get(KEY))


@pytest.mark.parametrize("kept", [0, 7, 8, 100, 0.5, -1])
def test_a_truncated_file_is_made_again(cache: FeatureCache, caplog: pytest.LogCaptureFixture, kept: float) -> None:
    cache.collect(KEY, Encoder())
    path = entry_file(cache.folder)
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content)) if 0 < kept < 1 else int(kept)])
    check_made_again(cache, caplog, "is not used")


@pytest.mark.parametrize("content", [b"PK\x03\x04" + bytes(200), b"\x80\x04" + bytes(200), b"{}", b"\xff" * 300])
def test_something_else_under_the_name_is_made_again(
    cache: FeatureCache, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    cache.collect(KEY, Encoder())
    entry_file(cache.folder).write_bytes(content)
    check_made_again(cache, caplog, "is not used")


def test_an_entry_copied_under_another_name_is_made_again(
    cache: FeatureCache, caplog: pytest.LogCaptureFixture
) -> None:
    other = {**KEY, "data": {**KEY["data"], "sha256": "abd"}}
    cache.put(other, {"activations": torch.ones(3, 2)})
    entry_file(cache.folder).rename(cache._path(KEY))
    check_made_again(cache, caplog, "made for another key")


def test_a_part_under_the_name_of_its_entry_is_made_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    part = interrupted(tmp_path, 20)[0]
    for path in part_files(tmp_path)[1:]:
        path.unlink()
    cache = FeatureCache(tmp_path)
    part.rename(cache._path(KEY))
    check_made_again(cache, caplog, "made for another key")


def test_another_schema_is_made_again(
    cache: FeatureCache, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module, "SCHEMA", module.SCHEMA + 1)
        cache.collect(KEY, Encoder())
        written = entry_file(cache.folder)
    assert cache.get(KEY) is None
    written.rename(cache._path(KEY))
    check_made_again(cache, caplog, "by another version")


def test_no_byte_of_the_header_or_the_notes_can_change_unseen(cache: FeatureCache) -> None:
    """Every byte but those of the rows, flipped: the file is not used, or means exactly what it meant."""
    rows = {"activations": torch.arange(6.0).reshape(2, 3), "labels": torch.tensor([3, 4])}
    cache.put({"model": "m"}, rows, {"keys": ["a", "b"]})
    path = entry_file(cache.folder)
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    stored = sum(tensor.nbytes for tensor in rows.values())
    used = 0
    for place in itertools.chain(range(start), range(start + stored, len(content))):
        for bit in range(8):
            flipped = bytearray(content)
            flipped[place] ^= 1 << bit
            path.write_bytes(flipped)
            entry = cache.get({"model": "m"})
            if entry is not None:
                used += 1
                assert entry.notes == {"keys": ["a", "b"]}
                assert entry.tensors.keys() == rows.keys()
                assert all(torch.equal(entry.tensors[name], tensor) for name, tensor in rows.items())
    assert used <= 16, "only blanks around the json may change"
    path.write_bytes(content)
    assert cache.get({"model": "m"}) is not None


# Processes -----------------------------------------------------------------------------------------------------------

CHILD = "import runpy, sys; runpy.run_path(sys.argv[1])[sys.argv[2]](*sys.argv[3:])"


def spawned(function: Callable[..., None], *arguments: object) -> subprocess.Popen[str]:
    """A function of this file in a fresh Python, where nothing is shared with this one."""
    command = [sys.executable, "-c", CHILD, __file__, function.__name__, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def refuse_locks() -> None:
    """As on a file system without locks."""

    def refuse(self: object, **_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    FileLock.acquire = refuse  # type: ignore[assignment, method-assign]


def collect_beside_another(folder: str, me: str, other: str, locks: str) -> None:
    """Collect, but give no row before the other process encodes too or waits; print where encoding started."""
    if locks == "without":
        refuse_locks()
    encode, here, there = Encoder(), Path(folder, f"{me}.here"), Path(folder, f"{other}.here")

    def note_waiting(record: logging.LogRecord) -> bool:
        if "waiting for it" in record.getMessage():
            here.touch()
        return True

    def beside(start: int) -> Iterator[Part]:
        here.touch()
        late = time.monotonic() + 60
        while not there.exists():
            assert time.monotonic() < late, "the other process did not come"
            time.sleep(0.005)
        for part in encode(start):
            time.sleep(0.01)
            yield part

    module.logger.addFilter(note_waiting)
    check_complete(FeatureCache(Path(folder, "cache")).collect(KEY, beside, part_rows=3 if me == "a" else 4))
    print(json.dumps(encode.starts))


@pytest.mark.parametrize("locks", ["with", "without"])
def test_two_processes_that_collect_the_same_entry_at_once_both_end_with_it(tmp_path: Path, locks: str) -> None:
    children = [spawned(collect_beside_another, tmp_path, *order, locks) for order in ("ab", "ba")]
    outputs = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0, 0], outputs
    starts = sorted(json.loads(output) for output, _ in outputs)
    assert starts == ([[], [0]] if locks == "with" else [[0], [0]]), "one waits for the other where files can be locked"
    check_complete(FeatureCache(tmp_path / "cache").get(KEY))
    assert len(names(tmp_path / "cache")) == 1


def test_who_waited_for_a_lock_holds_the_one_that_others_ask_for(cache: FeatureCache) -> None:
    """The process before removes its lock file: a lock on what is removed would keep nobody out."""
    fcntl = pytest.importorskip("fcntl")
    lock, waits, done = cache.folder / "name.lock", threading.Event(), queue.Queue[object]()

    def note_waiting(record: logging.LogRecord) -> bool:
        waits.set()
        return False

    def wait_and_ask() -> None:
        try:
            with cache._locked(lock), lock.open() as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            done.put("somebody else could lock it too")
        except OSError as error:
            done.put(type(error))

    module.logger.addFilter(note_waiting)
    waiter = threading.Thread(target=wait_and_ask, daemon=True)
    try:
        with cache._locked(lock):
            waiter.start()
            assert waits.wait(60)
    finally:
        module.logger.removeFilter(note_waiting)
    assert done.get(timeout=60) is BlockingIOError
    waiter.join()
    assert names(cache.folder) == []


def collect_and_die(folder: str, where: str) -> None:
    """Be killed while the second part is being put into place, or while encoding."""
    encode, replace, replaced = Encoder(), os.replace, itertools.count()

    def die(*_: object, **__: object) -> None:
        os._exit(9)

    def dying(start: int) -> Iterator[Part]:
        for number, part in enumerate(encode(start)):
            if where == "encoding" and number == 5:
                die()
            yield part

    if where == "replacing":
        os.replace = lambda *paths: die() if next(replaced) == 1 else replace(*paths)  # type: ignore[assignment]
    FeatureCache(folder).collect(KEY, dying, part_rows=3)


def killed(folder: Path, where: str) -> None:
    child = spawned(collect_and_die, folder, where)
    _, errors = child.communicate(timeout=120)
    assert child.returncode == 9, errors


def test_a_process_killed_before_a_file_is_in_place_leaves_nothing_that_is_read(tmp_path: Path) -> None:
    killed(tmp_path, "replacing")
    (left,) = tmp_path.glob(".*.bayesvlm-tmp")
    assert header(left)["__metadata__"]["read"], "the file itself was whole"
    assert len(part_files(tmp_path)) == 1
    cache, encode = FeatureCache(tmp_path), Encoder()
    assert cache.get(KEY) is None
    check_complete(cache.collect(KEY, encode))
    assert encode.starts == [3]
    assert left.exists(), "it could belong to a writer that is still at work"
    os.utime(left, (time.time() - 25 * 3600,) * 2)
    foreign = tmp_path / ".something.tmp"
    foreign.touch()
    os.utime(foreign, (0, 0))
    cache.put({"model": "another"}, {"activations": torch.ones(1, 1)})
    assert not left.exists()
    assert foreign.exists(), "only the cache's own files are removed"


def test_a_process_killed_while_encoding_frees_its_lock(tmp_path: Path) -> None:
    killed(tmp_path, "encoding")
    assert list(tmp_path.glob("*.lock"))
    encode = Encoder()
    check_complete(FeatureCache(tmp_path).collect(KEY, encode))
    assert encode.starts == [9]
    assert len(names(tmp_path)) == 1


def test_parts_of_a_finished_entry_are_removed_some_day(tmp_path: Path) -> None:
    kept = interrupted(tmp_path, 20)
    content = kept[0].read_bytes()
    cache = FeatureCache(tmp_path)
    cache.collect(KEY, Encoder())
    kept[0].write_bytes(content)  # as where the process is killed before it removes them
    unfinished = kept[0].with_name("0" * 64 + ".part-00000.safetensors")
    unfinished.write_bytes(content)
    for path in (kept[0], unfinished):
        os.utime(path, (0, 0))
    check_complete(cache.collect(KEY, Encoder()))
    cache.put({"model": "another"}, {"activations": torch.ones(1, 1)})
    assert not kept[0].exists()
    assert unfinished.exists(), "the parts of an entry that is not finished are work that need not be done again"


# Sentences -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        ({"a": torch.ones(3, 2), "b": torch.ones(2)}, "b has 2 rows, a has 3; .* equally many rows"),
        ({"a": torch.ones(3, 2), "b": torch.tensor(1)}, r"b is torch.int64 of shape \[\]; .* a row for each input"),
        ({"a": torch.ones(3, 2, dtype=torch.complex64)}, "a is torch.complex64 .* float32"),
        ({"a": torch.tensor([[1.0], [float("nan")]])}, "a holds NaN or Inf in row 1, .* wider dtype"),
        ({"a": torch.tensor([1.0, 2.0, float("inf")], dtype=torch.float16)}, "a holds NaN or Inf in row 2"),
        ({"a": torch.ones(5000, 1, 2).index_fill_(0, torch.tensor(4500), -torch.inf)}, "Inf in row 4500"),
        ({}, "nothing to cache"),
    ],
)
def test_tensors_that_are_no_entry_are_refused(cache: FeatureCache, tensors: dict[str, Tensor], sentence: str) -> None:
    with pytest.raises(BayesVLMError, match=sentence):
        cache.put(KEY, tensors)
    assert not cache.folder.exists()


def test_the_row_that_is_not_finite_is_counted_over_all_parts_and_the_parts_before_stay(cache: FeatureCache) -> None:
    def encode(start: int) -> Iterator[Part]:
        for number in range(start, 6):
            yield Part({"activations": torch.full((1, 2), torch.nan if number == 4 else 1.0)}, {}, 1)

    with pytest.raises(BayesVLMError, match="activations holds NaN or Inf in row 4"):
        cache.collect(KEY, encode, part_rows=2)
    assert len(part_files(cache.folder)) == 2
    assert cache.get(KEY) is None


@pytest.mark.parametrize(
    ("second", "sentence"),
    [
        (
            Part({"a": torch.ones(2, 4)}, {}, 2),
            r"A part holds a float32 \['n', 4\], the first one a float32 \['n', 3\]",
        ),
        (Part({"a": torch.ones(2, 3).half()}, {}, 2), "a float16 .* same tensors, dtypes and widths"),
        (Part({"b": torch.ones(2, 3)}, {}, 2), "A part holds b float32"),
        (Part({"a": torch.ones(2, 3)}, {}, 1), "2 rows says that 1 samples were read; expected at least"),
        (Part({"a": torch.ones(2, 3)}, {"keys": "ab"}, 2), "The note 'keys' is 'ab'; expected a list"),
        (Part({"a": torch.ones(2, 3)}, {"keys": [Path("a")]}, 2), "notes keys cannot be written as json"),
        (Part({"a": torch.ones(2, 3)}, {"keys": [torch.nan]}, 2), "notes keys cannot be written as json"),
    ],
)
@pytest.mark.parametrize("part_rows", [1, 100])
def test_parts_that_do_not_fit_are_refused(cache: FeatureCache, second: Part, sentence: str, part_rows: int) -> None:
    first = Part({"a": torch.ones(2, 3)}, {}, 2)
    with pytest.raises(BayesVLMError, match=sentence):
        cache.collect(KEY, lambda start: [first, second][start // 2 :], part_rows)
    assert cache.get(KEY) is None
    mended = cache.collect(KEY, lambda start: [first, first][start // 2 :], part_rows)
    assert torch.equal(mended.tensors["a"], torch.ones(4, 3)), "nothing of the bad part was kept"


def test_data_of_which_nothing_can_be_read_is_not_cached(cache: FeatureCache) -> None:
    with pytest.raises(BayesVLMError, match="9 samples were read and gave no row; look at the data"):
        cache.collect(KEY, lambda start: [Part({}, {"skipped": ["x"]}, 3)] * 3)
    assert cache.get(KEY) is None


CIRCULAR: dict[str, Any] = {}
CIRCULAR["self"] = CIRCULAR


@pytest.mark.parametrize(
    "key", [{"dtype": torch.float32}, {"path": Path("x")}, {"tau": float("nan")}, CIRCULAR, "text"]
)
def test_a_key_that_is_not_json_is_refused(cache: FeatureCache, key: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: cache.get(key),
        lambda: cache.put(key, {"a": torch.ones(1)}),
        lambda: cache.collect(key, Encoder()),
    ]
    for call in calls:
        with pytest.raises(BayesVLMError, match=r"(?s)^The key .* cannot be written as json .*; use strings"):
            call()


def test_part_rows_is_a_count(cache: FeatureCache) -> None:
    with pytest.raises(BayesVLMError, match="part_rows is 0"):
        cache.collect(KEY, Encoder(), 0)


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BayesVLMError, match=r"^The cache .*file is a file; expected a folder"):
        FeatureCache(tmp_path / "file")
    below, encode = FeatureCache(tmp_path / "file" / "below"), Encoder()
    with pytest.raises(BayesVLMError, match=r"^The cache .*below cannot be written: Not a directory; make room"):
        below.collect(KEY, encode)
    assert encode.starts == [], "found out before the work is done"


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that an ordinary user can reach, unlike pytest's own when root runs it."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@contextmanager
def ordinary_user() -> Iterator[None]:
    """Permissions do not bind root: be nobody for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    mode = stat.S_IMODE(folder.stat().st_mode)
    folder.chmod(0o555)
    try:
        with ordinary_user():
            yield
    finally:
        folder.chmod(mode)


def test_a_folder_that_cannot_be_written_can_be_read(shared: Path) -> None:
    cache, encode, other = FeatureCache(shared), Encoder(), {**KEY, "model": "other"}
    cache.collect(KEY, encode)
    with read_only(shared):
        check_complete(cache.get(KEY))
        check_complete(cache.collect(KEY, encode))
        with pytest.raises(
            BayesVLMError, match=r"^The cache .* cannot be written: Permission denied; .* BAYESVLM_CACHE"
        ):
            cache.collect(other, encode)
        with pytest.raises(BayesVLMError, match="cannot be written: Permission denied"):
            cache.put(other, {"activations": torch.ones(1, 1)})
    assert encode.starts == [0], "found out before the work is done"


def test_a_file_that_cannot_be_read_is_made_again(shared: Path, caplog: pytest.LogCaptureFixture) -> None:
    shared.chmod(0o777)
    FeatureCache(shared).collect(KEY, Encoder())
    entry_file(shared).chmod(0)
    with ordinary_user():
        check_made_again(FeatureCache(shared), caplog, "is not used")


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_file_the_system_cuts_off_is_a_sentence_and_leaves_nothing(cache: FeatureCache) -> None:
    rows = {"activations": torch.ones(2**10, 2**10)}
    with files_up_to(2**20), pytest.raises(BayesVLMError, match="cannot be written: File too large; make room"):
        cache.put(KEY, rows)
    assert names(cache.folder) == []
    cache.put(KEY, rows)
    assert cache.get(KEY) is not None


def test_a_full_disk_is_a_sentence_and_keeps_the_parts(cache: FeatureCache, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = itertools.count()

    def full(descriptor: int) -> None:
        if next(calls) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(BayesVLMError, match="No space left on device; make room"):
            cache.collect(KEY, Encoder(), part_rows=3)
    assert names(cache.folder) == [path.name for path in part_files(cache.folder)]
    assert len(names(cache.folder)) == 2
    check_complete(cache.collect(KEY, Encoder()))


def test_an_error_of_the_encoder_is_the_encoders(cache: FeatureCache) -> None:
    def encode(start: int) -> Iterator[Part]:
        raise FileNotFoundError("shard 3 of the data")
        yield

    with pytest.raises(FileNotFoundError, match="shard 3"):
        cache.collect(KEY, encode)
    assert names(cache.folder) == []


# Fingerprints --------------------------------------------------------------------------------------------------------


def test_a_fingerprint_hangs_on_names_dtypes_shapes_and_every_byte() -> None:
    weights = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.zeros(3, dtype=torch.bfloat16)}
    base = tensor_fingerprint(weights.items())
    nudged = weights["b"].clone()
    nudged.view(torch.int16)[2] = 1  # the smallest number there is
    others = [
        {**weights, "w": weights["w"].reshape(3, 2)},
        {**weights, "w": weights["w"].view(torch.int32)},
        {**weights, "b": torch.zeros(3, dtype=torch.float16)},
        {**weights, "b": nudged},
        {"w": weights["w"]},
        {"w": weights["w"], "c": weights["b"]},
        {"b": weights["w"], "w": weights["b"]},
        {**weights, "e": torch.empty(0)},
        {},
    ]
    found = [tensor_fingerprint(other.items()) for other in others]
    assert len({base, *found}) == len(others) + 1
    assert all(re.fullmatch("[0-9a-f]{64}", fingerprint) for fingerprint in found)


def test_a_fingerprint_does_not_hang_on_order_strides_gradients_or_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = torch.Generator().manual_seed(0)
    weights = {
        "w": torch.randn(40, 30, generator=draw),
        "s": torch.tensor(2.5),
        "e": torch.empty(0, 3),
        "h": torch.randn(5, 4, 3, generator=draw).to(torch.bfloat16),
    }
    base = tensor_fingerprint(weights.items())
    assert tensor_fingerprint(reversed(weights.items())) == base
    assert tensor_fingerprint((name, torch.nn.Parameter(w)) for name, w in weights.items()) == base
    strided = {name: w.transpose(0, -1).contiguous().transpose(0, -1) if w.ndim else w for name, w in weights.items()}
    assert not strided["w"].is_contiguous()
    assert tensor_fingerprint(strided.items()) == base
    monkeypatch.setattr(module, "_CHUNK", 64)
    assert tensor_fingerprint(weights.items()) == tensor_fingerprint(strided.items()) == base


def test_a_fingerprint_takes_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunk by chunk, also where the strides are not those of the file."""
    sizes: list[int] = []
    chunks = module._chunks

    def seen(tensor: Tensor) -> Iterator[memoryview]:
        for chunk in chunks(tensor):
            sizes.append(chunk.nbytes)
            yield chunk

    monkeypatch.setattr(module, "_CHUNK", 2**12)
    monkeypatch.setattr(module, "_chunks", seen)
    tensor_fingerprint([("w", torch.ones(100, 300)), ("t", torch.ones(300, 100).T), ("b", torch.ones(9000).bool())])
    assert max(sizes) <= 2**12
    assert len(sizes) > 60


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no other device")
def test_a_fingerprint_and_an_entry_do_not_hang_on_the_device(cache: FeatureCache) -> None:
    there = torch.randn(7, 3, dtype=torch.bfloat16, device="cuda")
    assert tensor_fingerprint([("w", there)]) == tensor_fingerprint([("w", there.cpu())])
    assert torch.equal(cache.put(KEY, {"w": there}).tensors["w"], there.cpu())
