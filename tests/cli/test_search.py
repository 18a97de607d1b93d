"""`bayesvlm search`: its table, its json, its page; README's lines as they stand there."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest
import torch
from command_line import Run, run_command
from PIL import Image

from bayesvlm import world
from bayesvlm.retrieval import Hits, Index
from bayesvlm.retrieval.hits import Interval

pytest.importorskip("lancedb", reason="LanceDB is not installed")

ALBUMS = ("it's", "b")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """index/ of the world's line drawings, made by README's line; photos/ and a small index of them."""
    home = tmp_path_factory.mktemp("search")
    for number, stored in enumerate(world.load("openmoji-colour").images[:12]):
        album = ALBUMS[number % 2]
        (home / "photos" / album).mkdir(parents=True, exist_ok=True)
        Image.open(BytesIO(stored)).convert("RGB").save(home / f"photos/{album}/{number}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        for words in (("openmoji-black", "--out", "index/"), ("photos", "-p", "emoji-clip", "-o", "small")):
            made = run_command("index", *words)
            assert made.code == 0, made.err
    return home


@pytest.fixture
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(home)
    before = set(home.iterdir())
    yield home
    for path in set(home.iterdir()) - before:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_readme(here: Path, run: Run) -> None:
    found = run("search", "index/", "grinning face")
    assert found.code == 0, found.err
    lines = found.out.splitlines()
    row = next(line for line in lines if "openmoji-black_1f600" in line)
    assert re.search(r"openmoji-black_1f600 +grinning face +0\.\d{3} +0\.\d\d\.\.0\.\d\d +·*━+●━+·* +\d+ %", row)
    assert "cosine" in lines[2]
    assert "95 %" in lines[2]
    assert "best" in lines[2]


def test_json_is_what_python_says(here: Path, run: Run) -> None:
    asked = ["grinning face", "pizza"]
    found = run("search", "index", *asked, "-k", 4, "--level", 0.5, "--json").json
    assert (found["rows"], found["model"], found["rank"]) == (1530, "emoji-clip", "mean")
    answers = Index.open("index").search(asked, k=4)
    assert isinstance(answers, list)
    for said, hits in zip(found["queries"], answers, strict=True):
        assert (said["query"], said["matches"], said["abstained"]) == (hits.query, None, False)
        assert [row["id"] for row in said["hits"]] == list(hits.ids)
        torch.testing.assert_close(torch.tensor([row["mean"] for row in said["hits"]]).double(), hits.mean)
        assert sum(row["p_best"] for row in said["hits"]) == pytest.approx(1)
        assert json.loads(json.dumps(hits.to_json()))["query"] == hits.query, "times among the columns, too"
        for row, hit in zip(said["hits"], hits, strict=True):
            assert row["interval"] == pytest.approx(list(hit.interval(0.5)))
            assert row["columns"] == {"label": hit.columns["label"]}, "what an index keeps for itself is left out"


def test_an_image(here: Path, run: Run) -> None:
    file = here / "photos/b/3.png"
    found = run("search", "small", "--image", file, "-k", 3, "--json").json["queries"][0]
    first = found["hits"][0]
    assert (first["id"], first["mean"]) == (str(file), pytest.approx(1, abs=1e-5))
    assert first["std"] < 1e-3, "a copy has cosine 1, and no doubt"
    assert "photos/b/3.png" in run("search", "small", "-i", file).out, "paths are shown as they are seen from here"


def test_a_file_among_the_words(here: Path, run: Run) -> None:
    found = run("search", "small", "photos/b/3.png", "-k", 1)
    assert "photos/b/3.png is a file, and is looked for as words; --image photos/b/3.png" in found.err


@pytest.mark.parametrize("query", ["[/INST] cat", "cats [and] dogs", "a\x1b]0;cat", "\u732b" * 100, "cat " * 150])
def test_words_that_are_neither_markup_nor_a_file(here: Path, run: Run, query: str) -> None:
    found = run("search", "small", query, "-k", 1, "--html", "found.html")
    assert found.code == 0, found.err
    assert "\x1b" not in found.out
    assert query[:7].replace("\x1b", "\N{REPLACEMENT CHARACTER}") in found.out
    assert Path("found.html").is_file()


def test_numbers_that_json_has_no_word_for(here: Path, run: Run) -> None:
    index = Index.create("odd", Index.open("small").vlm)
    rows = sorted((here / "photos/b").iterdir())[:3]
    index.add(rows, columns={"share": [float("inf"), float("-inf"), 0.5]})

    def no_word(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    found = json.loads(run("search", "odd", "pizza", "--json").out, parse_constant=no_word)
    told = {Path(hit["id"]).name: hit["columns"]["share"] for hit in found["queries"][0]["hits"]}
    assert sorted(told.values(), key=str) == [0.5, None, None]
    assert run("search", "odd", "pizza", "--out", "found.jsonl").code == 0
    for line in Path("found.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=no_word)


def test_a_file_that_is_called_like_the_words_is_no_picture_of_them(here: Path, run: Run) -> None:
    shutil.copy("photos/b/3.png", "pizza")
    assert run("search", "small", "pizza", "-k", 1, "--html", "words.html").code == 0
    assert "The query" not in Path("words.html").read_text()
    assert run("search", "small", "--image", "pizza", "-k", 1, "--html", "image.html").code == 0
    assert "The query" in Path("image.html").read_text()


def test_an_index_of_texts(here: Path, run: Run) -> None:
    Index.create("texts", Index.open("small").vlm, tower="text").add(["a cat", "a dog"])
    head = run("search", "texts", "a dog", "-k", 1).out.splitlines()[2]
    assert head.split()[0] == "text"


def test_conditions(here: Path, run: Run) -> None:
    def ids(*words: object) -> set[str]:
        rows = run("search", "small", "a face", "-k", 12, *words, "--json").json["queries"][0]["hits"]
        return {Path(row["id"]).name for row in rows}

    odd = {f"{number}.png" for number in (1, 3, 5, 7, 9, 11)}
    assert ids("--where", "album=b") == odd
    assert len(ids("--where", "album=it's")) == 6
    assert len(ids("--where", "album=it's", "--where", "album=b")) == 12
    assert ids("--where", "album=b", "--where", "id like %1.png") == {"1.png", "11.png"}
    assert ids("--where", "bytes<0") == set()
    nothing = run("search", "small", "a face", "--where", "album=' OR 1=1 --")
    assert "no row of small fulfils album=' OR 1=1 --" in nothing.err


def test_order(here: Path, run: Run) -> None:
    def bounds(rank: str) -> list[float]:
        rows = run("search", "index", "pizza", "--rank", rank, "--json").json["queries"][0]["hits"]
        end = {"mean": lambda row: row["mean"], "lower": lambda row: row["interval"][0]}
        return [end.get(rank, lambda row: row["interval"][1])(row) for row in rows]

    for rank in ("mean", "lower", "upper"):
        found = bounds(rank)
        assert found == sorted(found, reverse=True)


def test_files_of_queries(here: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "queries.txt").write_text("pizza\n\n  hot dog  \n")
    found = run("search", "index", "--queries", "queries.txt", "-k", 1, "--json").json
    assert [each["query"] for each in found["queries"]] == ["pizza", "hot dog"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("banana\n"))
    found = run("search", "index", "apple", "--queries", "-", "-k", 1, "--json").json
    assert [each["query"] for each in found["queries"]] == ["apple", "banana"]


def test_tables_of_queries(here: Path, run: Run, refuse: Run) -> None:
    tables = {
        "q.csv": 'query,id\n"pizza, hot",a\nbanana,b\n"pizza, hot",c\n',
        "q.tsv": "id\tquery\na\tpizza, hot\nb\tbanana\n",
        "q.jsonl": '{"query": "pizza, hot", "id": "a"}\n{"query": "banana"}\n',
    }
    for name, text in tables.items():
        (here / name).write_text(text)
        found = run("search", "small", "--queries", name, "-k", 1, "--json").json
        assert [each["query"] for each in found["queries"]] == ["pizza, hot", "banana"], name
    (here / "lines.csv").write_text("pizza\nbanana\n")
    said = refuse("search", "small", "--queries", "lines.csv").err
    assert "lines.csv has the columns 'pizza'; one of them must be called query or text or caption" in said
    (here / "lines.csv").write_text("query,id\n,a\n")
    assert "lines.csv, entry 1 has no query" in refuse("search", "small", "--queries", "lines.csv").err


def test_more_than_there_are(here: Path, run: Run) -> None:
    found = run("search", "small", "a face", "-k", 50)
    assert "there are 12" in found.err
    assert found.out.count(".png") == 12


# Abstaining -----------------------------------------------------------------------------------------------------------


def test_abstaining(here: Path, run: Run) -> None:
    shutil.copytree(here / "small", here / "calibrated")
    classes = world.load("openmoji-colour").classes
    rows = [(classes[n], f"photos/{ALBUMS[n % 2]}/{n}.png") for n in range(12)]
    (here / "q.csv").write_text("query,path\n" + "".join(f'"{query}",{path}\n' for query, path in rows))
    made = run("index", "calibrate", "calibrated", "q.csv", "--error", 0.3)
    assert made.code == 0, made.err
    some = run("search", "calibrated", *[query for query, _ in rows], "--json").json["queries"]
    judged = {each["query"]: each["matches"] for each in some}
    # of its own queries the r-th lowest has p = (1 + r) / 13, at most 0.3 for two of them
    assert sum(not matches for matches in judged.values()) == 2
    abstained = next(query for query, matches in judged.items() if not matches)
    answered = next(query for query, matches in judged.items() if matches)
    found = run("search", "calibrated", answered, abstained, "--abstain", "--html", "page.html")
    assert f"{abstained}: nothing here matches (p = 0." in found.out
    assert re.search(r"not turned away \(p = 0\.\d+, nothing matches from 0\.3 down\)", found.out)
    page = (here / "page.html").read_text()
    assert page.count("So nothing is shown.") == 1
    assert page.count("<img") == 10
    said = run("search", "calibrated", abstained, "--abstain", "--json").json["queries"][0]
    assert (said["hits"], said["abstained"], said["matches"]) == ([], True, False)
    shown = run("search", "calibrated", abstained, "--json").json["queries"][0]
    assert (len(shown["hits"]), shown["abstained"]) == (10, False)
    image = run("search", "calibrated", "-i", here / "photos/b/1.png", "--abstain")
    assert "the calibration says nothing" in image.err


def test_prompts(here: Path, run: Run, refuse: Run) -> None:
    words = ("search", "index", "pizza", "-k", 3, "--json")
    one = run(*words, "--template", "a {c}.", "--template", "my {}").json["queries"][0]
    hits = Index.open("index").search("pizza", k=3, templates=["a {c}.", "my {c}"])
    assert isinstance(hits, Hits)
    assert [hit["mean"] for hit in one["hits"]] == pytest.approx(hits.mean.tolist(), abs=1e-6)
    (here / "prompts.txt").write_text("a {c}.\nmy {}\n")
    assert run(*words, "--templates", "prompts.txt").json["queries"][0] == one
    assert run(*words).json["queries"][0] != one
    assert (
        "for queries in words" in refuse("search", "index", "--like", "openmoji-black_1f600", "--template", "{c}").err
    )
    assert "no place for" in refuse(*words, "--template", "a photo").err


def test_calibrated_in_prompts_it_asks_in_them(here: Path, run: Run) -> None:
    shutil.copytree("small", "calibrated")
    rows = "".join(f"thing {number},photos/{ALBUMS[number % 2]}/{number}.png\n" for number in range(12))
    (here / "q.csv").write_text("query,path\n" + rows)
    made = run("index", "calibrate", "calibrated", "q.csv", "--error", 0.3, "--template", "a {c}")
    assert made.code == 0, made.err
    usual = run("search", "calibrated", "pizza", "--json").json["queries"][0]
    told = run("search", "calibrated", "pizza", "--template", "a {c}", "--json").json["queries"][0]
    assert usual == told
    assert usual["matches"] is not None
    other = run("search", "calibrated", "pizza", "--template", "{c}", "--abstain")
    assert "another --template" in other.err


def test_like_an_item(here: Path, run: Run, refuse: Run) -> None:
    names = [f"photos/b/{number}.png" for number in (1, 3)]
    whole, said = run("search", "small", "--like", here / names[0], "-l", "3.png", "-k", 4, "--json").json["queries"]
    assert [each["query"] for each in (whole, said)] == [str(here / name) for name in names]
    hits = Index.open("small").like(str(here / names[0]), k=4)
    assert isinstance(hits, Hits)
    assert [hit["id"] for hit in whole["hits"]] == list(hits.ids)
    assert str(here / names[0]) not in hits.ids
    assert "does not have: 'nobody.png'" in refuse("search", "small", "--like", "nobody.png").err


def test_a_file_of_what_was_found(here: Path, run: Run, refuse: Run) -> None:
    words = ("search", "small", "pizza", 'a, "b"', "-k", 3, "--level", 0.5)
    found = run(*words, "--out", "found.csv", "--json").json
    assert found["out"] == "found.csv"
    with open("found.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    hits = [(each["query"], rank, hit) for each in found["queries"] for rank, hit in enumerate(each["hits"], 1)]
    assert len(rows) == len(hits) == 6
    for row, (query, rank, hit) in zip(rows, hits, strict=True):
        assert (row["query"], row["rank"], row["id"], row["album"]) == (
            query, str(rank), hit["id"], hit["columns"]["album"],
        )  # fmt: skip
        numbers = [float(row[name]) for name in ("cosine", "std", "low", "high", "p_best")]
        assert numbers == [hit["mean"], hit["std"], *hit["interval"], hit["p_best"]]
        assert (row["p_match"], row["matches"]) == ("", "")
    assert "found.csv is there already" in refuse(*words, "--out", "found.csv").err
    run(*words, "--out", "found.csv", "--overwrite")
    run(*words, "-o", "found.jsonl")
    lines = [json.loads(line) for line in (here / "found.jsonl").read_text().splitlines()]
    assert [(line["query"], line["id"], line["matches"]) for line in lines] == [
        (query, hit["id"], None) for query, _, hit in hits
    ]
    assert "csv (.csv) or json lines" in refuse(*words, "--out", "found.txt").err


# The page -------------------------------------------------------------------------------------------------------------


def test_page(here: Path, run: Run) -> None:
    found = run("search", "index", "pizza", "<b>&", "-k", 3, "--html", "page.html", "--json")
    assert found.json["report"] == "page.html"
    page = (here / "page.html").read_text()
    assert page.count("<img") == 6
    assert page.count('<div class="range" role="img" aria-label="cosine 0.') == 6
    assert "<b>&" not in page
    assert "&lt;b&gt;&amp;" in page
    assert not re.search(r'(src|href)="https?:', page), "it loads nothing"
    assert run("search", "index", "cat", "--html", "page.html").code == 0, "another search of the index takes its place"
    by_image = run("search", "small", "-i", here / "photos/b/3.png", "--html", "other.html")
    assert by_image.code == 0, by_image.err
    other = (here / "other.html").read_text()
    assert other.count("<img") == 11, "the query too"
    assert (here / "photos/b/5.png").as_uri() in other


def test_a_picture_that_is_gone(here: Path, run: Run) -> None:
    shutil.copytree(here / "photos", here / "elsewhere")
    run("index", "elsewhere", "-o", "gone", "-p", "emoji-clip")
    shutil.rmtree(here / "elsewhere")
    assert run("search", "gone", "a face", "-k", 2, "--html", "page.html").code == 0
    assert (here / "page.html").read_text().count("no picture") == 2


def test_other_pages_are_not_replaced(here: Path, run: Run, refuse: Run) -> None:
    (here / "page.html").write_text("<p>mine</p>")
    words = ("search", "small", "a face", "--html", "page.html")
    said = refuse(*words).err
    assert "is the page of something else" in said
    assert "name another file with --html, or replace the page with --overwrite" in said
    assert run(*words, "--overwrite").code == 0
    assert run(*words[:2], "a flag", *words[3:]).code == 0, "the help says that it replaces its own"
    other = refuse("search", "index", *words[2:]).err
    assert "page.html is the page of something else (its index: small, now index); name another file with" in other


# Refused --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("nowhere", "x"), "nowhere holds no index"),
        (("small",), "There is nothing to look for"),
        (("small", ""), "which says nothing"),
        (("small", "x", "--rank", "best"), "--rank='best' is not known"),
        (("small", "x", "--level", "2"), "level=2.0; a credible level"),
        (("small", "x", "--abstain"), "--abstain needs a calibration"),
        (("small", "x", "--where", "colour=red"), "--where 'colour=red' is no condition on a column"),
        (("small", "x", "--where", "bytes=many"), "bytes holds whole numbers"),
        (("small", "x", "--queries", "nowhere.txt"), "nowhere.txt cannot be read"),
        (("small", "--image", "nowhere.png"), "'nowhere.png') does not exist"),
    ],
)
def test_what_is_refused(here: Path, refuse: Run, words: tuple[str, ...], sentence: str) -> None:
    assert sentence in refuse("search", *words).err


def test_an_empty_index(here: Path, refuse: Run) -> None:
    Index.create(here / "empty", Index.open("small").vlm)
    assert "empty is empty; put images into it with" in refuse("search", "empty", "x").err


def test_what_is_said_of_a_query() -> None:
    from bayesvlm.cli.found import verdict
    from bayesvlm.report.search import verdict as sentence

    one = torch.tensor([0.5]).double()
    hits = Hits("x", ("a",), (None,), one, one, one, one[:, None], 0.0)
    assert (verdict(hits), sentence(hits)) == ("", "")
    hits = replace(hits, matches=True, p_value=0.25, query_p_value=0.5)
    assert verdict(hits) == "not turned away (p = 0.25)"
    hits = replace(hits, error=0.05, p_value=0.098, p_match=torch.tensor([0.5]).double())
    kept = "not turned away (p = 0.098, nothing matches from 0.05 down)"
    assert verdict(hits) == kept
    assert f"Not turned {kept[11:]}." in hits._repr_html_()
    assert "not turned away" in repr(hits)
    weak = replace(hits, p_match=torch.tensor([0.05]).double())
    assert verdict(weak) == f"{kept}; the most probable match has 5 %"
    assert sentence(weak) == (
        "**Not turned away**: of queries that have a match, 9.8 % look as if they had none as much as this; nothing "
        "matches from 5 % down. The most probable match has 5 %."
    )
    assert "p = 0.0504, nothing" in verdict(replace(hits, p_value=0.0504)), "never as if it were turned away"
    assert verdict(replace(weak, matches=False, p_value=0.03)) == "nothing here matches (p = 0.03)"
    hits = replace(hits, matches=False, p_value=0.02, query_p_value=0.01)
    rare = "the query itself is uncertain: 1 % of those it was calibrated on are as much"
    assert verdict(hits) == f"nothing here matches (p = 0.02); {rare}"
    assert sentence(hits).endswith(f"2 % look as if they had none as much as this. And {rare}.")


def test_letters_for_terminals_that_have_no_others(here: Path) -> None:
    from bayesvlm.cli.found import as_tables

    mean, std = torch.tensor([0.5, -0.2]).double(), torch.tensor([0.1, 0.05]).double()
    hits = Hits("x", ("a", "b"), (None, None), mean, std, mean, torch.diag(std**2), 0.0, {"album": [None, None]})
    (table,) = as_tables([hits], 0.95, abstain=False, unicode=False)
    assert not isinstance(table, str)
    bars = [str(cell) for cell in table.columns[3].cells]
    low, high = Interval(0.5, 0.1)
    assert [column.header for column in table.columns][:3] == ["image", "cosine", "95 %"], "an empty column is left out"
    assert all(set(bar) == {".", "-", "o"} and len(bar) == 28 for bar in bars)
    axis = -0.3, 0.7
    expected = [round(27 * (end - axis[0]) / (axis[1] - axis[0])) for end in (low, high)]
    assert [str(bars[0]).index("-"), str(bars[0]).rindex("-")] == expected
    assert json.dumps(hits.to_json())
