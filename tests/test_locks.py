"""Locks between processes: refused, waited for, freed by the dead, done without."""

from __future__ import annotations

import errno
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

from bayesvlm import locks
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.locks import locked

HOLD = """
import sys, time
from pathlib import Path
from bayesvlm.locks import locked
with locked(Path(sys.argv[1]), busy=lambda: sys.exit("busy")):
    print("held", flush=True)
    sys.stdin.readline()
"""


class BusyError(Exception):
    pass


def refuse() -> None:
    raise BusyError


def holder(path: Path) -> subprocess.Popen[str]:
    """Another process that holds the lock until it is told to let go."""
    command = [sys.executable, "-c", HOLD, str(path)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def test_the_file_is_there_while_the_lock_is_held(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "lock"
    with locked(path, busy=refuse):
        assert path.exists()
    assert not path.exists()
    with pytest.raises(ZeroDivisionError), locked(path, busy=refuse):
        _ = 1 / 0
    assert not path.exists()


def test_another_process_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    child = holder(path)
    entered = []
    try:
        with pytest.raises(BusyError), locked(path, busy=refuse):
            entered.append("while it was held")
        assert path.exists(), "who is refused removes nothing"

        def let_go() -> None:
            entered.append("told that it is busy")
            assert child.stdin is not None
            child.stdin.write("\n")
            child.stdin.flush()

        with locked(path, busy=let_go):
            entered.append("afterwards")
            with pytest.raises(BusyError), locked(path, busy=refuse):
                pass
    finally:
        child.kill()
        child.wait()
    assert entered == ["told that it is busy", "afterwards"]


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    child = holder(path)
    child.kill()
    child.wait()
    assert path.exists(), "killed, it could not tidy up"
    with locked(path, busy=refuse):
        pass
    assert not path.exists()


def test_where_files_cannot_be_locked_everybody_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsupported(self: object, **_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(FileLock, "acquire", unsupported)
    path = tmp_path / "lock"
    with locked(path, busy=refuse), locked(path, busy=refuse):
        pass
    assert not path.exists()


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"Not a directory|File exists"), locked(tmp_path / "file" / "lock", busy=refuse):
        pass


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As below /proc, where making one answers that there is no such folder: told in a sentence, and not asked for
    ever."""

    def nowhere(*_: object, **__: object) -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")

    monkeypatch.setattr(locks, "_PAUSE", 0)
    monkeypatch.setattr(Path, "mkdir", nowhere)
    said = pytest.raises(BayesVLMError, match=r"x cannot be made.*choose another place")
    with said, locked(tmp_path / "x" / "lock", busy=refuse):
        pass


def test_a_folder_that_is_taken_away_while_it_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, touch = [], Path.touch

    def taken_away(self: Path) -> None:
        made.append(self)
        if len(made) < 3:
            self.parent.rmdir()
        touch(self)

    monkeypatch.setattr(Path, "touch", taken_away)
    with locked(tmp_path / "x" / "lock", busy=refuse):
        assert len(made) >= 3
