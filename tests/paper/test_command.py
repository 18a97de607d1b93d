"""`bayesvlm reproduce`: one item, all items, what is kept, what would be loaded, what is refused."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from command_line import Run, run_command
from experiments.thinned import thinned

import bayesvlm_world
from bayesvlm import BayesVLMError
from bayesvlm.experiments.demo import TESTS
from bayesvlm.report.blocks import Table
from bayesvlm_paper import item as running
from bayesvlm_paper import items as catalogue
from bayesvlm_paper.finding import Claim, Finding, Numbers
from bayesvlm_paper.item import Item
from bayesvlm_paper.items import ITEMS
from bayesvlm_paper.lab import Lab
from bayesvlm_paper.plans import PLAN, Plan


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, cache: Path, tmp_path: Path) -> Run:
    """`bayesvlm reproduce ...` on the world in small, with a cache of its own, in an empty folder."""
    monkeypatch.setattr(bayesvlm_world, "load", thinned)
    monkeypatch.setenv("BAYESVLM_CACHE", str(cache))
    monkeypatch.delenv("BAYESVLM_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return partial(run_command, "reproduce")


def test_one_table_end_to_end(run: Run, tmp_path: Path) -> None:
    ran = run("uq_results_clip", "--views", 3)
    assert ran.code == 0, ran.err
    out = tmp_path / "reproduction"
    kept = json.loads((out / "uq_results_clip.json").read_text())
    assert set(kept) == {"schema", "item", "version", "command", "inputs", "seconds", "numbers"}
    finding = ITEMS["uq_results_clip"].tell(kept["numbers"])
    assert finding.answer in ran.out
    assert kept["command"] == "bayesvlm reproduce uq_results_clip --views 3"
    assert {"plain", "temperature", "TTA", "Bayes", "Bayes + TTA"} == set(kept["numbers"]["openmoji-black"])
    page = (out / "uq_results_clip.html").read_text()
    assert "bayesvlm reproduce uq_results_clip --views 3" in page
    for claim in finding.claims:
        assert claim.verdict in ("holds", "does not hold")
        assert claim.text.split(",")[0] in page


def test_a_users_own_data(run: Run, tmp_path: Path) -> None:
    ran = run("uq_results_clip", "--views", 0, "-d", "openmoji-black", "-m", "emoji-siglip", "--json", "-o", "mine")
    assert ran.code == 0, ran.err
    numbers = json.loads(ran.out)["items"]["uq_results_clip"]["numbers"]
    assert set(numbers) == {"openmoji-black", PLAN}
    assert set(numbers["openmoji-black"]) == {"plain", "temperature", "Bayes"}
    assert "models and data of your choice" in (tmp_path / "mine/uq_results_clip.html").read_text()


CALLS: list[str] = []


def fine(lab: Lab) -> Numbers:
    CALLS.append("fine")
    return {}


def broken(lab: Lab) -> Numbers:
    CALLS.append("broken")
    raise BayesVLMError("there is nothing to measure; add some.")


def mistaken(lab: Lab) -> Numbers:
    raise KeyError("plain")


def tell(numbers: object) -> Finding:
    table = Table(["", "a"], [["x", "1"]], frozenset({(0, 1)}), "Bold: x")
    return Finding("it is fine", [Claim.judged("Fine.", True, "1 of 1")], [table])


@pytest.fixture
def two_items(monkeypatch: pytest.MonkeyPatch) -> None:
    CALLS.clear()
    made = [
        Item(name, f"The {name} one", "Is it?", "zero-shot", Plan(), Plan(), measure, tell)
        for name, measure in (("fine", fine), ("broken", broken), ("mistaken", mistaken))
    ]
    monkeypatch.setattr(catalogue, "ITEMS", {item.name: item for item in made})


@pytest.mark.usefixtures("two_items")
def test_all_goes_on_where_it_was_and_past_what_fails(run: Run, tmp_path: Path) -> None:
    ran = run("all")
    assert ran.code == 1  # one could not be run
    assert "1/3  fine" in ran.err
    assert "could not be run: there is nothing to measure" in ran.err
    assert "a mistake of the program, KeyError('plain')" in ran.err
    page = (tmp_path / "reproduction/report.html").read_text()
    assert "it is fine" in page
    assert "there is nothing to measure" in page
    again = run("all")
    assert CALLS == ["fine", "broken", "broken"]
    assert "Fine." in again.out
    run("fine", "--again")
    assert CALLS[-1] == "fine"
    alone = run("broken")
    assert alone.code == 2
    assert alone.err.strip().splitlines()[-1] == "error: there is nothing to measure; add some."


def test_again_does_one_item_again_and_deletes_nothing(run: Run, tmp_path: Path) -> None:
    options = ("--views", 0, "-d", "openmoji-black", "-m", "emoji-clip")
    assert run("uq_results_clip", *options).code == 0
    out = tmp_path / "reproduction"
    (result,) = out.glob("kept/zero-shot/emoji-clip/openmoji-black.json")
    other = result.parent.parent / "other-model" / "other-set.json"
    notes = out / "kept" / "notes.txt"
    elsewhere = out / "another_item.json"
    for path in (other, notes, elsewhere):
        path.parent.mkdir(exist_ok=True)
        path.write_text("mine")
    before = result.stat().st_ino, json.loads(result.read_text())["facts"]["seconds"]
    assert run("uq_results_clip", *options).code == 0
    assert (result.stat().st_ino, json.loads(result.read_text())["facts"]["seconds"]) == before
    assert run("uq_results_clip", *options, "--again").code == 0
    assert json.loads(result.read_text())["facts"]["seconds"] != before[1], "it was measured again"
    assert all(path.read_text() == "mine" for path in (other, notes, elsewhere))


@pytest.mark.usefixtures("two_items")
def test_an_interrupted_run_says_what_is_kept(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "reproduce", interrupt)
    ran = run("all")
    assert ran.code == 130
    assert "what is finished is kept in reproduction" in ran.err


def test_an_answer_on_something_else_is_not_replaced(run: Run, two_items: None, tmp_path: Path) -> None:
    name = "fine"
    assert run(name, "--seeds", 1).code == 0
    kept = (tmp_path / f"reproduction/{name}.json").read_bytes()
    refused = run(name, "--seeds", 3)
    assert refused.code == 2
    assert f"reproduction/{name}.json is what came out of `bayesvlm reproduce {name} --seeds 1`" in refused.err
    assert "--overwrite" in run("all").err
    assert (tmp_path / f"reproduction/{name}.json").read_bytes() == kept
    assert run(name, "--seeds", 1, "--device", "cpu", "--out", tmp_path / "reproduction").code == 0, "the same question"
    assert run(name, "--seeds", 3, "--overwrite").code == 0


def test_the_best_cells_have_a_star(run: Run, two_items: None) -> None:
    assert "1*" in run("fine").out


def test_a_dry_run_loads_nothing_that_is_not_here(run: Run, tmp_path: Path) -> None:
    ran = run("uq_results_clip", "--published", "--dry-run")
    assert ran.code == 0, ran.err
    for part in (
        "open_clip:ViT-B-32/laion2b_s34b_b79k",
        "laion/CLIP-ViT-B-32",
        "605",
        "clip-benchmark/wds_food101",
        "327,680",
    ):
        assert part in ran.out, part
    assert "not on this machine" in ran.out
    assert not (tmp_path / "reproduction").exists()
    loads = json.loads(run("uq_results_clip", "--published", "--dry-run", "--json").out)["items"][0]
    sizes = {load["name"]: load for load in loads["loads"]}
    assert sizes["food101"]["encode"] == 25250 * 65
    assert loads["seconds"] > 0
    assert "measured on this machine with random weights of CLIP-Base's shape" in ran.out


def test_a_dry_run_knows_the_cache(run: Run) -> None:
    def passes() -> int:
        (found,) = json.loads(run("uq_results_prolip", "--dry-run", "--json").out)["items"]
        assert {load["name"] for load in found["loads"]} == {"emoji-prolip", *TESTS}
        return sum(load["encode"] for load in found["loads"])

    assert passes() > 0
    assert run("uq_results_prolip").code == 0
    assert passes() == 0


def test_the_list_and_what_is_refused(run: Run) -> None:
    listed = run("--list")
    assert all(name in listed.out for name in ITEMS)
    assert set(json.loads(run("--list", "--json").out)) == set(ITEMS)
    unused = run("runtime", "-d", "openmoji-black")
    assert unused.code == 2
    assert "leave --data out" in unused.err
    unknown = run("table-one")
    assert unknown.code == 2
    assert "uq_results_clip" in unknown.err
    assert "--list" in run().err
