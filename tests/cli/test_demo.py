"""`bayesvlm demo` on a small world: what it prints, what it writes, and that its advice works."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command_line import Result, run_command
from experiments.thinned import thinned
from matplotlib.figure import Figure
from PIL import Image

from bayesvlm import BayesVLM, world
from bayesvlm.experiments import demo as demos
from bayesvlm.experiments.demo import Demo, run_demo
from bayesvlm.experiments.demo_pictures import NAMES, PICTURES
from bayesvlm.experiments.methods import SINGLE
from bayesvlm.report import demo as report
from bayesvlm.report.demo import next_commands, verdicts

SETS = [
    "new-drawing",
    "emojione-colour",
    "openmoji-colour",
    "fluent-high-contrast",
    "emojione-black",
    "openmoji-black",
    "unseen-concepts",
    "flags",
]


@dataclass(frozen=True)
class Ran:
    """A demo that has run in a folder of its own."""

    folder: Path
    result: Result
    found: tuple[Demo, BayesVLM]

    @property
    def out(self) -> Path:
        return self.folder / "demo"

    @property
    def numbers(self) -> dict[str, Any]:
        return json.loads((self.out / "results.json").read_text())


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """`bayesvlm demo` as it stands, but for a thinner world; the tests run where it ran."""
    folder = tmp_path_factory.mktemp("somewhere")
    kept: list[tuple[Demo, BayesVLM]] = []

    def keep(*arguments: Any) -> tuple[Demo, BayesVLM]:
        kept.append(run_demo(*arguments))
        return kept[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(demos, "load", thinned)
        patch.setattr(demos, "run_demo", keep)
        result = run_command("demo", "--device", "cpu")
        assert result.code == 0, result.err
        yield Ran(folder, result, kept[0])


@pytest.fixture
def again(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Another `bayesvlm demo` that finds what the first one did, and writes it with empty figures: both take long."""
    monkeypatch.setattr(demos, "run_demo", lambda *_: ran.found)
    monkeypatch.setattr(report, "figures", lambda *_: defaultdict(Figure))

    return lambda *arguments: run_command("demo", "--device", "cpu", *arguments)


# What it writes ------------------------------------------------------------------------------------------------------


def test_files(ran: Ran) -> None:
    assert sorted(path.name for path in ran.out.iterdir()) == ["images", "posterior", "report.html", "results.json"]
    assert [path.name for path in ran.folder.iterdir()] == ["demo"], "and nothing beside them"


def test_the_report(ran: Ran) -> None:
    html = (ran.out / "report.html").read_text(encoding="utf-8")
    assert html.startswith("<!DOCTYPE html>")
    assert "emoji-clip, and how sure it is" in html
    assert "http" not in html
    assert html.count("<img") == 6
    assert html.count("<svg") == 12


def test_the_numbers(ran: Ran) -> None:
    numbers, found = ran.numbers, ran.found[0]
    assert numbers["model"] == "emoji-clip"
    assert numbers["pairs"] == len(thinned("train"))
    assert list(numbers["sets"]) == SETS
    assert numbers["sets"] == json.loads(json.dumps(found.numbers()["sets"]))
    for name, measured in numbers["sets"].items():
        assert measured["images"] == len(thinned(name))
        for scores in measured["scores"].values():
            assert 0 <= scores["top1"] <= 1
            assert 0 <= scores["ece"] <= 1
            assert math.isfinite(scores["nlpd"])
    assert numbers["total_seconds"] >= sum(numbers["seconds"].values())
    assert (ran.folder / numbers["report"]).samefile(ran.out / "report.html")
    assert (ran.folder / numbers["posterior"]).samefile(ran.out / "posterior")


def test_the_posterior(ran: Ran) -> None:
    vlm = BayesVLM.from_pretrained(ran.out / "posterior", device="cpu")
    assert vlm.tau == ran.numbers["tau"]
    assert vlm.lam == pytest.approx(ran.numbers["lam"])
    assert vlm.factors["image"].n == len(thinned("train"))
    assert json.loads((ran.out / "posterior/config.json").read_text())["model"] == "emoji-clip"


def test_the_images(ran: Ran) -> None:
    """Their names say what they show: every name of the suggested command, and one picture of something else."""
    shown = set()
    for path in (ran.out / "images").iterdir():
        split, key = PICTURES[path.stem]
        drawings = world.load(split)
        row = drawings.keys.index(key)
        assert path.suffix == ".webp"
        assert path.read_bytes() == drawings.images[row]
        assert Image.open(path).size == (64, 64)
        assert path.stem.removesuffix("-line").replace("-", " ") == drawings.classes[drawings.labels[row]]
        shown.add(drawings.classes[drawings.labels[row]])
    assert shown == {*NAMES, "umbrella"}
    assert len([*(ran.out / "images").iterdir()]) == len(PICTURES)


# What it prints ------------------------------------------------------------------------------------------------------


def test_what_it_does_goes_to_the_error_stream(ran: Ran) -> None:
    steps = [line.split()[0] for line in ran.result.err.splitlines() if line[:1].strip()]
    assert [step for step in steps if step.isalpha()] == [
        "load",
        "fit",
        "tune",
        "predict",
        "corrupt",
        "explain",
        "report",
    ]


def test_the_table_and_the_verdicts(ran: Ran) -> None:
    out = ran.result.out
    for found in ran.found[0].sets.values():
        if found.scores:
            (line,) = [line for line in out.splitlines() if line.strip().startswith(f"{found.title}  ")]
            values = [found.scores[method].nlpd.value for method in SINGLE]
            assert " / ".join(f"{value:.2f}" for value in values) in line
    assert "Against temperature scaling it is" in out
    assert "Against a temperature raised as far as one standard error" in out
    assert "**" not in out
    said = out.split("done in")[0][out.index("- Against the plain model") :].splitlines()
    assert all(line.startswith(("- ", "    ")) for line in said)
    joined = " ".join(line.strip().removeprefix("- ") for line in said)
    assert joined == " ".join(verdicts(ran.found[0])).replace("**", "")
    assert "the report is demo/report.html" in out


def test_json(ran: Ran, again: Callable[..., Result], tmp_path: Path) -> None:
    result = again("--json", "--out", tmp_path / "elsewhere")
    printed = json.loads(result.out)
    assert printed == json.loads((tmp_path / "elsewhere/results.json").read_text())
    assert printed["sets"] == ran.numbers["sets"]
    assert Path(printed["report"]) == tmp_path / "elsewhere/report.html"
    assert Path(printed["posterior"]).is_dir()


def test_a_second_run_replaces_the_first_when_told_to(again: Callable[..., Result], tmp_path: Path) -> None:
    assert again("--out", tmp_path / "out").code == 0
    files = {path: path.stat().st_mtime_ns for path in sorted((tmp_path / "out").rglob("*.*"))}
    (tmp_path / "out/report.html").write_text("old")
    refused = again("--out", tmp_path / "out")
    assert refused.code == 2
    assert "out holds a report.html already; look at it" in refused.err
    assert (tmp_path / "out/report.html").read_text() == "old"
    assert again("--out", tmp_path / "out", "--overwrite").code == 0
    assert sorted((tmp_path / "out").rglob("*.*")) == sorted(files)
    assert all(path.stat().st_mtime_ns > written for path, written in files.items())
    assert (tmp_path / "out/report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


# Its advice ----------------------------------------------------------------------------------------------------------


def advice(result: Result) -> list[list[str]]:
    """The commands it says to try next, as a shell reads them."""
    lines = result.out.split("try next:\n")[1].split("look at:\n")[0].splitlines()
    return [shlex.split(line, comments=True) for line in lines if line.strip()]


def test_the_printed_advice_is_the_report_s(ran: Ran) -> None:
    assert advice(ran.result) == [shlex.split(command) for command, _ in next_commands("demo", "emoji-clip")]


def test_it_ends_with_the_page_the_app_and_in_a_checkout_the_site(
    ran: Ran, again: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = [line.split("    # ")[0].strip() for line in ran.result.out.split("look at:\n")[1].splitlines()]
    assert last == ["demo/report.html", "bayesvlm app"]
    monkeypatch.chdir(tmp_path)
    Path("mkdocs.yml").touch()
    assert "  make site    # the documentation: site/index.html" in again("--out", "out").out


def test_classify_works_as_advised(ran: Ran) -> None:
    program, *arguments = advice(ran.result)[0]
    assert (program, arguments[0]) == ("bayesvlm", "classify")
    result = run_command(*arguments, "--json")
    assert result.code == 0, result.err
    rows = json.loads(result.out)["images"]
    assert len(rows) == len(PICTURES)
    assert all(row["top"][0]["class"] in NAMES for row in rows)


def test_info_works_as_advised(ran: Ran) -> None:
    program, *arguments = advice(ran.result)[1]
    assert (program, arguments[0]) == ("bayesvlm", "info")
    result = run_command(*arguments, "--json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["tau"] == ran.numbers["tau"]


def test_the_other_model_works_as_advised(
    ran: Ran, again: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the minutes: the model is loaded, and what the first one found is written where the advice says."""
    monkeypatch.chdir(tmp_path)
    program, *arguments = advice(ran.result)[2]
    assert (program, arguments[0]) == ("bayesvlm", "demo")
    result = again(*arguments[1:], "--json")
    assert result.code == 0, result.err
    assert (tmp_path / "demo-siglip/report.html").is_file()


def test_advice_follows_the_folder(again: Callable[..., Result], tmp_path: Path) -> None:
    result = again("--out", tmp_path / "elsewhere")
    assert advice(result)[1] == ["bayesvlm", "info", str(tmp_path / "elsewhere/posterior")]
    assert run_command(*advice(result)[1][1:]).code == 0


# What does not work --------------------------------------------------------------------------------------------------


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a demo that must end in one sentence on the error stream, before any work is done; returns the sentence."""

    def never(*arguments: object) -> None:
        raise AssertionError("it began all the same")

    monkeypatch.setattr(demos, "run_demo", never)

    def call(*arguments: object) -> str:
        result = run_command("demo", *arguments)
        assert result.code == 2, result.err
        assert result.out == ""
        assert "Traceback" not in result.err
        (line,) = [line for line in result.err.splitlines() if line.startswith("error: ")]
        return line

    return call


def test_models_and_devices_that_cannot_be_had(refused: Callable[..., str], tmp_path: Path) -> None:
    assert "nobody/no-such-model" in refused("--model", "nobody/no-such-model", "--out", tmp_path / "out")
    assert "did you mean 'emoji-clip'?" in refused("--model", "emoji-clap", "--out", tmp_path / "out")
    assert "'abacus' cannot be used here" in refused("--device", "abacus", "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_place_that_cannot_be_written(again: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    result = again("--out", tmp_path / "file")
    assert result.code == 2
    assert "Traceback" not in result.err
    assert re.search(r"error: .*file.*(cannot be written|is a file)", result.err)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_place_that_cannot_be_written_is_refused_at_once(refused: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert "is a file" in refused("--out", tmp_path / "file")


def test_advice_for_a_folder_with_a_space(again: Callable[..., Result], tmp_path: Path) -> None:
    result = again("--out", tmp_path / "my demo")
    assert advice(result)[1] == ["bayesvlm", "info", str(tmp_path / "my demo/posterior")]


def test_the_page_s_advice_follows_the_folder(again: Callable[..., Result], tmp_path: Path) -> None:
    assert again("--out", tmp_path / "elsewhere").code == 0
    html = (tmp_path / "elsewhere/report.html").read_text(encoding="utf-8")
    assert "bayesvlm info demo/posterior" not in html


def test_where_the_model_is_from(again: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bayesvlm.testing.tiny import save_tiny_clip

    monkeypatch.chdir(tmp_path)
    save_tiny_clip(tmp_path / "mine")
    assert "mine, from the package" not in again("--model", "mine", "--out", tmp_path / "out").err
