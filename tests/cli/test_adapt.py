"""`bayesvlm adapt` on the world in small: what it writes, what it does not do twice, what it refuses."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from command_line import Run, run_command
from experiments.test_domains import drawn_domains
from experiments.thinned import GROUP, thinned

from bayesvlm.experiments import adaptation
from bayesvlm.experiments.adaptation import Adaptation
from bayesvlm_world import domains as styles

QUICK = ("--classes", GROUP, "--budgets", "2,4", "--epochs", 2, "--strategies", "random,targeted-random,epig")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setattr(styles, "load", thinned)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAYESVLM_CACHE", str(tmp_path / "cache"))
    return partial(run_command, "adapt", "emoji-clip")


def test_the_whole_experiment_and_again(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = (*QUICK, "--seeds", 2, "--target", "openmoji-black", "-o", "out")
    code, out, err = run(*asked)
    assert code == 0, err
    assert len(list((tmp_path / "out/openmoji-black").glob("*.json"))) == 6
    assert "openmoji-black: NLPD / balanced accuracy %" in out
    assert "With 4 labels" in out
    assert "Against targeted-random," in out
    page = (tmp_path / "out/report.html").read_text()
    assert "bayesvlm adapt emoji-clip" in page
    assert "after 4 labels by epig" in page
    monkeypatch.setattr(Adaptation, "_run", lambda *_: pytest.fail("this run was there already"))
    again = json.loads(run(*asked, "--json")[1])
    assert [(r["strategy"], r["seed"]) for r in again["targets"]["openmoji-black"]] == [
        (strategy, seed) for strategy in ("random", "targeted-random", "epig") for seed in (0, 1)
    ]


def test_the_search_sets_gamma_and_beta(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptation, "GAMMAS", (0.5,))
    monkeypatch.setattr(adaptation, "BETAS", (7.0,))
    code, _, err = run(*QUICK[:-1], "epig", "--seeds", 1, "--search", "-o", "out")
    assert code == 0, err
    assert "with gamma 0.5, beta 7" in err
    kept = [json.loads(file.read_text()) for file in (tmp_path / "out/openmoji-black").glob("epig-0-*.json")]
    assert sorted(run["inputs"]["protocol"]["budgets"] for run in kept) == [[2, 4], [4]]
    assert all(run["inputs"]["protocol"]["epig"]["gamma"] == 0.5 for run in kept)
    assert all(run["inputs"]["protocol"]["epig"]["beta"] == 7.0 for run in kept)


def test_domains_of_ones_own(run: Run, tmp_path: Path) -> None:
    drawn_domains(tmp_path / "seasons", ("summer", "winter"), ("cat", "dog"), each=30)
    few = ("--budgets", "4", "--epochs", 2, "--strategies", "random,epig", "--seeds", 2)
    code, out, err = run("--domains", "seasons", "--target", "winter", *few, "-o", "out", "--json")
    assert code == 0, err
    assert set(json.loads(out)["targets"]) == {"winter"}
    code, out, err = run("--domains", "seasons", *few, "-o", "out")
    assert code == 0, err
    assert "summer: NLPD" in out
    assert "winter: NLPD" in out


def test_the_page_of_another_experiment_is_not_replaced(run: Run, tmp_path: Path) -> None:
    few = ("--classes", GROUP, "--budgets", "4", "--epochs", 1, "--strategies", "random", "--seeds", 1, "-o", "out")
    assert run(*few, "--target", "openmoji-black")[0] == 0
    page = (tmp_path / "out/report.html").read_bytes()
    code, out, err = run(*few, "--target", "emojione-black")
    assert (code, out) == (2, "")
    assert "report.html is the page of something else (its targets: openmoji-black, now emojione-black)" in err
    assert (tmp_path / "out/report.html").read_bytes() == page
    assert run(*few, "--target", "emojione-black", "--target", "openmoji-black")[0] == 0, "nothing is lost"
    assert run(*few, "--target", "emojione-black", "--overwrite")[0] == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("--target", "openmoji-black", "--target", "noto"), "--target='noto' is not known"),
        (("--classes", "insects"), "--classes='insects' is not known"),
        (("--budgets", "ten"), "--budgets 'ten'; expected whole numbers"),
        (("--strategies", "random,magic"), "'magic' is not one of random"),
        (("--gamma", "-1"), "gamma=-1.0; it must be a finite number of at least 0"),
        (("--search", "--beta", "1"), "--search finds gamma and beta"),
        (("--template", "a {c}"), "--template is not for the embedded world"),
        (("--search", "--strategies", "random"), "--search is for EPIG's gamma and beta; add epig"),
        (("--budgets", "100000"), "The largest budget is 100000 and the pool of openmoji-black"),
    ],
)
def test_what_is_refused(run: Run, tmp_path: Path, change: tuple[str, ...], sentence: str) -> None:
    code, out, err = run(*QUICK, *change, "-o", "out")
    assert (code, out) == (2, "")
    assert sentence in err
    assert not (tmp_path / "out").exists()


def test_what_is_refused_of_other_domains(run: Run) -> None:
    for asked, sentence in (
        (("--domains", "officehome", "--target", "Photo"), "--target='Photo' is not known; use 'Art', "),
        (("--domains", "officehome", "--classes", "kinds"), "--classes is for the embedded world; officehome has"),
        (("--domains", "office"), "'office' is neither one of world, officehome, imagenet-variants nor a folder"),
        (("--domains", "officehome"), "Office-Home is not in data/officehome; unpack"),
    ):
        code, out, err = run(*asked)
        assert (code, out) == (2, "")
        assert sentence in " ".join(err.split())
