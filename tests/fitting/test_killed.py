"""`kill -9` at any moment, and the same command: the factors of a run that was left alone, to the bit."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from bayesvlm.artifacts.saved import TENSORS
from bayesvlm.testing import save_tiny_clip

from .killing import Fits
from .made import write_shards

BROKEN = frozenset({3, 40, 41, 80, 81, 82, 111})
PAIRS = (40, 36, 40)  # of the shards, each of which is a group of two contrast batches
KILLS, SEED = 22, 18
CHECKPOINT = "fit-in-progress.safetensors"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    save_tiny_clip(folder / "model")
    write_shards(folder / "pairs", *PAIRS, broken=BROKEN)
    return folder


@pytest.fixture(scope="module")
def fits(place: Path, fit: tuple[object, ...]) -> Iterator[Fits]:
    with Fits(place, *fit, "--out", place / "first") as running:
        yield running


@pytest.fixture(scope="module")
def fit(place: Path) -> tuple[object, ...]:
    return (
        "fit",
        place / "model",
        place / "pairs",
        "--negatives",
        32,
        "--batch-size",
        16,
        "--workers",
        0,
        "--device",
        "cpu",
    )


@pytest.fixture(scope="module")
def whole(fits: Fits, fit: tuple[object, ...], place: Path) -> tuple[bytes, list[str]]:
    """The factors of a run that is left alone, and what it did."""
    command = fits.run(*fit, "--out", place / "whole")
    assert command.code == 0, command.said
    assert json.loads((place / "whole/config.json").read_text())["provenance"]["pairs"] == sum(PAIRS) - len(BROKEN)
    return (place / "whole" / TENSORS).read_bytes(), command.events


def places_to_kill(events: list[str]) -> list[int]:
    """Random ones, and all while the files of the posterior take their names and the checkpoint is removed."""
    saving = range(events.index(f"before rename {TENSORS}"), events.index(f"after remove {CHECKPOINT}") + 1)
    chosen = random.Random(SEED).sample(range(len(events)), KILLS)
    return sorted(number + 1 for number in {*chosen, *saving})


def left_to_do(events: list[str], number: int) -> int:
    """How many batches a run has to encode after one that did so much of this: those behind the last checkpoint."""
    kept = [place for place, event in enumerate(events[:number]) if event == f"after rename {CHECKPOINT}"]
    return events[kept[-1] if kept else 0 :].count("after batch")


def test_killed_anywhere_and_run_again(
    fits: Fits, fit: tuple[object, ...], whole: tuple[bytes, list[str]], place: Path
) -> None:
    expected, events = whole
    killed: dict[str, int] = {}
    for number in places_to_kill(events):
        out = place / f"killed-{number}"
        assert fits.run(*fit, "--out", out, kill=number).code == -9
        again = fits.run(*fit, "--out", out)
        where = f"killed at event {number} of {len(events)}: {events[number - 1]}"
        if number > events.index(f"after remove {CHECKPOINT}"):  # nothing was left to do
            assert "holds a posterior already" in again.said, where
        else:
            assert again.code == 0, f"{where}: {again.said}"
            assert again.events.count("after batch") == left_to_do(events, number), where
        assert (out / TENSORS).read_bytes() == expected, where
        left = sorted(path.name for path in out.iterdir() if path.name != ".bayesvlm-lock")
        assert left == ["README.md", "config.json", TENSORS], where
        killed[events[number - 1]] = killed.get(events[number - 1], 0) + 1
    print(f"seed {SEED}, {sum(killed.values())} kills: {killed}")
    assert sum(killed.values()) >= 20


def test_a_second_run_refuses_while_the_first_lives(
    fits: Fits, fit: tuple[object, ...], whole: tuple[bytes, list[str]], place: Path
) -> None:
    out = place / "twice"
    first = fits.begin(*fit, "--out", out, stop=whole[1].index(f"after rename {CHECKPOINT}") + 3)
    first.wait(stopped=True)
    assert first.code == 0, "it is stopped, and lives"
    second = fits.run(*fit, "--out", out)
    assert (second.code, second.said.startswith(f"error: Another command is writing to {out}")) == (2, True)
    assert (out / CHECKPOINT).exists()
    first.kill()
    assert first.code == -9
    third = fits.run(*fit, "--out", out)
    assert third.code == 0, third.said
    assert "going on from" in third.said
    assert (out / TENSORS).read_bytes() == whole[0]


def test_a_full_disk_loses_nothing(
    fits: Fits, fit: tuple[object, ...], whole: tuple[bytes, list[str]], place: Path
) -> None:
    """No file may grow beyond a few bytes: writing the next checkpoint fails as on a full disk."""
    out = place / "full"
    first = whole[1].index(f"after rename {CHECKPOINT}") + 1
    assert fits.run(*fit, "--out", out, kill=first).code == -9
    kept = (out / CHECKPOINT).read_bytes()
    full = fits.run(*fit, "--out", out, largest=4000)
    assert full.code == 2
    complaints = [line for line in full.said.splitlines() if line.startswith("error: ")]
    assert complaints == [
        f"error: {out / CHECKPOINT} cannot be written: File too large; make room, or name another place."
    ]
    assert (out / CHECKPOINT).read_bytes() == kept, "the last checkpoint stays"
    assert [path.name for path in out.iterdir()] == [CHECKPOINT], "and nothing of the one that did not fit"
    again = fits.run(*fit, "--out", out)
    assert again.code == 0, again.said
    assert "going on from" in again.said
    assert (out / TENSORS).read_bytes() == whole[0]


def test_killed_from_outside_while_other_processes_decode(
    fits: Fits, fit: tuple[object, ...], whole: tuple[bytes, list[str]], place: Path
) -> None:
    out, generator, workers = place / "outside", random.Random(SEED), 0
    command = (*fit, "--workers", 2, "--out", out)
    for _ in range(3):
        running = fits.begin(*command, stop=generator.randrange(2, 12))
        running.wait(stopped=True)
        running.kill()
        assert running.code == -9
        workers += len(running.begun)
        assert running.outlived() == [], "its workers end with it"
    assert workers > 0
    final = fits.run(*command)
    assert final.code == 0, final.said
    assert (out / TENSORS).read_bytes() == whole[0]
