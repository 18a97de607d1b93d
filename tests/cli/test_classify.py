"""`bayesvlm classify`: answers as they come, in the form their file's name says, and nothing encoded twice."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Result, Run, run_command
from filelock import FileLock
from PIL import Image
from torch import Tensor

from bayesvlm import BayesVLM, BayesVLMError, Features, world
from bayesvlm.cli.answers import AnswerFile, Resumed
from bayesvlm.experiments import image_files
from bayesvlm.models.adapter import Adapter

COUNT, BATCH = 10, 4


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """`bayesvlm classify emoji-clip photos ...` on ten images, four at a time; the eighth cannot be read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAYESVLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(image_files, "_KEPT", BATCH)
    monkeypatch.setattr(image_files, "_FEW", COUNT)
    Path("photos").mkdir()
    for number, image in enumerate(world.load("openmoji-black").images[:COUNT]):
        Image.open(BytesIO(image)).convert("RGB").save(f"photos/{number}.png")
    Path("photos/7.png").write_bytes(b"no image")

    def call(*arguments: object, model: str = "emoji-clip") -> Result:
        return run_command("classify", model, "photos", *arguments, "--batch-size", BATCH)

    return call


Encoded = Callable[..., list[int]]


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> Encoded:
    """Counts how many images each call of the encoder has from now on; one of them may be interrupted."""

    def arrange(interrupt_at: int = 0) -> list[int]:
        honest, calls, number = Adapter.encode_pixels, [], count(1)

        def counted(self: Adapter, pixels: dict[str, Tensor]) -> object:
            calls.append(len(pixels["pixel_values"]))
            if next(number) == interrupt_at:
                raise KeyboardInterrupt
            return honest(self, pixels)

        monkeypatch.setattr(Adapter, "encode_pixels", counted)
        return calls

    return arrange


ASKED = ("--classes", "cat,dog,pizza")


def test_an_interruption_keeps_what_is_done(run: Run, encoded: Encoded) -> None:
    calls = encoded(interrupt_at=3)
    code, out, err = run(*ASKED, "-o", "answers.csv")
    assert (code, out, calls) == (130, "", [4, 3, 2])
    (partial,) = Path().glob("answers.partial-*.csv")
    assert f"interrupted: 8 of 10 images are done and their answers are in {partial}; give the same command" in err
    assert len(partial.read_text().splitlines()) == 1 + 7
    assert not Path("answers.csv").exists()
    calls.clear()
    code, out, err = run(*ASKED, "-o", "answers.csv")
    assert code == 0, err
    assert calls == [2], "those that were done are not encoded again"
    assert "7.png" in err, "what cannot be read is said again"
    with open("answers.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["image"] for row in rows] == [f"photos/{n}.png" for n in range(COUNT) if n != 7]
    assert list(Path().glob("answers*")) == [Path("answers.csv")]
    fresh = run(*ASKED, "--json", "--cache", "elsewhere")
    for row, other in zip(rows, json.loads(fresh[1])["images"], strict=True):
        best = other["top"][0]
        assert row["class"] == best["class"]
        assert float(row["prob"]) == pytest.approx(best["prob"], rel=1e-5)
        assert (float(row["low"]), float(row["high"])) == pytest.approx(best["interval"], abs=1e-6)
        assert float(row["epistemic"]) == pytest.approx(other["epistemic"], abs=1e-5)


def test_other_class_names_encode_no_image_again(run: Run, encoded: Encoded) -> None:
    calls = encoded()
    assert run(*ASKED)[0] == 0
    assert calls == [4, 3, 2]
    assert run("--classes", "bus,train")[0] == 0
    assert calls == [4, 3, 2]
    strict = run("--classes", "bus,train", "--strict")
    assert strict[0] == 2
    assert "7.png" in strict[2], "kept features do not hide what could not be read"


def test_a_batch_of_which_nothing_can_be_read(run: Run) -> None:
    for number in range(BATCH, 2 * BATCH):
        Path(f"photos/{number}.png").write_bytes(b"no image")
    for _ in range(2):
        code, out, err = run(*ASKED, "--json")
        assert code == 0
        assert len(json.loads(out)["images"]) == COUNT - BATCH
        assert f"skipped {BATCH} that cannot be used" in err


def test_what_another_question_left_unfinished_stays(run: Run, encoded: Encoded) -> None:
    encoded(interrupt_at=3)
    assert run(*ASKED, "-o", "answers.csv")[0] == 130
    (partial,) = Path().glob("answers.partial-*.csv")
    left = partial.read_bytes()
    assert run("--classes", "bus,train", "-o", "answers.csv")[0] == 0
    assert partial.read_bytes() == left


def test_two_questions_at_once_do_not_replace_each_other_s_answers(tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    first, second = (AnswerFile(out, overwrite=False) for _ in range(2))
    with ExitStack() as still_open:
        still_open.enter_context(pytest.raises(BayesVLMError, match="is there already"))
        still_open.enter_context(first.open({"question": 1}))
        first.add([{"image": "of the first"}])
        with second.open({"question": 2}):
            second.add([{"image": "of the second"}])
    assert "of the second" in out.read_text()
    assert "of the first" in first.partial.read_text(), "nothing is lost"


def test_the_name_of_the_file_decides_its_form(run: Run) -> None:
    for name in ("a.csv", "a.jsonl"):
        code, out, err = run(*ASKED, "--top", 2, "-o", name)
        assert code == 0, err
        assert f"9 images classified; the answers are in {name}" in out
    with open("a.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    lines = [json.loads(line) for line in Path("a.jsonl").read_text().splitlines()]
    assert len(rows) == 2 * len(lines) == 18
    assert [row["rank"] for row in rows[:4]] == ["1", "2", "1", "2"]
    assert [row["class"] for row in rows[:2]] == [best["class"] for best in lines[0]["top"]]
    assert float(rows[0]["entropy"]) == lines[0]["entropy"]
    code, out, err = run(*ASKED, "-o", "a.xlsx")
    assert (code, out) == (2, "")
    assert (
        "--out a.xlsx: answers are written as csv (.csv), json lines (.jsonl, .json) or parquet (.parquet); choose one"
        in err
    )


def test_answers_are_replaced_only_when_told_to(run: Run) -> None:
    Path("a.csv").write_text("mine")
    assert "a.csv is there already; name another file" in run(*ASKED, "-o", "a.csv")[2]
    assert Path("a.csv").read_text() == "mine"
    assert run(*ASKED, "-o", "a.csv", "--overwrite")[0] == 0
    assert len(Path("a.csv").read_text().splitlines()) == COUNT


def test_the_same_command_twice_at_once(run: Run, encoded: Encoded) -> None:
    encoded(interrupt_at=3)
    assert run(*ASKED, "-o", "a.csv")[0] == 130
    (partial,) = Path().glob("a.partial-*.csv")
    left = partial.read_bytes()
    with FileLock(f".{partial.name}.lock"):
        code, _, err = run(*ASKED, "-o", "a.csv")
    assert code == 2
    assert f"Another command is writing to {partial} at this moment" in err
    assert partial.read_bytes() == left


def test_one_class(run: Run) -> None:
    code, _, err = run("--classes", "cat")
    assert code == 0
    assert "there is one class only, so the probability of 'cat' is always 1 and says nothing\n" in err
    siglip = run("--classes", "cat", model="emoji-siglip")[2]
    assert "says nothing; `alone` (label_prob in files) is that of the label by itself" in siglip
    assert "one class" not in run(*ASKED)[2]


def test_the_screen_shows_the_first_of_many(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["bayesvlm.cli.classify"], "SHOWN", 3)
    assert run(*ASKED, "-o", "a.csv")[1].count(".png") == 3
    assert run(*ASKED)[1].count(".png") == 9
    assert len(json.loads(run(*ASKED, "-o", "b.csv", "--json")[1])["images"]) == 9


# Going on after a kill ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["answers.csv", "answers.jsonl", "answers.parquet"])
def test_answers_that_were_written_are_not_made_again(
    run: Run, encoded: Encoded, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    calls = encoded(interrupt_at=3)
    assert run(*ASKED, "--top", 2, "-o", name)[0] == 130
    (partial,) = Path().glob("answers.partial-*")
    written = partial.read_bytes()
    partial.write_bytes(written + written.splitlines(keepends=True)[-1][:-9])  # killed in the middle of a line
    calls.clear()
    given: list[int] = []
    honest = BayesVLM.classify

    def watched(self: BayesVLM, features: Features, *options: Any, **named: Any) -> object:
        given.append(len(features))
        return honest(self, features, *options, **named)

    monkeypatch.setattr(BayesVLM, "classify", watched)
    code, out, err = run(*ASKED, "--top", 2, "-o", name)
    assert code == 0, err
    assert (calls, given) == ([2], [2]), "the two images that had no answer"
    assert "9 images classified" in out
    assert ", 7 of them looked at before" in out
    assert "7.png" in err, "what cannot be read is said again"
    assert [path.name for path in Path().glob("answers*")] == [name]
    rows = answers_in(Path(name))
    assert [row["image"] for row in rows] == [f"photos/{n}.png" for n in range(COUNT) if n != 7 for _ in range(2)]
    fresh = answers_in(written_afresh(run, Path("fresh").with_suffix(Path(name).suffix)))
    for row, other in zip(rows, fresh, strict=True):
        assert row.keys() == other.keys()
        assert (row["image"], row["rank"], row["class"]) == (other["image"], other["rank"], other["class"])
        assert row["prob"] == pytest.approx(other["prob"], rel=1e-5)
        assert row["epistemic"] == pytest.approx(other["epistemic"], abs=1e-5)


def test_the_same_prompts_of_other_classes_are_another_question(run: Run, encoded: Encoded) -> None:
    encoded(interrupt_at=2)
    common = ("--template", "{c}", "--top", 2, "-o", "answers.csv")
    assert run("--classes", "face,banana,house", *common)[0] == 130
    code, _, err = run("--classes", "face|banana,house", *common)
    assert code == 0, err
    assert {row["class"] for row in answers_in(Path("answers.csv"))} == {"face", "house"}


def written_afresh(run: Run, path: Path) -> Path:
    assert run(*ASKED, "--top", 2, "-o", path)[0] == 0
    return path


def answers_in(path: Path) -> list[dict[str, Any]]:
    """A line per image and class, whatever the form."""
    if path.suffix == ".parquet":
        from pyarrow.parquet import read_table

        return read_table(path).to_pylist()  # type: ignore[no-any-return]
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return [
                {name: value if name in ("image", "class") else float(value or "nan") for name, value in row.items()}
                for row in csv.DictReader(file)
            ]
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{**row, **best, "rank": rank} for row in rows for rank, best in enumerate(row["top"], start=1)]


def test_everything_is_there_on_the_screen_after_going_on(run: Run, encoded: Encoded) -> None:
    encoded(interrupt_at=3)
    assert run(*ASKED, "-o", "answers.csv")[0] == 130
    found = run(*ASKED, "-o", "answers.csv", "--json").json
    assert found == {**run(*ASKED, "--json").json, "images": found["images"]}
    names = [row["image"] for row in found["images"]]
    assert names == [f"photos/{n}.png" for n in range(COUNT) if n != 7]
    assert {tuple(row) for row in found["images"]} == {tuple(run(*ASKED, "--json").json["images"][0])}


@pytest.mark.parametrize("change", ["an image", "its list", "what could not be read"])
def test_other_images_are_another_question(run: Run, encoded: Encoded, change: str) -> None:
    encoded(interrupt_at=3)
    assert run(*ASKED, "-o", "answers.csv")[0] == 130
    if change == "an image":
        Path("photos/0.png").write_bytes(Path("photos/1.png").read_bytes() + b"and more")
    elif change == "its list":
        Path("photos/0.png").unlink()
    else:
        Path("photos/7.png").write_bytes(Path("photos/6.png").read_bytes())
    assert run(*ASKED, "-o", "answers.csv")[0] == 0
    rows = answers_in(Path("answers.csv"))
    read = sorted(str(path) for path in Path("photos").iterdir())
    assert [row["image"] for row in rows] == [name for name in read if name != "photos/7.png" or "read" in change]


def test_a_file_that_becomes_readable_begins_again(run: Run, tmp_path: Path) -> None:
    """Such as after installing what reads it: to the file system it is the same file."""
    file = AnswerFile(tmp_path / "a.jsonl", overwrite=False)
    paths = [Path(f"photos/{n}.png") for n in range(3)]
    with pytest.raises(ZeroDivisionError), file.open({}):  # noqa: PT012
        file.add([{"image": str(paths[0])}, {"image": str(paths[2])}])
        raise ZeroDivisionError
    with file.open({}):
        found = file.resume(paths, None)
        assert (found.done, found.answered, found.passed) == (3, 2, [paths[1]])
        assert file.restart() == Resumed()
        assert file.partial.read_bytes() == b""
        assert file.resume(paths, None) == Resumed()
        file.add([{"image": "elsewhere"}])
        assert file.resume(paths, None) == Resumed(), "answers for other images"


def test_parquet_needs_its_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = run(*ASKED, "-o", "a.parquet")
    assert code == 2
    assert "parquet files are written with pyarrow, which is not installed: `pip install 'bayesvlm[parquet]'`" in err


def test_kill_minus_nine(tmp_path: Path) -> None:
    """A command that is killed, and the same one again: every image once, and those that were answered left as is."""
    folder = tmp_path / "photos"
    folder.mkdir()
    random = np.random.default_rng(0)
    for number in range(700):
        Image.fromarray(random.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(folder / f"{number:03}.png")
    out = tmp_path / "answers.jsonl"
    asked = ["classify", "emoji-clip", str(folder), "--classes", "cat,dog", "-o", str(out), "--workers", "2"]
    environment = {**os.environ, "BAYESVLM_CACHE": str(tmp_path / "cache")}
    running = subprocess.Popen([sys.executable, "-m", "bayesvlm", *asked], env=environment, start_new_session=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if any(path.read_bytes().count(b"\n") for path in tmp_path.glob("answers.partial-*")):
            break
        assert running.poll() is None
        time.sleep(0.02)
    running.kill()
    running.wait()
    (partial,) = tmp_path.glob("answers.partial-*")
    written = partial.read_text().splitlines(keepends=True)
    whole = "".join(line for line in written if line.endswith("\n"))
    assert 0 < len(whole.splitlines()) < 700
    again = run_command(*asked)
    assert again.code == 0, again.err
    assert out.read_text().startswith(whole)
    assert [json.loads(line)["image"] for line in out.read_text().splitlines()] == sorted(map(str, folder.iterdir()))
    assert not list(tmp_path.glob("answers.partial-*"))
