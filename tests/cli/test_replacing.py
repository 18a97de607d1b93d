"""No command replaces what another left, none writes where another is writing, none begins where it cannot end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import Run, run_command
from PIL import Image

from bayesvlm import BayesVLM
from bayesvlm.artifacts.locks import LOCK, only_command_in
from bayesvlm.core.errors import BayesVLMError
from bayesvlm.core.estimation import FactorEstimator
from bayesvlm.testing.tiny import save_tiny_clip


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    return run_command


@pytest.fixture
def fit(tmp_path: Path) -> tuple[str, ...]:
    """`fit model pairs --negatives 8`, where these lie."""
    save_tiny_clip(tmp_path / "model")
    (tmp_path / "pairs").mkdir()
    for number in range(24):
        Image.new("RGB", (32, 32), (number * 9, 255 - number * 7, number)).save(tmp_path / f"pairs/{number:02}.png")
        (tmp_path / f"pairs/{number:02}.txt").write_text(f"picture number {number}")
    return ("fit", "model", "pairs", "--negatives", "8", "--batch-size", "4")


def tau(folder: str) -> float:
    return json.loads(Path(folder, "config.json").read_text())["tau"]


# Posteriors ----------------------------------------------------------------------------------------------------------


def test_a_posterior_is_replaced_only_when_told_to(run: Run, fit: tuple[str, ...]) -> None:
    assert run(*fit, "-o", "out", "--tau", 7)[0] == 0
    code, out, err = run(*fit, "-o", "out")
    assert (code, out) == (2, "")
    assert (
        err == "error: out holds a posterior already; name another folder with --out, or replace it with --overwrite.\n"
    )
    assert tau("out") == 7
    assert run(*fit, "-o", "out", "--overwrite")[0] == 0
    assert tau("out") == 1


def test_a_merge_is_replaced_only_when_told_to(run: Run, fit: tuple[str, ...]) -> None:
    assert run(*fit, "--shard", "0/2", "-o", "first")[0] == 0
    assert run(*fit, "--shard", "1/2", "-o", "second")[0] == 0
    merge = ("merge", "first", "second", "-o", "both")
    assert run(*merge)[0] == 0
    before = Path("both/config.json").read_bytes()
    code, _, err = run(*merge)
    assert code == 2
    assert "both holds a posterior already" in err
    assert Path("both/config.json").read_bytes() == before
    assert "second holds a posterior already" in run(*merge[:-1], "second")[2], "nor one of those that are added"
    assert run(*merge, "--overwrite")[0] == 0


def test_a_posterior_in_python_is_replaced(run: Run, fit: tuple[str, ...]) -> None:
    assert run(*fit, "-o", "out", "--tau", 7)[0] == 0
    BayesVLM.from_pretrained("out").replace(tau=3).save_pretrained("out")
    assert tau("out") == 3


def test_two_fits_into_one_folder(run: Run, fit: tuple[str, ...]) -> None:
    with only_command_in(Path("out")):
        for command in (fit, ("merge", "a", "b"), ("convert", "hessians")):
            code, out, err = run(*command, "-o", "out")
            assert (code, out) == (2, "")
            assert err == (
                "error: Another command is writing to out at this moment; wait until it is done, or name another "
                "folder.\n"
            )
    assert not Path("out").exists(), "what was made for the lock alone goes again"
    assert run(*fit, "-o", "out")[0] == 0
    with only_command_in(Path("out")):
        assert "Another command is writing to out" in run("tune", "out", "pairs")[2]


HOLD = """
import sys, time
from pathlib import Path
from bayesvlm.artifacts.locks import only_command_in
with only_command_in(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_command_that_was_killed_holds_nothing(run: Run, fit: tuple[str, ...]) -> None:
    child = subprocess.Popen([sys.executable, "-c", HOLD, "out"], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(BayesVLMError, match="Another command is writing to out"), only_command_in(Path("out")):
            pass
    finally:
        child.kill()
        child.wait()
    assert Path("out", LOCK).exists(), "killed, it could not tidy up"
    assert run(*fit, "-o", "out")[0] == 0
    assert not Path("out", LOCK).exists()


def test_an_interrupted_fit_goes_on_and_says_so_when_it_does(
    run: Run, fit: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    add, calls = FactorEstimator.add, []

    def interrupted(self: FactorEstimator, *batch: object) -> None:
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        add(self, *batch)  # type: ignore[arg-type]

    monkeypatch.setattr(FactorEstimator, "add", interrupted)
    assert run(*fit, "-o", "out")[0] == 130
    code, _, err = run("fit", "model", "pairs", "--negatives", 12, "-o", "out")
    assert code == 2
    assert "belongs to another run" in err
    assert "going on" not in err
    code, _, err = run(*fit, "-o", "out")
    assert code == 0, "no --overwrite: nothing is replaced"
    assert "going on from out/fit-in-progress.safetensors, which holds 8 pairs" in err


# Places --------------------------------------------------------------------------------------------------------------

COMMANDS = {
    "fit": ("fit", "emoji-clip", "pairs"),
    "merge": ("merge", "a", "b"),
    "convert": ("convert", "hessians"),
    "demo": ("demo",),
    "eval": ("eval", "emoji-clip", "-d", "openmoji-black"),
    "adapt": ("adapt", "emoji-clip"),
    "reproduce": ("reproduce", "uq_results_clip"),
    "classify": ("classify", "emoji-clip", "pairs", "--classes", "a,b"),
    "finetune": ("finetune", "emoji-clip", "pairs"),
    "select": ("select", "emoji-clip", "-p", "pairs", "-t", "pairs", "--classes", "a,b"),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("place", ["file", "unwritable"])
def test_a_place_is_tried_before_the_work(
    run: Run, command: str, place: str, fit: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BayesVLM, "from_pretrained", lambda *_, **__: pytest.fail("it began all the same"))
    Path("file").touch()
    if place == "unwritable":  # a user without rights, and the superuser on a disk that is read-only, meet this alike

        def denied(*_: object, **__: object) -> None:
            raise OSError(30, "Read-only file system")

        monkeypatch.setattr("tempfile.TemporaryFile", denied)
    out = Path("file/out" if place == "file" else "new/out")
    code, printed, err = run(
        *COMMANDS[command], "--out", out.with_suffix(".csv") if command in ("classify", "select") else out
    )
    assert (code, printed) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "cannot be saved to" in err
    assert ("file is a file" if place == "file" else "cannot be written to (Read-only file system)") in err
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            OSError(28, "No space left on device"),
            "error: No space left on device; check that the path is right and that the disk has room.\n",
        ),
        (
            OSError(13, "Permission denied", "here"),
            "error: here: Permission denied; check that the path is right and that the disk has room.\n",
        ),
    ],
)
def test_an_error_of_the_disk_says_what_is_known(
    run: Run, error: OSError, sentence: str, fit: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(BayesVLM, "from_pretrained", fails)
    assert run(*fit, "-o", "out") == (2, "", sentence)


def test_a_list_that_is_there_is_not_replaced(run: Run, fit: tuple[str, ...]) -> None:
    Path("to-label.csv").write_text("somebody's labels")
    asked = ("select", "emoji-clip", "-p", "pairs", "-t", "pairs", "--classes", "a,b", "-n", 3)
    code, _, err = run(*asked)
    assert code == 2
    assert (
        err == "error: to-label.csv is there already; name another file with --out, or replace it with --overwrite.\n"
    )
    assert Path("to-label.csv").read_text() == "somebody's labels"
    assert run(*asked, "--overwrite")[0] == 0
    assert len(Path("to-label.csv").read_text().splitlines()) == 4
