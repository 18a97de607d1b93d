"""Fits that are killed: a process that has imported everything forks one per attempt, and kills itself where told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Self


class Fits:
    """Commands of `bayesvlm`, each in a process of its own that begins with everything imported.

    A command counts what it does that a kill could fall between (an event): a batch that is taken, a file that is
    written, renamed or removed.
    """

    def __init__(self, logs: Path, *first: object) -> None:
        """Begin with everything imported that a first command needs, which is run to its end."""
        self.logs, self._count = logs, 0
        environment = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        self._zygote = subprocess.Popen(
            [sys.executable, __file__, *map(str, first)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._zygote.stdin is not None
        self._zygote.stdin.close()
        self._zygote.wait(timeout=60)

    def begin(self, *arguments: object, **fate: int) -> Command:
        """Begin a command.

        Args:
            fate: kill=n or stop=n, for the n-th event, from 1 on; largest=bytes, for the size of files.
        """
        self._count += 1
        log = self.logs / f"{self._count}.log"
        pid = self._ask({"arguments": [*map(str, arguments)], "log": str(log), **fate})
        return Command(self, int(pid), log)

    def run(self, *arguments: object, **fate: int) -> Command:
        """A command, until it ends."""
        command = self.begin(*arguments, **fate)
        command.wait()
        return command

    def _ask(self, question: dict[str, Any]) -> Any:
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.write(json.dumps(question) + "\n")
        self._zygote.stdin.flush()
        return json.loads(self._zygote.stdout.readline())


class Command:
    """One command that was begun."""

    def __init__(self, fits: Fits, pid: int, log: Path) -> None:
        self._fits, self.pid, self._log = fits, pid, log
        self.code: int | None = None
        self.begun: list[int] = []

    def wait(self, stopped: bool = False) -> int:
        """Its exit status, or minus the signal it ended by; with `stopped`, until it is stopped."""
        self.code = int(self._fits._ask({"wait": self.pid, "stopped": stopped}))
        return self.code

    def kill(self) -> None:
        """End it as a lack of memory does."""
        self.begun = self._descendants()
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def outlived(self) -> list[int]:
        """Processes that it had begun and that are still there a moment after it was killed."""
        deadline = time.monotonic() + 10
        while (left := [pid for pid in self.begun if _alive(pid)]) and time.monotonic() < deadline:
            time.sleep(0.01)
        return left

    def _descendants(self) -> list[int]:
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(pid) for pid in children.read_text().split()] if children.exists() else []

    @property
    def said(self) -> str:
        """What it wrote."""
        return self._log.read_text()

    @property
    def events(self) -> list[str]:
        """What it did, as far as it came."""
        return Path(f"{self._log}.events").read_text().split("\n")[:-1]


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


# In the process that forks --------------------------------------------------------------------------------------------


def _serve(arguments: list[str]) -> None:
    import torch

    torch.set_num_threads(1)  # no threads are left that a fork would lose
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        _run(arguments)
    for line in sys.stdin:
        question = json.loads(line)
        if "wait" in question:
            _, status = os.waitpid(question["wait"], os.WUNTRACED if question["stopped"] else 0)
            answer = 0 if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
        else:
            answer = os.fork()
            if answer == 0:
                os._exit(_child(question))
        print(json.dumps(answer), flush=True)


def _child(question: dict[str, Any]) -> int:
    log = os.open(question["log"], os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    _count_events(f"{question['log']}.events", question)
    if "largest" in question:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (question["largest"], question["largest"]))
    try:
        return _run(question["arguments"])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _run(arguments: list[str]) -> int:
    from bayesvlm.cli import main

    sys.argv = ["bayesvlm", *arguments]
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def _count_events(file: str, question: dict[str, Any]) -> None:
    from bayesvlm.core.estimation import FactorEstimator

    events = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    count = 0

    def happened(what: str) -> None:
        nonlocal count
        count += 1
        os.write(events, f"{what}\n".encode())
        for fate, end in (("kill", signal.SIGKILL), ("stop", signal.SIGSTOP)):
            if question.get(fate) == count:
                os.kill(os.getpid(), end)

    def watched(function: Any, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            file = f" {Path(str(arguments[-1])).name}" if name in ("rename", "remove") else ""
            happened(f"before {name}{file}")
            result = function(*arguments, **options)
            happened(f"after {name}{file}")
            return result

        return call

    os.fsync = watched(os.fsync, "sync")
    os.replace = watched(os.replace, "rename")
    os.unlink = watched(os.unlink, "remove")
    FactorEstimator.add = watched(FactorEstimator.add, "batch")  # type: ignore[method-assign]


if __name__ == "__main__":
    _serve(sys.argv[1:])
