"""The page under load: many clients for a minute. Errors, latency, and whether the memory comes back.

    python benchmarks/app.py [--clients 20] [--seconds 60] [--out docs/figures/app-load.json]

Starts `bayesvlm app` on this machine. Each client is a session of its own, which asks the next thing as soon as it has
an answer, without a pause: half of what it does is Ask, a quarter uploads a picture, a quarter searches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from gradio_client import Client, handle_file

from bayesvlm.app.drawings import LISTS, drawings

PORT = 7871
REST = 30
"""Seconds after the load, until memory is looked at again."""
_MEGABYTE = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    command = [sys.executable, "-m", "bayesvlm", "app", "emoji-clip", "--port", str(PORT)]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as server,
    ):
        try:
            _wait(server)
            found = measure(server.pid, given.clients, given.seconds, Path(folder))
        finally:
            server.terminate()
    print(json.dumps(found, indent=1))
    if given.out:
        given.out.write_text(json.dumps(found) + "\n")


def measure(server: int, clients: int, seconds: float, folder: Path) -> dict[str, Any]:
    """One client, for whom everything is made that is made once; then all of them, from their first request on.

    Memory is that of the server as soon as it listens, after that client, at the start and at the end of the load, and
    after a rest.
    """
    files = []
    for place, each in enumerate(drawings("openmoji-black")[:20]):
        files.append(folder / f"{place}.webp")
        files[-1].write_bytes(each.image)
    times: dict[str, list[float]] = defaultdict(list)
    errors = Counter[str]()
    memory = {"fresh": _memory(server)}
    first = _client()
    for turn in range(3 * len(_TURNS)):
        _act(first, turn, files)
    first.close()
    memory["one_client"] = _memory(server)
    memory["most"] = max(_burst(clients, seconds, files, times, errors, server, memory))
    time.sleep(REST)
    memory["after"] = _memory(server)
    every = sorted(value for values in times.values() for value in values)
    return {
        "clients": clients,
        "seconds": seconds,
        "cores": os.cpu_count(),
        "answers": len(every),
        "errors": dict(errors),
        "answers_per_second": round(len(every) / seconds, 1),
        "median_seconds": round(statistics.median(every), 3),
        "p95_seconds": round(every[int(0.95 * len(every))], 3),
        "p95_by_kind": {name: round(sorted(of)[int(0.95 * len(of))], 3) for name, of in sorted(times.items())},
        "memory_mb": memory,
    }


def _burst(
    clients: int,
    seconds: float,
    files: list[Path],
    times: dict[str, list[float]],
    errors: Counter[str],
    server: int,
    memory: dict[str, int],
) -> list[int]:
    """All clients at once; returns the server's memory twice a second, and notes it at the start and at the end."""
    visitors = [_client() for _ in range(clients)]
    memory["start"], until = _memory(server), time.monotonic() + seconds
    seen = [memory["start"]]
    started = [
        threading.Thread(target=_run, args=(visitor, number, until, files, times, errors))
        for number, visitor in enumerate(visitors)
    ]
    for thread in started:
        thread.start()
    while any(thread.is_alive() for thread in started):
        seen.append(_memory(server))
        time.sleep(0.5)
    memory["end"] = _memory(server)
    for visitor in visitors:
        visitor.close()
    return [*seen, memory["end"]]


def _run(
    client: Client, number: int, until: float, files: list[Path], times: dict[str, list[float]], errors: Counter[str]
) -> None:
    turn = number
    while time.monotonic() < until:
        begun = time.perf_counter()
        try:
            name = _act(client, turn, files)
        except Exception as error:  # whatever it is, it counts
            errors[f"{type(error).__name__}: {error}"[:200]] += 1
        else:
            times[name].append(time.perf_counter() - begun)
        turn += 1


_TURNS = ("ask", "upload", "ask", "search")
_QUERIES = ("a grinning cat", "something to eat", "xqzt wvv", "a red car", "music")


def _act(client: Client, turn: int, files: list[Path]) -> str:
    name = _TURNS[turn % len(_TURNS)]
    names = list(LISTS.values())[turn % len(LISTS)]
    if name == "ask":
        said = client.predict(", ".join(names), api_name="/ask")
    elif name == "upload":
        said = client.predict(handle_file(files[turn % len(files)]), ", ".join(names), api_name="/upload")[-1]
    else:
        said = client.predict(_QUERIES[turn % len(_QUERIES)], 8, "expected cosine", api_name="/search")
    if "role='alert'" in str(said) or "95 % interval" not in str(said):
        raise RuntimeError(f"{name} was answered with {str(said)[:150]}")
    return name


def _client() -> Client:
    return Client(f"http://127.0.0.1:{PORT}", verbose=False, analytics_enabled=False)


def _wait(server: subprocess.Popen[str]) -> None:
    assert server.stderr is not None
    for line in server.stderr:
        if line.startswith("page"):
            threading.Thread(target=server.stderr.read, daemon=True).start()  # so that it never waits for a reader
            return
    raise SystemExit("the page did not start")


def _memory(server: int) -> int:
    """Megabytes of the server that are in memory."""
    pages = int(Path(f"/proc/{server}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // _MEGABYTE


if __name__ == "__main__":
    main()
