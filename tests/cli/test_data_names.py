"""The same names of data for every command, with and without the embedded world, and a sentence where there is none."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from experiments.thinned import thinned
from PIL import Image

import bayesvlm_world
from bayesvlm import BayesVLM, embedded
from bayesvlm.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """A command in an empty folder, in the world in small."""
    monkeypatch.setattr(bayesvlm_world, "load", thinned)
    monkeypatch.delenv("BAYESVLM_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["bayesvlm", *map(str, arguments)])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def write_drawings(folder: Path, split: str = "openmoji-black") -> Path:
    """Drawings of a split in class folders, with their captions beside them."""
    drawings = thinned(split)
    for key, image, label, caption in zip(
        drawings.keys, drawings.images, drawings.labels, drawings.captions, strict=True
    ):
        path = folder / drawings.classes[label].replace(" ", "_") / f"{key}.webp"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)
        path.with_suffix(".txt").write_text(caption)
    return folder


@pytest.mark.parametrize("pairs", ["train", "train+validation"])
def test_fit_takes_splits_of_the_world(run: Run, pairs: str, tmp_path: Path) -> None:
    code, out, err = run("fit", "emoji-clip", pairs, "--out", "posterior", "--json")
    assert code == 0, err
    assert json.loads(out)["pairs"] == sum(len(thinned(split)) for split in pairs.split("+"))
    said = BayesVLM.from_pretrained(tmp_path / "posterior").provenance
    assert said["source"] == pairs
    assert "split" not in said


def test_fit_and_tune_and_select_take_folders_below_the_root(run: Run, tmp_path: Path) -> None:
    write_drawings(tmp_path / "root/drawn")
    code, out, err = run("fit", "emoji-clip", "drawn", "--root", "root", "--out", "posterior", "--json")
    assert code == 0, err
    assert json.loads(out)["pairs"] == len(thinned("openmoji-black"))
    assert BayesVLM.from_pretrained(tmp_path / "posterior").provenance["source"] == "drawn"
    code, out, err = run("tune", "posterior", "drawn", "--root", "root", "--template", "{c}", "--json")
    assert code == 0, err
    assert json.loads(out)["images"] == len(thinned("openmoji-black"))
    classes = ",".join(sorted({path.name.replace("_", " ") for path in Path("root/drawn").iterdir()}))
    asked = ("--classes", classes, "--template", "{c}", "--budget", 3, "--root", "root", "--oracle")
    code, _, err = run("select", "posterior", "--pool", "drawn", "--target", "validation", *asked)
    assert code == 0, err
    chosen = list(csv.DictReader(Path("to-label.csv").read_text().splitlines()))
    assert len(chosen) == 3
    assert all(row["image"].startswith("root/drawn/") for row in chosen)


def test_a_pool_may_be_a_split_of_the_world_beside_files(run: Run, tmp_path: Path) -> None:
    write_drawings(tmp_path / "own", "emojione-black")
    names = ",".join(thinned("openmoji-black").classes)
    asked = ("--classes", names, "--template", "{c}", "--budget", 50, "--strategy", "entropy", "--target", "validation")
    code, _, err = run("select", "emoji-clip", "--pool", "openmoji-black", "--pool", "own", *asked)
    assert code == 0, err
    chosen = [row["image"].partition("/")[0] for row in csv.DictReader(Path("to-label.csv").read_text().splitlines())]
    assert set(chosen) == {"openmoji-black", "own"}
    code, _, err = run("select", "emoji-clip", "--pool", "opnmoji-black", *asked, "--overwrite")
    assert (code, "did you mean 'openmoji-black'" in err) == (2, True)
    Path("validation").mkdir()
    code, _, err = run("select", "emoji-clip", "--pool", "own", *asked, "--overwrite")
    assert (code, "write ./validation for the folder" in err) == (2, True)


def test_adapt_takes_domains_below_the_root(run: Run, tmp_path: Path) -> None:
    for name in ("winter", "summer"):
        (tmp_path / "root/seasons" / name).mkdir(parents=True)
    code, _, err = run("adapt", "emoji-clip", "--domains", "seasons", "--root", "root", "--target", "spring")
    assert code == 2
    assert "winter" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("fit", "./model", "train", "--out", "new"),
        ("tune", "posterior", "validation"),
        ("eval", "./model", "-d", "openmoji-black"),
    ],
)
def test_without_the_world_a_command_says_what_to_install(
    run: Run, arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    BayesVLM.from_pretrained("emoji-clip").save_pretrained(tmp_path / "posterior")
    monkeypatch.setattr(embedded, "world_folder", lambda: None)
    code, _, err = run(*arguments)
    assert code == 2
    assert "comes with the embedded world, which is not installed: `pip install 'bayesvlm[world]'`" in err
    assert err.count("\n") == 1


def test_the_list_has_the_world_the_known_sets_and_other_folders(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cifar10/test/cat", "mine/cat", ".hidden/cat"):
        (tmp_path / "root" / name).mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(tmp_path / "root" / name / "1.png")
    listed = json.loads(run("eval", "--list", "--root", "root", "--json")[1])
    assert tuple(listed["embedded"]) == embedded.SPLITS
    assert listed["known"]["cifar10"] == {"title": "CIFAR-10", "found": "root/cifar10"}
    assert listed["known"]["food101"]["found"] is None
    assert listed["folders"] == {"mine": "root/mine"}
    text = run("eval", "--list", "--root", "root")[1]
    assert "root/mine" in text
    assert "a style never trained on" in text
    monkeypatch.setattr(embedded, "world_folder", lambda: None)
    assert "pip install 'bayesvlm[world]'" in run("eval", "--list")[1]
